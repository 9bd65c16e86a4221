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

fn group(planner: &mut SampleCachePlanner, grouping: FetchGrouping<'_>) -> Vec<u64> {
    planner.poll_fetch_group(READER, grouping, NOW).into_iter().map(|sample| sample.0).collect()
}

/// Rows of `len` bytes in one object.
fn with_rows<T>(len: u64, holds_all: bool, has_peers: bool, plan: impl FnOnce(FetchGrouping<'_>) -> T) -> T {
    let range_of = move |SampleId(id): SampleId| {
        Some(crate::ObjectRange { object: 0, start: id * len, len }).filter(|_| id < 20_000)
    };
    plan(FetchGrouping::Neighbours(NeighbourGroups { range_of: &range_of, holds_all, has_peers }))
}

#[test]
fn a_group_in_order_has_as_many_samples_as_its_consumer_has_before_it() {
    let mut planner = planner(10_000, 1);
    announce(&mut planner, 0, &(0..200).collect::<Vec<_>>());
    assert_eq!(group(&mut planner, FetchGrouping::InOrder), [0], "no size is known");
    assert!(insert(&mut planner, 0));
    for (first, end) in [(1, 9), (9, 18), (18, 36), (36, 72), (72, 136), (136, 200)] {
        assert_eq!(group(&mut planner, FetchGrouping::InOrder), (first..end).collect::<Vec<_>>());
    }
    assert_eq!(group(&mut planner, FetchGrouping::InOrder), [0; 0]);
}

#[test]
fn a_group_in_order_has_at_most_an_eighth_of_the_capacity() {
    let mut planner = planner(32, 1);
    announce(&mut planner, 0, &(0..40).collect::<Vec<_>>());
    assert_eq!(group(&mut planner, FetchGrouping::InOrder), [0]);
    assert!(insert(&mut planner, 0));
    let sizes: Vec<usize> = (0..9).map(|_| group(&mut planner, FetchGrouping::InOrder).len()).collect();
    assert_eq!(sizes, [4, 4, 4, 4, 4, 4, 4, 3, 0], "the announced samples fill the cache");
}

#[test]
fn a_cache_for_all_samples_reads_neighbours_without_a_known_use_unless_they_are_left_to_others() {
    for (has_peers, expected) in [(false, (0..4096).collect::<Vec<u64>>()), (true, vec![0])] {
        let mut planner = planner(1 << 30, 1);
        announce(&mut planner, 0, &[0, 10_000]);
        assert_eq!(with_rows(35, true, has_peers, |grouping| group(&mut planner, grouping)), expected);
    }
    let mut planner = planner(1 << 30, 1);
    announce(&mut planner, 0, &[0, 10_000]);
    planner.handle_expect(ConsumerId(0), &mut (1..50).map(SampleId));
    let whole = with_rows(35, true, false, |grouping| group(&mut planner, grouping));
    assert_eq!(whole, (0..50).collect::<Vec<_>>(), "the order is known");
}

#[test]
fn a_smaller_cache_reads_announced_neighbours_up_to_half_of_it() {
    let mut planner = planner(64, 1);
    announce(&mut planner, 0, &[7]);
    assert_eq!(with_rows(35, false, false, |grouping| group(&mut planner, grouping)), [7]);
    assert!(insert(&mut planner, 7));
    let order: Vec<u64> = (0..100).rev().filter(|id| *id != 7).collect();
    announce(&mut planner, 0, &order);
    let members = with_rows(35, false, false, |grouping| group(&mut planner, grouping));
    assert_eq!((members[0], members.len()), (99, 31));
}

#[test]
fn a_batch_that_misses_many_samples_of_a_block_reads_it_and_another_one_reads_only_these() {
    let claim = |planner: &mut SampleCachePlanner, samples: &[u64], len| {
        let samples: Vec<SampleId> = samples.iter().copied().map(SampleId).collect();
        with_rows(len, true, false, |grouping| planner.handle_claim(&samples, READER, grouping, NOW))
    };
    let mut small = planner(1 << 30, 0);
    assert_eq!(claim(&mut small, &[5, 9000, 300, 5], 35).len(), 3, "a block of 700 KB is worth 22 requests");
    let batch: Vec<u64> = (0..40).map(|place| 100 + place * 50).collect();
    let claimed = claim(&mut small, &batch, 35);
    assert_eq!((claimed.len(), claimed[0]), (4096, SampleId(100)));
    assert_eq!(claim(&mut small, &batch, 35), [], "all are in flight");
}

#[test]
fn claimed_samples_count_as_requests() {
    let mut planner = planner(100, 0);
    planner.handle_attach(ConsumerId(0), false, NOW);
    announce(&mut planner, 0, &[1, 2, 3, 4]);
    planner.handle_handed_out(ConsumerId(0), 3, NOW);
    let samples = [1, 2].map(SampleId);
    assert_eq!(planner.handle_claim(&samples, READER, FetchGrouping::InOrder, NOW), samples);
    assert_eq!(planner.outstanding(ConsumerId(0)), Some((1, 0)));
    assert_eq!(planner.handle_request(SampleId(2), READER, NOW), SampleLookup::Join);
    assert_eq!(fetches(&mut planner, NOW), [3, 4]);
}

#[test]
fn announced_samples_with_a_read_of_their_own_are_left_to_the_readers_ahead_while_there_is_space() {
    let claim = |planner: &mut SampleCachePlanner, samples: [u64; 3]| {
        let samples = samples.map(SampleId);
        with_rows(1 << 20, true, false, |grouping| planner.handle_claim(&samples, READER, grouping, NOW))
    };
    let mut planner = planner(2, 1);
    announce(&mut planner, 0, &[1, 2, 3, 4]);
    planner.handle_handed_out(ConsumerId(0), 4, NOW);
    assert_eq!(claim(&mut planner, [1, 2, 9]), [SampleId(9)]);
    assert_eq!(fetches(&mut planner, NOW), [1, 2, 3, 4], "the size of a sample is unknown");
    for sample in [1, 2] {
        assert!(insert(&mut planner, sample));
    }
    for sample in [3, 4] {
        planner.handle_failed(SampleId(sample));
    }
    assert!(!planner.can_fetch());
    assert_eq!(claim(&mut planner, [2, 3, 4]), [3, 4].map(SampleId));
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
