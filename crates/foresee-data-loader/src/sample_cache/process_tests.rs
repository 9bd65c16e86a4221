// SPDX-License-Identifier: Apache-2.0
//! A shared cache and its clients, over real sockets and shared memory. Clients are in this process: what they do does not
//! depend on it.

use std::sync::Arc;
use std::time::Duration;

use foresee_data_node::{
    ConnectOptions, NodeAddress, NodeError, SampleCacheConnection, SampleCacheRequest, SentBytes,
};
use foresee_data_plan::ConsumerId;
use foresee_testkit::{WATCHDOG, wait_until};
use foresee_units::{Bytes, SampleId};

use super::*;

const SAMPLES: u64 = 10;
const ONE: SampleId = SampleId(1);
const TWO: SampleId = SampleId(2);
const CONSUMER: ConsumerId = ConsumerId(0);
const TICK: Duration = Duration::from_millis(10);

fn shared(capacity: u64) -> (Arc<SampleCache>, SampleCacheHost) {
    let cache = Arc::new(SampleCache::new(Bytes::new(capacity)));
    let host = SampleCacheHost::start(Arc::clone(&cache), SAMPLES).expect("a socket");
    (cache, host)
}

fn connect(host: &SampleCacheHost) -> SampleCacheClient {
    SampleCacheClient::connect(host.path(), SAMPLES).expect("a host")
}

/// The answer to a request that comes soon.
fn answer(client: &SampleCacheClient, request: &PendingRequest) -> RemoteAnswer {
    let mut answer = None;
    wait_until("an answer", || {
        answer = client.wait(request, TICK);
        answer.is_some()
    });
    answer.expect("as awaited")
}

/// Request a sample that nobody reads.
fn read(client: &SampleCacheClient, sample: SampleId, bytes: &[u8]) {
    let request = client.request(sample).expect("a host");
    assert_eq!(answer(client, &request), RemoteAnswer::Read);
    client.insert(sample, bytes);
}

/// A message with samples of one byte in all.
fn insert_all(samples: Vec<u64>, lens: Vec<u64>) -> SampleCacheRequest {
    SampleCacheRequest::InsertAll { samples, lens, bytes: SentBytes::Inline(vec![7]) }
}

/// One process reads [`ONE`], and another one waits for it.
fn read_and_join(
    cache: &SampleCache,
    reader: &SampleCacheClient,
    waiting: &SampleCacheClient,
) -> PendingRequest {
    let reading = reader.request(ONE).expect("a host");
    assert_eq!(answer(reader, &reading), RemoteAnswer::Read);
    let joined = waiting.request(ONE).expect("a host");
    wait_until("the request", || cache.counts().joins == 1);
    joined
}

#[test]
fn what_one_process_has_read_another_copies_from_memory() {
    let (cache, host) = shared(1 << 20);
    let (first, second) = (connect(&host), connect(&host));
    for (sample, len) in [(ONE, 100), (TWO, 100_000), (SampleId(3), 0)] {
        let bytes = vec![7; len];
        read(&first, sample, &bytes);
        let mut copy = None;
        wait_until("the sample", || {
            copy = second.copy(sample);
            copy.is_some()
        });
        assert_eq!(copy.expect("as awaited"), bytes);
        let SampleAnswer::Bytes(own) = cache.request(sample, false) else { panic!("it is cached") };
        assert_eq!(*own, bytes);
    }
    second.note_disk_hit();
    let counts = second.counts().expect("a host");
    assert_eq!((counts.hits, counts.misses, counts.disk_hits, counts.samples), (6, 3, 1, 3));
    assert_eq!(counts, cache.counts());
}

#[test]
fn samples_cached_before_the_cache_is_shared_stay() {
    let cache = Arc::new(SampleCache::new(Bytes::new(1000)));
    assert!(matches!(cache.request(ONE, false), SampleAnswer::Read));
    cache.insert(ONE, b"bytes");
    let host = SampleCacheHost::start(cache, SAMPLES).expect("a socket");
    assert_eq!(connect(&host).copy(ONE).expect("it is cached"), b"bytes");
}

#[test]
fn requests_of_all_processes_join_one_read() {
    let (cache, host) = shared(1 << 20);
    let (first, second) = (connect(&host), connect(&host));
    let joined = read_and_join(&cache, &first, &second);
    let SampleAnswer::Join(own) = cache.request(ONE, false) else { panic!("it is being read") };
    assert_eq!(second.wait(&joined, Duration::ZERO), None);
    first.insert(ONE, b"bytes");
    assert_eq!(answer(&second, &joined), RemoteAnswer::Bytes(b"bytes".to_vec()));
    assert_eq!(cache.wait(&own, TICK), SharedOutcome::Read(b"bytes"[..].into()));
}

#[test]
fn a_sample_that_does_not_fit_still_reaches_those_who_wait_for_it() {
    let (cache, host) = shared(64);
    let (first, second) = (connect(&host), connect(&host));
    let joined = read_and_join(&cache, &first, &second);
    first.insert(ONE, &[3; 5000]);
    assert_eq!(answer(&second, &joined), RemoteAnswer::Bytes(vec![3; 5000]));
    assert_eq!((cache.counts().bypasses, cache.counts().samples), (1, 0));
}

#[test]
fn another_process_reads_what_a_lost_one_has_not() {
    let (cache, host) = shared(1 << 20);
    let (first, second) = (connect(&host), connect(&host));
    let joined = read_and_join(&cache, &first, &second);
    drop(first);
    assert_eq!(answer(&second, &joined), RemoteAnswer::Read);
    second.insert(ONE, b"bytes");
    wait_until("the sample", || second.copy(ONE).is_some());
}

#[test]
fn announced_samples_are_read_ahead_by_worker_processes_while_there_are_any() {
    let (cache, host) = shared(1 << 20);
    let client = connect(&host);
    cache.attach(CONSUMER, true);
    cache.announce(CONSUMER, &mut [ONE, TWO].into_iter());
    assert_eq!(client.next_fetch(), [ONE]);
    client.insert(ONE, b"one");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| cache.next_fetch());
        drop(client);
        assert_eq!(waiting.join().expect("no panic"), [TWO]);
    });
}

#[test]
fn a_wait_for_a_sample_to_read_ahead_ends_when_the_client_closes() {
    let (cache, host) = shared(1 << 20);
    let client = connect(&host);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.next_fetch());
        client.close();
        assert_eq!(waiting.join().expect("no panic"), []);
    });
    assert_eq!(client.next_fetch(), []);
    assert_eq!((client.fault(), cache.counts().fetches), (None, 0));
}

#[test]
fn hits_count_as_accesses_of_their_consumer() {
    let (cache, host) = shared(1 << 20);
    let client = connect(&host);
    cache.attach(CONSUMER, true);
    cache.announce(CONSUMER, &mut [ONE].into_iter());
    cache.hand_out(CONSUMER, 1);
    assert_eq!(client.next_fetch(), [ONE]);
    client.insert(ONE, b"one");
    wait_until("the sample", || client.copy(ONE).is_some());
    client.counts().expect("a host");
    assert_eq!(cache.outstanding(CONSUMER), Some((0, 0)));
}

#[test]
fn without_its_host_a_client_behaves_as_an_empty_cache() {
    let (_cache, host) = shared(1 << 20);
    let client = connect(&host);
    read(&client, ONE, b"one");
    let reading = client.request(TWO).expect("a host");
    assert_eq!(answer(&client, &reading), RemoteAnswer::Read);
    let path = host.path().to_owned();
    drop(host);
    client.insert(TWO, b"two");
    assert!(client.request(SampleId(3)).is_none());
    assert!(
        client.fault().is_some_and(|fault| fault.contains("closed the connection")),
        "{:?}",
        client.fault()
    );
    assert_eq!((client.copy(ONE), client.next_fetch(), client.counts()), (None, Vec::new(), None));
    assert_eq!(client.claim(&[ONE, TWO]), [ONE, TWO]);
    assert!(!path.exists());
    let again = SampleCacheClient::connect(&path, SAMPLES);
    assert!(matches!(again, Err(NodeError::NoHost { .. })), "{again:?}");
}

#[test]
fn a_dataset_of_another_length_is_refused() {
    let (_cache, host) = shared(1 << 20);
    let refused =
        SampleCacheClient::connect(host.path(), SAMPLES + 1).expect_err("another length").to_string();
    assert!(refused.contains("11 samples in the worker process and 10 in the process"), "{refused}");
}

#[test]
fn a_connection_that_names_a_sample_outside_of_the_dataset_ends() {
    let (cache, host) = shared(1 << 20);
    let address = NodeAddress::explicit(host.path()).expect("a path");
    let options = ConnectOptions { allow_uids: Vec::new(), timeout: WATCHDOG };
    let outside = [
        SampleCacheRequest::Request { sample: SAMPLES, is_retry: false },
        SampleCacheRequest::Hits(vec![0, SAMPLES]),
        SampleCacheRequest::Fail { sample: u64::MAX },
        SampleCacheRequest::Claim { samples: vec![0, SAMPLES] },
        insert_all(vec![SAMPLES], vec![1]),
        insert_all(vec![1, 2], vec![1]),
        insert_all(vec![1], vec![2]),
        insert_all(vec![1, 2], vec![0, 0]),
    ];
    for message in outside {
        let (connection, _) = SampleCacheConnection::open(&address, SAMPLES, &options).expect("a host");
        connection.send(message, WATCHDOG).expect("a host");
        assert!(matches!(connection.receive(WATCHDOG), Err(NodeError::Ended)));
    }
    assert_eq!((cache.counts().hits, cache.counts().misses), (0, 0));
    read(&connect(&host), ONE, b"one");
}

#[test]
fn several_samples_are_claimed_and_inserted_at_once() {
    let (cache, host) = shared(1 << 20);
    let (first, second) = (connect(&host), connect(&host));
    assert_eq!(first.claim(&[ONE, TWO]), [ONE, TWO]);
    assert_eq!(second.claim(&[TWO, SampleId(3)]), [SampleId(3)]);
    let joined = second.request(TWO).expect("a host");
    let large = vec![2; 2 << 20];
    first.insert_all(&[(ONE, b"one"), (TWO, b"two")]);
    assert_eq!(answer(&second, &joined), RemoteAnswer::Bytes(b"two".to_vec()));
    assert_eq!(second.copy(ONE).expect("it is cached"), b"one");
    second.insert_all(&[(SampleId(3), &large)]);
    wait_until("the end of the read", || cache.counts().bypasses == 1);
    assert_eq!((cache.counts().misses, cache.counts().joins), (3, 1));
}

#[test]
fn announced_samples_of_a_dataset_that_reads_batches_are_read_ahead_together() {
    let capacity = Bytes::new(1 << 20);
    let cache = Arc::new(SampleCache::with_grouping(capacity, SampleGrouping::InOrder));
    let host = SampleCacheHost::start(Arc::clone(&cache), SAMPLES).expect("a socket");
    let client = connect(&host);
    cache.attach(CONSUMER, true);
    cache.announce(CONSUMER, &mut (0..SAMPLES).map(SampleId));
    assert_eq!(client.next_fetch(), [SampleId(0)], "no size is known");
    client.insert(SampleId(0), b"zero");
    let group = client.next_fetch();
    assert_eq!(group, (1..9).map(SampleId).collect::<Vec<_>>());
    let reads: Vec<(SampleId, &[u8])> = group.iter().map(|&sample| (sample, &b"data"[..])).collect();
    client.insert_all(&reads);
    wait_until("the samples", || cache.counts().samples == 9);
    assert_eq!((client.next_fetch(), cache.counts().fetches), (vec![SampleId(9)], 10));
}

#[test]
fn a_sample_without_a_contiguous_place_takes_that_of_one_used_later() {
    let (cache, _host) = shared(4 * 128);
    let (small, large) = ([1; 100], [2; 200]);
    for sample in 0..4 {
        assert!(matches!(cache.request(SampleId(sample), false), SampleAnswer::Read));
        cache.insert(SampleId(sample), &small);
    }
    cache.attach(CONSUMER, true);
    // Samples 1 and 3 leave for the large one, and their places do not touch.
    cache.expect(CONSUMER, &mut [8, 0, 2].into_iter().map(SampleId));
    assert!(matches!(cache.request(SampleId(8), false), SampleAnswer::Read));
    cache.insert(SampleId(8), &large);
    let SampleAnswer::Bytes(bytes) = cache.request(SampleId(8), false) else { panic!("it has a place") };
    assert_eq!(*bytes, large);
    assert_eq!(cache.counts().evictions, 3);
}
