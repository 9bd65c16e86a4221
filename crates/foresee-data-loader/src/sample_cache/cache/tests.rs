// SPDX-License-Identifier: Apache-2.0
//! Requests, reads and announcements of one cache, without worker processes.

use std::ops::Range;
use std::sync::mpsc;
use std::thread;

use super::*;

const SAMPLE: SampleId = SampleId(3);

#[test]
fn a_sample_is_read_once_and_then_answered_from_memory() {
    let cache = SampleCache::new(Bytes::new(64));
    assert!(matches!(cache.request(SAMPLE, false), SampleAnswer::Read));
    cache.insert(SAMPLE, b"bytes");
    let SampleAnswer::Bytes(bytes) = cache.request(SAMPLE, false) else { panic!("it is cached") };
    assert_eq!(&*bytes, b"bytes");
    let counts = cache.counts();
    assert_eq!((counts.hits, counts.misses, counts.samples, counts.bytes), (1, 1, 1, 64));
}

#[test]
fn requests_that_join_a_read_get_its_bytes_also_if_they_do_not_fit() {
    let cache = SampleCache::new(Bytes::new(4));
    assert!(matches!(cache.request(SAMPLE, false), SampleAnswer::Read));
    let SampleAnswer::Join(read) = cache.request(SAMPLE, false) else { panic!("it is read") };
    assert_eq!(cache.wait(&read, Duration::ZERO), SharedOutcome::InFlight);
    cache.insert(SAMPLE, b"bytes");
    let SharedOutcome::Read(bytes) = cache.wait(&read, Duration::ZERO) else { panic!("it was read") };
    assert_eq!((&*bytes, cache.counts().bypasses), (&b"bytes"[..], 1));
}

#[test]
fn after_a_failed_read_the_first_request_that_joined_reads() {
    let cache = SampleCache::new(Bytes::new(64));
    assert!(matches!(cache.request(SAMPLE, false), SampleAnswer::Read));
    let SampleAnswer::Join(read) = cache.request(SAMPLE, false) else { panic!("it is read") };
    cache.fail(SAMPLE);
    assert_eq!(cache.wait(&read, Duration::ZERO), SharedOutcome::Failed);
    assert!(matches!(cache.request(SAMPLE, true), SampleAnswer::Read));
    assert!(matches!(cache.request(SAMPLE, true), SampleAnswer::Join(_)));
}

#[test]
fn announced_samples_are_fetched_until_the_cache_is_closed() {
    let cache = SampleCache::new(Bytes::new(64));
    cache.attach(ConsumerId(0), true);
    cache.announce(ConsumerId(0), &mut [SAMPLE].into_iter());
    assert_eq!(cache.next_fetch(), [SAMPLE]);
    cache.insert(SAMPLE, b"bytes");
    cache.hand_out(ConsumerId(0), 1);
    assert_eq!(cache.outstanding(ConsumerId(0)), Some((1, 0)));
    assert!(matches!(cache.request(SAMPLE, false), SampleAnswer::Bytes(_)));
    assert_eq!(cache.outstanding(ConsumerId(0)), Some((0, 0)));
    cache.close();
    assert_eq!(cache.next_fetch(), []);
}

#[test]
fn one_announcement_wakes_a_reader_for_each_sample() {
    const READERS: u64 = 4;
    let cache = SampleCache::new(Bytes::new(1024));
    let (fetched, fetches) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..READERS {
            // None reads its sample to the end, so that each needs a wake-up of its own.
            let (cache, fetched) = (&cache, fetched.clone());
            scope.spawn(move || fetched.send(cache.next_fetch()).expect("the test waits"));
        }
        cache.attach(ConsumerId(0), true);
        cache.announce(ConsumerId(0), &mut (0..READERS).map(SampleId));
        let mut groups: Vec<_> =
            (0..READERS).map_while(|_| fetches.recv_timeout(Duration::from_secs(60)).ok()).collect();
        cache.close();
        groups.sort_unstable();
        assert_eq!(groups, (0..READERS).map(|sample| vec![SampleId(sample)]).collect::<Vec<_>>());
    });
}

#[test]
fn samples_announced_while_others_last_are_fetched_after_a_pause() {
    const CONSUMER: ConsumerId = ConsumerId(0);
    let cache = SampleCache::new(Bytes::new(1 << 16));
    cache.attach(CONSUMER, true);
    let announce = |samples: Range<u64>| cache.announce(CONSUMER, &mut samples.map(SampleId));
    announce(0..8);
    for sample in (0..8).map(SampleId) {
        assert_eq!(cache.next_fetch(), [sample]);
        cache.insert(sample, b"bytes");
    }
    cache.hand_out(CONSUMER, 4);
    let found = cache.request_cached(&[0, 1, 2, 3].map(SampleId));
    assert!(found.iter().all(Option::is_some), "they were fetched");
    announce(8..12);
    assert_eq!(cache.next_fetch(), [SampleId(8)]);
}
