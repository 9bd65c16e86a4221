// SPDX-License-Identifier: Apache-2.0
//! An origin behind HTTP: an S3 bucket, or a plain web server.
//!
//! One task per read on two threads of its own; the body goes from the connection into the caller's memory.
//! Every read is conditional on the index's tag, so versions never mix. Refuses to try again and to accept
//! another number of bytes than was asked for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use foresee_units::{Bytes, Nanos};
use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetRange};
use tokio::task::AbortHandle;

use super::fault::Attempt;
use super::flight::{Desk, Flight, deadline};
use super::tag::{object_tag, strong_etag};
use super::{Client, Door, Failure, Locate, OriginError, OriginOptions};
use crate::completion::Completions;
use crate::op::{Op, Outcome, SampleKey, Ticket};
use crate::uri::Uri;
use crate::{Tier, TierFacts};

/// Time for aborted requests to let go of their memory: one turn of the runtime, not of the network.
const ABORT_TAKES: Nanos = Nanos::from_secs(2);

/// The tier of a bucket or a web server.
pub struct StoreOrigin {
    shared: Arc<Shared>,
    client: Client,
}

struct Shared {
    door: Arc<Door>,
    locate: Arc<dyn Locate>,
    desk: Arc<Desk>,
    running: Mutex<HashMap<Ticket, AbortHandle>>,
}

impl StoreOrigin {
    /// Prepares the client; asks the origin nothing yet.
    ///
    /// # Errors
    /// [`OriginError::BadOption`] for a setting that is unknown or cannot be read, [`OriginError::Machine`] if
    /// no threads can be had.
    ///
    /// # Panics
    /// If `uri` is a directory's: those are [`super::PosixOrigin`]s.
    pub fn new(
        uri: &Uri,
        options: &OriginOptions,
        locate: Arc<dyn Locate>,
        completions: Completions,
    ) -> Result<Self, OriginError> {
        let client = Client::new(uri, options)?;
        let door = Arc::clone(client.door());
        let desk = Desk::new(completions);
        Ok(Self { shared: Arc::new(Shared { door, locate, desk, running: Mutex::default() }), client })
    }
}

impl Tier for StoreOrigin {
    fn submit(&self, op: Op) {
        self.submit_many(vec![op]);
    }

    fn submit_many(&self, ops: Vec<Op>) {
        let now = Instant::now();
        let desk = &self.shared.desk;
        let runtime = self.client.handle();
        // Held while the tasks are born, so that none can end before it is listed.
        let mut running = self.shared.running();
        for op in ops {
            match op {
                Op::Read { ticket, key, offset, dest } => {
                    let flight = Flight::new(desk, ticket, now, Some(dest));
                    if desk.is_closed() {
                        continue; // a dropped flight reports itself cancelled
                    }
                    let task = runtime.spawn(Arc::clone(&self.shared).serve(flight, key, offset));
                    running.insert(ticket, task.abort_handle());
                }
                Op::Write { ticket, .. } | Op::Drop { ticket, .. } => {
                    let flight = Flight::new(desk, ticket, now, None);
                    if !desk.is_closed() {
                        flight.fail(Outcome::Fatal, super::READ_ONLY);
                    }
                }
            }
        }
    }

    fn cancel(&self, ticket: Ticket) {
        let task = self.shared.running().remove(&ticket);
        if let Some(task) = task {
            task.abort(); // the flight goes with its task, and says so
        }
    }

    fn facts(&self) -> TierFacts {
        TierFacts {
            place: self.shared.door.uri().to_string(),
            capacity: Bytes::MAX,
            used: Bytes::ZERO,
            in_flight: self.shared.desk.in_flight(),
        }
    }

    /// Gives requests under way `grace` to end, and breaks off the others.
    fn close(&self, grace: Nanos) {
        self.shared.desk.close();
        // A submit that was not refused has listed its tasks once this lock is had.
        drop(self.shared.running());
        if self.shared.desk.wait_until(deadline(grace)) {
            return;
        }
        let left: Vec<_> = self.shared.running().drain().map(|(_, task)| task).collect();
        left.iter().for_each(AbortHandle::abort);
        self.shared.desk.wait_until(deadline(ABORT_TAKES));
    }
}

impl std::fmt::Debug for StoreOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreOrigin").field("uri", self.shared.door.uri()).finish_non_exhaustive()
    }
}

impl Drop for StoreOrigin {
    fn drop(&mut self) {
        self.shared.desk.close();
        self.shared.running().drain().for_each(|(_, task)| task.abort());
    }
}

/// One request, made out before anything is sent.
struct Request {
    path: Path,
    /// First byte in the object and number of bytes; `None` for all of it.
    range: Option<(u64, u64)>,
    tag: Vec<u8>,
}

impl Shared {
    fn running(&self) -> MutexGuard<'_, HashMap<Ticket, AbortHandle>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve(self: Arc<Self>, mut flight: Flight, key: SampleKey, offset: u64) {
        flight.begin();
        let answer = match self.make_out(&flight, key, offset) {
            Ok(request) => self.fetch(&mut flight, request).await,
            Err(failure) => Err(failure),
        };
        // Unlisted before it is told, for from then on the ticket may be used again.
        self.running().remove(&flight.ticket());
        match answer {
            Ok(()) => flight.finish(Outcome::Ok),
            Err(Failure { outcome, cause, status, .. }) => {
                flight.detail.status = status.or(flight.detail.status);
                let name = self.locate.locate(key.id).map(|location| self.door.uri().join(&location.key));
                let name = name.unwrap_or_else(|| self.door.uri().to_string());
                flight.fail(outcome, format!("{name}: {cause}"));
            }
        }
    }

    fn make_out(&self, flight: &Flight, key: SampleKey, offset: u64) -> Result<Request, Failure> {
        let Some(location) = self.locate.locate(key.id) else {
            return Err(Failure::answer(Outcome::Absent, None, super::not_in_index(key.id)));
        };
        let len = flight.dest.as_ref().map_or(0, crate::Dest::len);
        let start = super::first_byte_of(&location, offset, len)
            .map_err(|(outcome, cause)| Failure::answer(outcome, None, cause))?;
        let path = self.door.path(&location.key).map_err(|cause| {
            Failure::answer(Outcome::Fatal, None, format!("the key cannot be read: {cause}"))
        })?;
        let len = len as u64;
        let range = (location.start.is_some() || len < location.len).then_some((start, len));
        Ok(Request { path, range, tag: location.tag.into_owned() })
    }

    async fn fetch(&self, flight: &mut Flight, request: Request) -> Result<(), Failure> {
        let Request { path, range, tag } = request;
        let Some(mut dest) = flight.dest.take() else { unreachable!("a read has its memory until it ends") };
        let into = dest.as_mut_slice();
        let attempt = Arc::new(Attempt::default());
        let options = GetOptions {
            if_match: strong_etag(&tag).map(str::to_owned),
            range: range
                .filter(|(_, len)| *len > 0)
                .map(|(start, len)| GetRange::Bounded(start..start + len)),
            // No bytes wanted: only whether the object is still the one.
            head: into.is_empty(),
            ..GetOptions::default()
        };
        let answer = self.door.get(&path, options, &attempt).await?;
        flight.detail.status = attempt.status();
        flight.detail.first_byte = Some(Nanos::from(flight.service()));
        let changed = |cause: String| Failure::answer(Outcome::Changed, attempt.status(), cause);
        let now = object_tag(&answer.meta);
        if !tag.is_empty() && !now.is_empty() && now != tag {
            return Err(changed(
                "the object has changed since it was indexed; index the data set again".into(),
            ));
        }
        let coming = answer.range.end.saturating_sub(answer.range.start);
        if into.is_empty() {
            return Ok(());
        }
        if coming != into.len() as u64 {
            let wanted = into.len();
            return Err(changed(format!("{coming} bytes instead of {wanted}; index the data set again")));
        }
        let mut filled = 0;
        let mut body = answer.into_stream();
        while filled < into.len() {
            let chunk = match self.door.patiently(body.next()).await? {
                Some(Ok(chunk)) => chunk,
                Some(Err(error)) => {
                    let cause = crate::uri::redact(&error.to_string());
                    let cause = format!("the body broke off after {filled} bytes: {cause}");
                    return Err(Failure::answer(Outcome::Retryable, attempt.status(), cause));
                }
                None => {
                    let cause = format!("the body ended after {filled} of {} bytes", into.len());
                    return Err(Failure::answer(Outcome::Retryable, attempt.status(), cause));
                }
            };
            let Some(room) = into.get_mut(filled..filled + chunk.len()) else {
                return Err(Failure::answer(Outcome::Fatal, attempt.status(), "more bytes than asked for"));
            };
            room.copy_from_slice(&chunk);
            filled += chunk.len();
            flight.bytes = filled as u64;
        }
        // Reading up to the end hands the connection back for the next request.
        match self.door.patiently(body.next()).await? {
            None => Ok(()),
            Some(Ok(more)) if more.is_empty() => Ok(()),
            Some(_) => Err(Failure::answer(Outcome::Fatal, attempt.status(), "more bytes than asked for")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{self, Stocked};
    use crate::origin::fake::{FakeS3, Mood, etag};
    use crate::origin::shelf::{self, Queue, Shelf, read};
    use crate::{Dest, Done};

    fn options(fake: &FakeS3) -> OriginOptions {
        let mut options = OriginOptions { read_timeout: Nanos::from_secs(20), ..OriginOptions::default() };
        for (name, value) in [
            ("endpoint_url", format!("http://{}", fake.address)),
            ("access_key_id", "AKIAKEY".to_owned()),
            ("secret_access_key", "hush".to_owned()),
            ("region", "here".to_owned()),
        ] {
            options.storage.insert(name.to_owned(), value);
        }
        options
    }

    fn s3() -> Uri {
        Uri::parse("s3://bucket/set").expect("a URI")
    }

    fn stock(fake: &FakeS3, samples: &[Vec<u8>]) -> Shelf {
        let mut shelf = Shelf::default();
        for (id, sample) in samples.iter().enumerate() {
            let key = format!("class {}/{id}+é.bin", id % 3);
            fake.put(&format!("set/{key}"), sample);
            shelf.add(key.as_bytes(), None, sample.len() as u64, etag(sample).as_bytes());
        }
        shelf.add(b"class 0/missing", None, 10, b"");
        shelf
    }

    /// One object of ten bytes, read through S3 while the server is in `mood`.
    fn read_in(mood: Mood, change: impl FnOnce(&mut OriginOptions)) -> (Done, Vec<u8>, FakeS3) {
        let fake = FakeS3::start();
        let shelf = stock(&fake, &[vec![7; 10]]);
        let mut options = options(&fake);
        change(&mut options);
        let (origin, queue) = shelf::queued(|completions| {
            StoreOrigin::new(&s3(), &options, Arc::new(shelf), completions).expect("an origin")
        });
        fake.set(mood);
        let (done, bytes) = read(&origin, &queue, 0, 10);
        (done, bytes, fake)
    }

    #[test]
    fn a_bucket_and_a_web_server_keep_the_reading_promises() {
        for web in [false, true] {
            conformance::read_half(|completions, samples| {
                let fake = FakeS3::start();
                let shelf = stock(&fake, samples);
                let (uri, options) = if web {
                    let uri = Uri::parse(&format!("http://{}/bucket/set", fake.address));
                    (uri.expect("a URI"), OriginOptions::default())
                } else {
                    (s3(), options(&fake))
                };
                let origin = StoreOrigin::new(&uri, &options, Arc::new(shelf), completions);
                let (keys, absent) = (shelf::keys(samples.len()), shelf::key(samples.len()));
                Stocked { tier: Arc::new(origin.expect("an origin")), keys, absent }
            });
        }
    }

    #[test]
    fn a_whole_sample_is_one_conditional_get_without_a_range() {
        let (done, bytes, fake) = read_in(Mood::Well, |_| {});
        assert_eq!((done.outcome, bytes), (Outcome::Ok, vec![7; 10]), "{done:?}");
        assert_eq!(done.detail.status, Some(200));
        assert!(done.detail.first_byte.is_some_and(|first| first <= done.service));
        let condition = etag(&[7; 10]);
        assert_eq!(
            fake.requests(),
            [format!("GET /bucket/set/class 0/0+é.bin range=- if-match={condition}")]
        );
    }

    #[test]
    fn a_sample_inside_a_shard_is_one_range() {
        let fake = FakeS3::start();
        fake.put("set/shard", b"0123456789");
        let mut shelf = Shelf::default();
        shelf.add(b"shard", Some(4), 3, b"");
        let (origin, queue) = shelf::queued(|completions| {
            StoreOrigin::new(&s3(), &options(&fake), Arc::new(shelf), completions).expect("an origin")
        });
        assert_eq!(read(&origin, &queue, 0, 3).1, b"456");
        assert_eq!(fake.requests(), ["GET /bucket/set/shard range=bytes=4-6 if-match=-"]);
    }

    #[test]
    fn each_answer_has_its_outcome_is_asked_once_and_tells_no_secret() {
        let throttled = Outcome::Throttled { retry_after: Some(Nanos::from_secs(7)) };
        for (mood, outcome) in [
            (Mood::Status(503, "SlowDown"), throttled),
            (Mood::Status(429, ""), throttled),
            (Mood::Status(500, "InternalError"), Outcome::Retryable),
            (Mood::Status(404, "NoSuchKey"), Outcome::Absent),
            (Mood::Status(403, "AccessDenied"), Outcome::Denied),
            (Mood::Status(412, ""), Outcome::Changed),
            (Mood::Status(400, "InvalidRequest"), Outcome::Fatal),
            (Mood::ShortBody, Outcome::Retryable),
        ] {
            let (done, _, fake) = read_in(mood.clone(), |_| {});
            assert_eq!(done.outcome, outcome, "{mood:?}: {done:?}");
            assert_eq!(fake.requests().len(), 1, "{mood:?}: retries are not ours to make");
            let message = done.detail.message.expect("a failure says why");
            assert!(message.starts_with("s3://bucket/set/class 0/0+é.bin: "), "{message}");
            assert!(!message.contains("AKIAKEY") && !message.contains("hush"), "{message}");
        }
    }

    #[test]
    fn a_short_body_tells_how_far_it_came() {
        let (done, bytes, _) = read_in(Mood::ShortBody, |_| {});
        assert_eq!((done.outcome, done.bytes.get()), (Outcome::Retryable, 5));
        assert_eq!(bytes[..5], [7; 5]);
    }

    #[test]
    fn a_server_that_ignores_conditions_cannot_pass_another_version_off() {
        let fake = FakeS3::start();
        fake.put("set/a", b"new!");
        let mut shelf = Shelf::default();
        shelf.add(b"a", None, 4, etag(b"old!").as_bytes());
        shelf.add(b"a", Some(1), 2, b"");
        shelf.add(b"a", None, 3, b"");
        let (origin, queue) = shelf::queued(|completions| {
            StoreOrigin::new(&s3(), &options(&fake), Arc::new(shelf), completions).expect("an origin")
        });
        assert_eq!(read(&origin, &queue, 2, 3).0.outcome, Outcome::Changed, "another length");
        fake.set(Mood::IgnoresHeaders);
        assert_eq!(read(&origin, &queue, 0, 4).0.outcome, Outcome::Changed, "another tag");
        assert_eq!(read(&origin, &queue, 1, 2).0.outcome, Outcome::Fatal, "no ranges");
    }

    #[test]
    fn silence_ends_after_the_read_timeout() {
        let (done, _, _) = read_in(Mood::Stall, |options| options.read_timeout = Nanos::from_millis(50));
        assert_eq!((done.outcome, done.bytes.get()), (Outcome::Retryable, 5));
        assert!(done.detail.message.is_some_and(|message| message.contains("no byte came for")));
    }

    fn stalled() -> (StoreOrigin, Queue, FakeS3, Arc<crate::Scratch>) {
        let fake = FakeS3::start();
        let shelf = stock(&fake, &[vec![7; 10]]);
        fake.set(Mood::Stall);
        let (origin, queue) = shelf::queued(|completions| {
            StoreOrigin::new(&s3(), &options(&fake), Arc::new(shelf), completions).expect("an origin")
        });
        let (dest, scratch) = Dest::from_vec(vec![0; 10]);
        origin.submit(Op::Read { ticket: Ticket(1), key: shelf::key(0), offset: 0, dest });
        (origin, queue, fake, scratch)
    }

    #[test]
    fn a_stalled_read_is_broken_off_by_cancel_and_by_close() {
        let (origin, queue, _fake, scratch) = stalled();
        origin.cancel(Ticket(1));
        assert_eq!(queue.wait()[0].outcome, Outcome::Cancelled);
        assert!(scratch.into_bytes().is_ok(), "the memory came back first");
        let (origin, queue, _fake, _) = stalled();
        origin.close(Nanos::from_millis(1));
        assert_eq!(queue.wait()[0].outcome, Outcome::Cancelled);
        assert_eq!(origin.facts().in_flight, 0);
    }

    #[test]
    fn nobody_at_the_address_may_be_asked_again_and_a_probe_says_so() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = free.local_addr().expect("an address").to_string();
        drop(free);
        let (done, ..) = read_in(Mood::Well, |options| {
            options.storage.insert("endpoint_url".to_owned(), format!("http://{address}"));
        });
        assert_eq!(done.outcome, Outcome::Retryable, "{done:?}");
        let uri = Uri::parse(&format!("http://{address}/x?sig=hush")).expect("a URI");
        let error =
            crate::probe_origin(&uri, &OriginOptions::default()).expect_err("nobody there").to_string();
        assert!(error.contains("cannot be reached") && error.contains("refused"), "{error}");
        assert!(!error.contains("hush"), "{error}");
    }

    #[test]
    fn a_probe_tells_wrong_keys_from_a_wrong_bucket() {
        let fake = FakeS3::start();
        let probe = |uri: &str| crate::probe_origin(&Uri::parse(uri).expect("a URI"), &options(&fake));
        probe("s3://bucket/set").expect("it answers");
        let missing = probe("s3://nothere").expect_err("no such bucket").to_string();
        assert!(
            missing.contains("s3://nothere does not exist") && missing.contains("NoSuchBucket"),
            "{missing}"
        );
        fake.set(Mood::Status(403, "SignatureDoesNotMatch"));
        let denied = probe("s3://bucket").expect_err("wrong keys").to_string();
        assert!(denied.contains("access denied") && denied.contains("SignatureDoesNotMatch"), "{denied}");
    }

    #[test]
    fn an_unknown_setting_is_refused_by_name_alone() {
        let fake = FakeS3::start();
        let mut options = options(&fake);
        options.storage.insert("acces_key".to_owned(), "hush".to_owned());
        let error = crate::probe_origin(&s3(), &options).expect_err("misspelt").to_string();
        assert!(error.contains("acces_key") && !error.contains("hush"), "{error}");
        assert!(!format!("{options:?}").contains("hush"));
    }

    #[test]
    fn a_header_is_read_at_once() {
        let fake = FakeS3::start();
        fake.put("set/a.npy", b"0123456789");
        let read = |key: &[u8], range| crate::read_whole(&s3(), &options(&fake), key, range);
        assert_eq!(read(b"a.npy", None).expect("an object"), b"0123456789");
        assert_eq!(read(b"a.npy", Some(2..5)).expect("an object"), b"234");
        assert_eq!(read(b"a.npy", Some(8..50)).expect("an object"), b"89");
        assert!(matches!(read(b"b.npy", None), Err(OriginError::Missing { .. })));
        assert!(matches!(read(b"\xff", None), Err(OriginError::BadKey { .. })));
    }
}
