// SPDX-License-Identifier: Apache-2.0
//! Guarantees of the planner, one per test, on runs small enough to check by hand.

use super::*;

const READER: ReaderId = ReaderId(0);
const NOW: Nanos = Nanos::ZERO;

fn planner(capacity: u64, consumers: u32) -> SampleCachePlanner {
    let config = SampleCacheConfig { capacity: Bytes::new(capacity), stall_grace: Nanos::from_secs(1) };
    let mut planner = SampleCachePlanner::new(config);
    (0..consumers).for_each(|one| planner.handle_attach(ConsumerId(one), true, NOW));
    planner
}

fn announce(planner: &mut SampleCachePlanner, consumer: u32, samples: &[u64]) {
    planner.handle_announce(ConsumerId(consumer), &mut samples.iter().copied().map(SampleId), NOW);
}

fn fetches(planner: &mut SampleCachePlanner, now: Nanos) -> Vec<u64> {
    std::iter::from_fn(|| planner.poll_fetch(READER, now)).map(|sample| sample.0).collect()
}

fn insert(planner: &mut SampleCachePlanner, sample: u64) -> bool {
    planner.handle_read(SampleId(sample), Bytes::new(1))
}

fn evictions(planner: &mut SampleCachePlanner) -> Vec<u64> {
    std::iter::from_fn(|| planner.poll_eviction()).map(|sample| sample.0).collect()
}

#[test]
fn announced_samples_are_fetched_in_order_as_far_as_they_fit() {
    let mut planner = planner(2, 1);
    announce(&mut planner, 0, &[5]);
    assert!(planner.can_fetch());
    assert_eq!(fetches(&mut planner, NOW), [5]);
    assert!(insert(&mut planner, 5));
    assert!(!planner.can_fetch());
    announce(&mut planner, 0, &[3, 4]);
    assert_eq!(fetches(&mut planner, NOW), [3]);
    assert!(insert(&mut planner, 3));
    assert!(!planner.can_fetch(), "the announced samples fill the cache");
    assert_eq!(fetches(&mut planner, NOW), [] as [u64; 0]);
    planner.handle_handed_out(ConsumerId(0), 1, NOW);
    assert_eq!(planner.handle_request(SampleId(5), READER, NOW), SampleLookup::Hit);
    assert_eq!(fetches(&mut planner, NOW), [4]);
    assert!(insert(&mut planner, 4));
    assert_eq!(evictions(&mut planner), [5]);
}

#[test]
fn a_request_joins_the_read_in_flight_and_reads_itself_after_its_failure() {
    let mut planner = planner(2, 1);
    announce(&mut planner, 0, &[7]);
    assert_eq!(fetches(&mut planner, NOW), [7]);
    assert_eq!(planner.handle_request(SampleId(7), READER, NOW), SampleLookup::Join);
    planner.handle_failed(SampleId(7));
    assert_eq!(planner.handle_retry(SampleId(7), READER, NOW), SampleLookup::Read);
    assert!(insert(&mut planner, 7));
    assert!(!insert(&mut planner, 7), "there is no second read");
    assert_eq!((planner.used(), planner.len()), (Bytes::new(1), 1));
}

#[test]
fn nothing_is_fetched_for_a_consumer_before_its_first_request() {
    let mut planner = planner(4, 0);
    planner.handle_attach(ConsumerId(0), false, NOW);
    announce(&mut planner, 0, &[1, 2]);
    planner.handle_handed_out(ConsumerId(0), 1, NOW);
    assert_eq!(fetches(&mut planner, NOW), [] as [u64; 0]);
    assert_eq!(planner.handle_request(SampleId(1), READER, NOW), SampleLookup::Read);
    assert_eq!(fetches(&mut planner, NOW), [2]);
}

#[test]
fn samples_of_a_consumer_that_stands_still_leave_for_those_of_another() {
    let mut planner = planner(2, 2);
    announce(&mut planner, 0, &[1, 2]);
    assert_eq!(fetches(&mut planner, NOW), [1, 2]);
    assert!(insert(&mut planner, 1) && insert(&mut planner, 2));
    let later = Nanos::from_secs(2);
    announce(&mut planner, 1, &[3]);
    assert_eq!(fetches(&mut planner, NOW), [] as [u64; 0]);
    planner.handle_announce(ConsumerId(1), &mut [SampleId(4)].into_iter(), later);
    assert_eq!(planner.poll_fetch(READER, later), Some(SampleId(3)));
    assert!(insert(&mut planner, 3));
    assert_eq!(evictions(&mut planner), [2]);
}

#[test]
fn an_access_that_is_never_requested_keeps_its_sample_only_until_later_ones_were() {
    let mut planner = planner(2, 1);
    announce(&mut planner, 0, &[1, 2, 3, 4]);
    for count in 1..=3 {
        planner.handle_handed_out(ConsumerId(0), count, NOW);
    }
    planner.handle_request(SampleId(2), READER, NOW);
    assert_eq!(planner.outstanding(ConsumerId(0)), Some((2, 0)));
    planner.handle_handed_out(ConsumerId(0), 4, NOW);
    planner.handle_request(SampleId(4), READER, NOW);
    assert_eq!(planner.outstanding(ConsumerId(0)), Some((1, 1)));
}

#[test]
fn samples_of_an_ended_consumer_leave_before_those_that_are_expected() {
    let mut planner = planner(2, 2);
    planner.handle_expect(ConsumerId(0), &mut [1].into_iter().map(SampleId));
    planner.handle_expect(ConsumerId(1), &mut [2, 3, 4, 2, 3].into_iter().map(SampleId));
    for sample in [1, 2] {
        assert_eq!(planner.handle_request(SampleId(sample), READER, NOW), SampleLookup::Read);
        assert!(insert(&mut planner, sample));
    }
    planner.handle_detach(ConsumerId(0), NOW);
    announce(&mut planner, 1, &[2, 3, 4]);
    planner.handle_handed_out(ConsumerId(1), 3, NOW);
    for (sample, answer) in [(2, SampleLookup::Hit), (3, SampleLookup::Read)] {
        assert_eq!(planner.handle_request(SampleId(sample), READER, NOW), answer);
    }
    assert!(insert(&mut planner, 3));
    assert_eq!(evictions(&mut planner), [1]);
}

#[test]
fn expected_accesses_end_where_the_announced_ones_differ() {
    let mut planner = planner(1, 1);
    planner.handle_expect(ConsumerId(0), &mut [1, 2, 1].into_iter().map(SampleId));
    announce(&mut planner, 0, &[1]);
    assert_eq!(planner.next_access(2), NextAccess::Expected { at: 1 });
    announce(&mut planner, 0, &[3]);
    assert_eq!(planner.next_access(2), NextAccess::Unknown);
    assert_eq!(planner.next_access(1), NextAccess::Announced { at: 0 });
    assert_eq!(planner.next_access(3), NextAccess::Announced { at: 1 });
}
