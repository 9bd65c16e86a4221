// SPDX-License-Identifier: Apache-2.0
//! An origin behind HTTP: an S3 bucket, or a plain web server.
//!
//! Each read is a task on two threads of its own; the body goes from the connection into the caller's memory. Every
//! read is conditional on the index's tag, so versions never mix. An answer with another number of bytes is a failure.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use foresee_units::{Bytes, Nanos, ReadOutcome};
use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta};
use tokio::task::AbortHandle;

use super::fault::Attempt;
use super::flight::{Desk, Flight, deadline};
use super::tag::{object_tag, strong_etag};
use super::{Client, Door, Failure, Locate, OriginError, OriginOptions};
use crate::completion::Completions;
use crate::op::{Op, SampleKey, Ticket};
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
                        flight.fail(ReadOutcome::Failed, super::READ_ONLY);
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
            Ok(()) => flight.finish(ReadOutcome::Ok),
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
            return Err(Failure::answer(ReadOutcome::Absent, None, super::not_in_index(key.id)));
        };
        let len = flight.dest.as_ref().map_or(0, crate::Dest::len);
        let start = super::first_byte_of(&location, offset, len)
            .map_err(|(outcome, cause)| Failure::answer(outcome, None, cause))?;
        let path = self.door.path(&location.key).map_err(|cause| {
            Failure::answer(ReadOutcome::Failed, None, format!("the key cannot be read: {cause}"))
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
        if into.is_empty() {
            // No bytes wanted: only whether the object is still the one.
            let meta = self.door.head(&path, &attempt).await?;
            flight.detail.status = attempt.status();
            flight.detail.first_byte = Some(Nanos::from(flight.service()));
            return still_the_one(&meta, &tag, &attempt);
        }
        let options = GetOptions {
            if_match: strong_etag(&tag).map(str::to_owned),
            range: range.map(|(start, len)| GetRange::Bounded(start..start + len)),
            ..GetOptions::default()
        };
        let answer = self.door.get(&path, options, &attempt).await?;
        flight.detail.status = attempt.status();
        flight.detail.first_byte = Some(Nanos::from(flight.service()));
        still_the_one(&answer.meta, &tag, &attempt)?;
        let coming = answer.range.end.saturating_sub(answer.range.start);
        if coming != into.len() as u64 {
            let wanted = into.len();
            let cause = format!("{coming} bytes instead of {wanted}; index the data set again");
            return Err(Failure::answer(ReadOutcome::Changed, attempt.status(), cause));
        }
        let mut filled = 0;
        let mut body = answer.into_stream();
        while filled < into.len() {
            let chunk = match self.door.patiently(body.next()).await? {
                Some(Ok(chunk)) => chunk,
                Some(Err(error)) => {
                    let cause = crate::uri::redact(&error.to_string());
                    let cause = format!("the body broke off after {filled} bytes: {cause}");
                    return Err(Failure::answer(ReadOutcome::Retryable, attempt.status(), cause));
                }
                None => {
                    let cause = format!("the body ended after {filled} of {} bytes", into.len());
                    return Err(Failure::answer(ReadOutcome::Retryable, attempt.status(), cause));
                }
            };
            let Some(room) = into.get_mut(filled..filled + chunk.len()) else {
                return Err(Failure::answer(
                    ReadOutcome::Failed,
                    attempt.status(),
                    "more bytes than asked for",
                ));
            };
            room.copy_from_slice(&chunk);
            filled += chunk.len();
            flight.bytes = filled as u64;
        }
        // Reading up to the end hands the connection back for the next request.
        match self.door.patiently(body.next()).await? {
            None => Ok(()),
            Some(Ok(more)) if more.is_empty() => Ok(()),
            Some(_) => {
                Err(Failure::answer(ReadOutcome::Failed, attempt.status(), "more bytes than asked for"))
            }
        }
    }
}

/// Compares versions, where both are known.
fn still_the_one(meta: &ObjectMeta, tag: &[u8], attempt: &Attempt) -> Result<(), Failure> {
    let now = object_tag(meta);
    if tag.is_empty() || now.is_empty() || now == tag {
        return Ok(());
    }
    let cause = "the object has changed since it was indexed; index the data set again";
    Err(Failure::answer(ReadOutcome::Changed, attempt.status(), cause))
}
