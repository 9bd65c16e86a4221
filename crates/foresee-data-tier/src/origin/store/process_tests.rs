// SPDX-License-Identifier: Apache-2.0
//! Guarantees of a bucket or a web server as an origin, and the meaning of its answers.

mod refusals;

use std::sync::Arc;

use foresee_testbed::{Fault, FaultRule, MemoryServer};
use foresee_units::{Nanos, ReadOutcome};

use super::StoreOrigin;
use crate::conformance::{self, FilledTier};
use crate::test_support::{
    BUCKETS, MemoryIndex, Queue, REPOSITORY, key, keys, read, refuse_head, s3_options, serve, status,
    store_options, with_queue,
};
use crate::{Completions, Dest, Done, Op, OriginError, OriginOptions, Ticket, Tier, Uri};

fn s3() -> Uri {
    Uri::parse("s3://bucket/set").expect("a URI")
}

fn fill(server: &MemoryServer, samples: &[Vec<u8>]) -> MemoryIndex {
    let mut index = MemoryIndex::default();
    for (id, sample) in samples.iter().enumerate() {
        let key = format!("class {}/{id}+é.bin", id % 3);
        let tag = server.put("bucket", &format!("set/{key}"), sample);
        index.add(key.as_bytes(), None, sample.len() as u64, tag.as_bytes());
    }
    index.add(b"class 0/missing", None, 10, b"");
    index
}

fn open(server: &MemoryServer, index: MemoryIndex) -> (StoreOrigin, Queue) {
    with_queue(|completions| {
        StoreOrigin::new(&s3(), &s3_options(server), Arc::new(index), completions).expect("an origin")
    })
}

/// One object of ten bytes, read through S3 under these rules.
fn read_under(
    rules: Vec<FaultRule>,
    change: impl FnOnce(&mut OriginOptions),
) -> (Done, Vec<u8>, MemoryServer) {
    read_from("s3://bucket", rules, change)
}

/// One object of ten bytes, read from `bucket` under these rules.
fn read_from(
    bucket: &str,
    rules: Vec<FaultRule>,
    change: impl FnOnce(&mut OriginOptions),
) -> (Done, Vec<u8>, MemoryServer) {
    let server = serve();
    let index = fill(&server, &[vec![7; 10]]);
    let uri = Uri::parse(&format!("{bucket}/set")).expect("a URI");
    let mut options = store_options(&server, bucket);
    change(&mut options);
    let (origin, queue) = with_queue(|completions| {
        StoreOrigin::new(&uri, &options, Arc::new(index), completions).expect("an origin")
    });
    server.set_faults(rules);
    let (done, bytes) = read(&origin, &queue, 0, 10);
    (done, bytes, server)
}

/// An origin with `samples`, whose server has the given rules; without `bucket` a plain web server.
fn open_filled(
    completions: Completions,
    samples: &[Vec<u8>],
    bucket: Option<&str>,
    rules: Vec<FaultRule>,
) -> FilledTier {
    let server = serve();
    let mut index = fill(&server, samples);
    server.set_faults(rules);
    let bucket = bucket.map_or_else(|| format!("http://{}/bucket", server.address()), str::to_owned);
    let uri = Uri::parse(&format!("{bucket}/set")).expect("a URI");
    let options = store_options(&server, &bucket);
    index.own(server);
    let origin = StoreOrigin::new(&uri, &options, Arc::new(index), completions).expect("an origin");
    FilledTier { tier: Arc::new(origin), keys: keys(samples.len()), absent: key(samples.len()) }
}

#[test]
fn buckets_and_a_web_server_have_the_guarantees_of_reads() {
    for bucket in BUCKETS.map(Some).into_iter().chain([Some(REPOSITORY), None]) {
        conformance::check_reads(|completions, samples| {
            open_filled(completions, samples, bucket, Vec::new())
        });
    }
}

#[test]
fn every_ticket_ends_once_while_a_server_fails() {
    let percent = |fault: Fault, seed| FaultRule { percent: 25.0, seed, ..fault.into() };
    let faults = [
        percent(Fault::Reset, 1),
        percent(Fault::ShortBody, 2),
        percent(status(503, "")[0].fault.clone(), 3),
    ];
    for bucket in BUCKETS.into_iter().chain([REPOSITORY]) {
        conformance::check_faults(|completions, samples| {
            open_filled(completions, samples, Some(bucket), faults.to_vec())
        });
    }
}

#[test]
fn a_whole_sample_is_one_conditional_get_without_a_range() {
    for bucket in BUCKETS {
        let (done, bytes, server) = read_from(bucket, Vec::new(), |_| {});
        assert_eq!((done.outcome, bytes), (ReadOutcome::Ok, vec![7; 10]), "{done:?}");
        assert_eq!(done.detail.status, Some(200));
        assert!(done.detail.first_byte.is_some_and(|first| first <= done.service));
        let tag = server.put("bucket", "same", &[7; 10]);
        assert_eq!(server.requests(), [format!("GET /bucket/set/class 0/0+é.bin range=- if-match={tag}")]);
    }
}

#[test]
fn a_sample_inside_a_shard_is_one_range() {
    let server = serve();
    server.put("bucket", "set/shard", b"0123456789");
    let mut index = MemoryIndex::default();
    index.add(b"shard", Some(4), 3, b"");
    let (origin, queue) = open(&server, index);
    assert_eq!(read(&origin, &queue, 0, 3).1, b"456");
    assert_eq!(server.requests(), ["GET /bucket/set/shard range=bytes=4-6 if-match=-"]);
}

#[test]
fn each_answer_has_its_outcome_without_a_retry_or_a_secret() {
    let throttled = ReadOutcome::Throttled { retry_after: Some(Nanos::from_secs(7)) };
    for (rules, outcome) in [
        (status(503, "SlowDown"), throttled),
        (status(429, ""), throttled),
        (status(500, "InternalError"), ReadOutcome::Retryable),
        (status(404, "NoSuchKey"), ReadOutcome::Absent),
        (status(403, "AccessDenied"), ReadOutcome::Denied),
        (status(412, ""), ReadOutcome::Changed),
        (status(400, "InvalidRequest"), ReadOutcome::Failed),
        (vec![Fault::ShortBody.into()], ReadOutcome::Retryable),
    ] {
        for bucket in BUCKETS {
            let (done, _, server) = read_from(bucket, rules.clone(), |_| {});
            assert_eq!(done.outcome, outcome, "{bucket} {rules:?}: {done:?}");
            assert_eq!(server.requests().len(), 1, "{rules:?}: only the caller retries");
            let message = done.detail.message.expect("a failure has a message");
            assert!(message.starts_with(&format!("{bucket}/set/class 0/0+é.bin: ")), "{message}");
            assert!(!message.contains("AKIAKEY") && !message.contains("hush"), "{message}");
        }
    }
}

#[test]
fn a_short_body_reports_the_bytes_received() {
    let (done, bytes, _) = read_under(vec![Fault::ShortBody.into()], |_| {});
    assert_eq!((done.outcome, done.bytes.get()), (ReadOutcome::Retryable, 5));
    assert_eq!(bytes[..5], [7; 5]);
}

#[test]
fn another_version_is_refused_from_a_server_that_ignores_conditions() {
    let server = serve();
    let old = server.put("bucket", "set/a", b"old!");
    server.put("bucket", "set/a", b"new!");
    let mut index = MemoryIndex::default();
    index.add(b"a", None, 4, old.as_bytes());
    index.add(b"a", Some(1), 2, b"");
    index.add(b"a", None, 3, b"");
    let (origin, queue) = open(&server, index);
    assert_eq!(read(&origin, &queue, 2, 3).0.outcome, ReadOutcome::Changed, "another length");
    server.set_faults(vec![Fault::IgnoreConditions.into()]);
    assert_eq!(read(&origin, &queue, 0, 4).0.outcome, ReadOutcome::Changed, "another tag");
    assert_eq!(read(&origin, &queue, 1, 2).0.outcome, ReadOutcome::Failed, "no ranges");
}

#[test]
fn silence_ends_after_the_read_timeout() {
    let stall = vec![Fault::Stall { ms: None }.into()];
    let (done, _, _) = read_under(stall, |options| options.read_timeout = Nanos::from_millis(50));
    assert_eq!((done.outcome, done.bytes.get()), (ReadOutcome::Retryable, 5));
    assert!(done.detail.message.is_some_and(|message| message.contains("no byte came for")));
}

fn open_stalled() -> (StoreOrigin, Queue, MemoryServer, Arc<crate::Scratch>) {
    let server = serve();
    let index = fill(&server, &[vec![7; 10]]);
    server.set_faults(vec![Fault::Stall { ms: None }.into()]);
    let (origin, queue) = open(&server, index);
    let (dest, scratch) = Dest::from_vec(vec![0; 10]);
    origin.submit(Op::Read { ticket: Ticket(1), key: key(0), offset: 0, dest });
    (origin, queue, server, scratch)
}

#[test]
fn cancel_and_close_end_a_stalled_read() {
    let (origin, queue, _server, scratch) = open_stalled();
    origin.cancel(Ticket(1));
    assert_eq!(queue.wait()[0].outcome, ReadOutcome::Cancelled);
    assert!(scratch.into_bytes().is_ok(), "the memory is returned before the completion");
    let (origin, queue, _server, _) = open_stalled();
    origin.close(Nanos::from_millis(1));
    assert_eq!(queue.wait()[0].outcome, ReadOutcome::Cancelled);
    assert_eq!(origin.facts().in_flight, 0);
}

#[test]
fn an_address_without_a_server_is_retryable_and_fails_a_probe() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("an address").to_string();
    drop(free);
    let (done, ..) = read_under(Vec::new(), |options| {
        options.storage.insert("endpoint_url".to_owned(), format!("http://{address}"));
    });
    assert_eq!(done.outcome, ReadOutcome::Retryable, "{done:?}");
    let uri = Uri::parse(&format!("http://{address}/x?sig=hush")).expect("a URI");
    let error = crate::probe_origin(&uri, &OriginOptions::default()).expect_err("no server").to_string();
    assert!(error.contains("cannot be reached") && error.contains("refused"), "{error}");
    assert!(!error.contains("hush"), "{error}");
}

#[test]
fn a_probe_distinguishes_wrong_keys_from_a_wrong_bucket() {
    for bucket in BUCKETS {
        let server = serve();
        let probe = |uri: &str| {
            crate::probe_origin(&Uri::parse(uri).expect("a URI"), &store_options(&server, bucket))
        };
        probe(&format!("{bucket}/set")).expect("it answers");
        let nowhere = bucket.replace("bucket", "nowhere");
        let missing = probe(&nowhere).expect_err("no such bucket").to_string();
        assert!(missing.contains(&format!("{nowhere} does not exist (HTTP 404 NoSuchBucket")), "{missing}");
        server.set_faults(status(403, "SignatureDoesNotMatch"));
        let denied = probe(bucket).expect_err("wrong keys").to_string();
        assert!(denied.contains("access denied (HTTP 403 SignatureDoesNotMatch"), "{denied}");
    }
}

#[test]
fn a_web_server_that_only_serves_get_passes_the_probe_and_is_read() {
    let server = serve();
    let mut index = MemoryIndex::default();
    for (key, body) in [("empty", b"".as_slice()), ("full", b"123")] {
        let tag = server.put("bucket", &format!("set/{key}"), body);
        index.add(key.as_bytes(), None, body.len() as u64, tag.as_bytes());
    }
    server.set_faults(refuse_head(403, false));
    let uri = Uri::parse(&format!("http://{}/bucket/set?sig=hush", server.address())).expect("a URI");
    crate::probe_origin(&uri, &OriginOptions::default()).expect("its base need not be readable");
    let (origin, queue) = with_queue(|completions| {
        StoreOrigin::new(&uri, &OriginOptions::default(), Arc::new(index), completions).expect("an origin")
    });
    assert_eq!(read(&origin, &queue, 0, 0).0.outcome, ReadOutcome::Ok);
    assert_eq!(read(&origin, &queue, 1, 3).1, b"123");
    server.put("bucket", "set/empty", b"4");
    assert_eq!(read(&origin, &queue, 0, 0).0.outcome, ReadOutcome::Changed);
}

#[test]
fn an_unknown_setting_is_refused_without_its_value() {
    for bucket in BUCKETS {
        let mut options = store_options(&serve(), bucket);
        options.storage.insert("acces_key".to_owned(), "hush".to_owned());
        let uri = Uri::parse(bucket).expect("a URI");
        let error = crate::probe_origin(&uri, &options).expect_err("misspelt").to_string();
        assert!(error.contains("acces_key") && !error.contains("hush"), "{error}");
        assert!(!format!("{options:?}").contains("hush"));
    }
}

#[test]
fn a_range_of_an_object_is_read_directly() {
    let server = serve();
    server.put("bucket", "set/a.npy", b"0123456789");
    let reader = crate::ObjectReader::open(&s3(), &s3_options(&server)).expect("settings");
    let read = |key: &[u8], range| reader.read(key, range);
    assert_eq!(read(b"a.npy", None).expect("an object"), b"0123456789");
    assert_eq!(read(b"a.npy", Some(2..5)).expect("an object"), b"234");
    assert_eq!(read(b"a.npy", Some(8..50)).expect("an object"), b"89");
    assert!(matches!(read(b"b.npy", None), Err(OriginError::Missing { .. })));
    assert!(matches!(read(b"\xff", None), Err(OriginError::BadKey { .. })));
}
