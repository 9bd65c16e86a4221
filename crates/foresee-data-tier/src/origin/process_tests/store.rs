// SPDX-License-Identifier: Apache-2.0
//! What a bucket or a web server promises, and what its answers mean, against a fake server.

use std::sync::Arc;

use foresee_units::{Nanos, ReadOutcome};

use super::fake::{FakeS3, Mood, etag};
use crate::conformance::{self, Stocked};
use crate::op::{Op, Ticket};
use crate::origin::shelf::{self, Queue, Shelf, read};
use crate::origin::{OriginError, OriginOptions, StoreOrigin};
use crate::uri::Uri;
use crate::{Dest, Done, Tier};

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
    assert_eq!((done.outcome, bytes), (ReadOutcome::Ok, vec![7; 10]), "{done:?}");
    assert_eq!(done.detail.status, Some(200));
    assert!(done.detail.first_byte.is_some_and(|first| first <= done.service));
    let condition = etag(&[7; 10]);
    assert_eq!(fake.requests(), [format!("GET /bucket/set/class 0/0+é.bin range=- if-match={condition}")]);
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
    let throttled = ReadOutcome::Throttled { retry_after: Some(Nanos::from_secs(7)) };
    for (mood, outcome) in [
        (Mood::Status(503, "SlowDown"), throttled),
        (Mood::Status(429, ""), throttled),
        (Mood::Status(500, "InternalError"), ReadOutcome::Retryable),
        (Mood::Status(404, "NoSuchKey"), ReadOutcome::Absent),
        (Mood::Status(403, "AccessDenied"), ReadOutcome::Denied),
        (Mood::Status(412, ""), ReadOutcome::Changed),
        (Mood::Status(400, "InvalidRequest"), ReadOutcome::Failed),
        (Mood::ShortBody, ReadOutcome::Retryable),
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
    assert_eq!((done.outcome, done.bytes.get()), (ReadOutcome::Retryable, 5));
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
    assert_eq!(read(&origin, &queue, 2, 3).0.outcome, ReadOutcome::Changed, "another length");
    fake.set(Mood::IgnoresHeaders);
    assert_eq!(read(&origin, &queue, 0, 4).0.outcome, ReadOutcome::Changed, "another tag");
    assert_eq!(read(&origin, &queue, 1, 2).0.outcome, ReadOutcome::Failed, "no ranges");
}

#[test]
fn silence_ends_after_the_read_timeout() {
    let (done, _, _) = read_in(Mood::Stall, |options| options.read_timeout = Nanos::from_millis(50));
    assert_eq!((done.outcome, done.bytes.get()), (ReadOutcome::Retryable, 5));
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
    assert_eq!(queue.wait()[0].outcome, ReadOutcome::Cancelled);
    assert!(scratch.into_bytes().is_ok(), "the memory came back first");
    let (origin, queue, _fake, _) = stalled();
    origin.close(Nanos::from_millis(1));
    assert_eq!(queue.wait()[0].outcome, ReadOutcome::Cancelled);
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
    assert_eq!(done.outcome, ReadOutcome::Retryable, "{done:?}");
    let uri = Uri::parse(&format!("http://{address}/x?sig=hush")).expect("a URI");
    let error = crate::probe_origin(&uri, &OriginOptions::default()).expect_err("nobody there").to_string();
    assert!(error.contains("cannot be reached") && error.contains("refused"), "{error}");
    assert!(!error.contains("hush"), "{error}");
}

#[test]
fn a_probe_tells_wrong_keys_from_a_wrong_bucket() {
    let fake = FakeS3::start();
    let probe = |uri: &str| crate::probe_origin(&Uri::parse(uri).expect("a URI"), &options(&fake));
    probe("s3://bucket/set").expect("it answers");
    let missing = probe("s3://nothere").expect_err("no such bucket").to_string();
    assert!(missing.contains("s3://nothere does not exist") && missing.contains("NoSuchBucket"), "{missing}");
    fake.set(Mood::Status(403, "SignatureDoesNotMatch"));
    let denied = probe("s3://bucket").expect_err("wrong keys").to_string();
    assert!(denied.contains("access denied") && denied.contains("SignatureDoesNotMatch"), "{denied}");
}

#[test]
fn a_web_server_that_serves_get_alone_passes_the_probe_and_is_read() {
    let fake = FakeS3::start();
    let mut shelf = Shelf::default();
    for (key, body) in [("empty", b"".as_slice()), ("full", b"123")] {
        fake.put(&format!("set/{key}"), body);
        shelf.add(key.as_bytes(), None, body.len() as u64, etag(body).as_bytes());
    }
    fake.set(Mood::RefusesHead { status: 403, ranges: false });
    let uri = Uri::parse(&format!("http://{}/bucket/set?sig=hush", fake.address)).expect("a URI");
    crate::probe_origin(&uri, &OriginOptions::default()).expect("its base need not be shown");
    let (origin, queue) = shelf::queued(|completions| {
        StoreOrigin::new(&uri, &OriginOptions::default(), Arc::new(shelf), completions).expect("an origin")
    });
    assert_eq!(read(&origin, &queue, 0, 0).0.outcome, ReadOutcome::Ok);
    assert_eq!(read(&origin, &queue, 1, 3).1, b"123");
    fake.put("set/empty", b"4");
    assert_eq!(read(&origin, &queue, 0, 0).0.outcome, ReadOutcome::Changed);
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
