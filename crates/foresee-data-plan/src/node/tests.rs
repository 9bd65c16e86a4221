// SPDX-License-Identifier: Apache-2.0
//! Rules of the planner of a node, one per test, on nodes small enough to check by hand.

mod early_store;
mod groups;
mod model;
mod read_ahead;
mod reserved;

use foresee_units::{ReadOutcome, Source};

use super::*;
use crate::capacity::TierCapacity;

/// Milliseconds of the settings below.
const INTERVAL_MS: u64 = 10;
const GRACE_MS: u64 = 100;
const PIN_MS: u64 = 1_000;

const A: ConsumerId = ConsumerId(0);
const B: ConsumerId = ConsumerId(1);

fn ms(millis: u64) -> Nanos {
    Nanos::from_millis(millis)
}

fn planner(memory: u64, disk: u64, stalled_bytes_max: u64) -> NodePlanner {
    let tier = |capacity| TierCapacity { capacity: Bytes::new(capacity), align: 1, overhead: Bytes::ZERO };
    NodePlanner::new(&NodePlannerConfig {
        memory: tier(memory),
        disk: tier(disk),
        table_budget: Bytes::new(1 << 20),
        read_ahead: Bytes::ZERO,
        initial_interval: ms(INTERVAL_MS),
        stall_grace: ms(GRACE_MS),
        stalled_bytes_max: Bytes::new(stalled_bytes_max),
        pin_timeout: ms(PIN_MS),
    })
}

/// A planner with entries of these sizes, and consumers that announced these entries.
fn node(memory: u64, disk: u64, sizes: &[u64], orders: &[&[u32]]) -> NodePlanner {
    let mut node = planner(memory, disk, u64::MAX);
    for &size in sizes {
        node.handle_entry(Bytes::new(size)).unwrap();
    }
    for (consumer, order) in (0..).map(ConsumerId).zip(orders) {
        node.handle_attach(consumer, ms(0));
        announce(&mut node, consumer, order);
    }
    node
}

fn announce(node: &mut NodePlanner, consumer: ConsumerId, entries: &[u32]) {
    node.handle_epoch(consumer, &mut entries.iter().copied().map(EntryId), Nanos::ZERO);
}

fn request(node: &mut NodePlanner, consumer: ConsumerId, access: u64, deadline: u64) {
    node.handle_request(consumer, access, ms(deadline), Nanos::ZERO).unwrap();
}

fn actions(node: &mut NodePlanner, now: u64) -> Vec<NodeAction> {
    std::iter::from_fn(|| node.poll_action(ms(now))).collect()
}

fn done(node: &mut NodePlanner, entry: u32) {
    node.handle_read(EntryId(entry), ReadOutcome::Ok, Nanos::ZERO);
}

/// Request an access, execute what is needed for the answer, and release it; return the actions.
fn consume(node: &mut NodePlanner, consumer: ConsumerId, access: u64) -> Vec<NodeAction> {
    request(node, consumer, access, 0);
    let mut all = Vec::new();
    while let Some(action) = node.poll_action(Nanos::ZERO) {
        match action {
            NodeAction::Read { entry, .. } => node.handle_read(entry, ReadOutcome::Ok, Nanos::ZERO),
            NodeAction::Store { entry } => node.handle_stored(entry, ReadOutcome::Ok, Nanos::ZERO),
            NodeAction::Answer { consumer, access, .. } => node.handle_release(consumer, access),
            _ => {}
        }
        all.push(action);
    }
    all
}

fn read(entry: u32, from: Source, deadline: u64) -> NodeAction {
    NodeAction::Read { entry: EntryId(entry), from, deadline: ms(deadline), group: None }
}

fn answer(consumer: ConsumerId, access: u64, entry: u32, source: Source) -> NodeAction {
    NodeAction::Answer { consumer, access, entry: EntryId(entry), source }
}

fn evict(entry: u32, tier: NodeTier) -> NodeAction {
    NodeAction::Evict { entry: EntryId(entry), tier }
}

fn store(entry: u32) -> NodeAction {
    NodeAction::Store { entry: EntryId(entry) }
}

#[test]
fn a_request_joins_the_read_in_flight_and_may_make_it_more_urgent() {
    let mut node = node(9, 0, &[1], &[&[0, 0], &[0]]);
    request(&mut node, A, 0, 50);
    assert_eq!(actions(&mut node, 0), [read(0, Source::Origin, 50)]);
    request(&mut node, A, 1, 70);
    assert_eq!(actions(&mut node, 0), []);
    request(&mut node, B, 0, 20);
    let urgent = NodeAction::Prioritize { entry: EntryId(0), deadline: ms(20) };
    assert_eq!(actions(&mut node, 0), [urgent]);
    done(&mut node, 0);
    let waiters = [(B, 0, Source::Origin), (A, 0, Source::Ram), (A, 1, Source::Ram)];
    let answers = waiters.map(|(one, access, source)| answer(one, access, 0, source));
    assert_eq!(actions(&mut node, 0), answers);
}

#[test]
fn an_answered_entry_stays_until_every_consumer_has_released_it() {
    let mut node = node(1, 0, &[1, 1], &[&[0, 1], &[0]]);
    request(&mut node, A, 0, 0);
    request(&mut node, B, 0, 0);
    actions(&mut node, 0);
    done(&mut node, 0);
    request(&mut node, A, 1, 0);
    assert_eq!(actions(&mut node, 0).len(), 2);
    node.handle_release(A, 0);
    assert_eq!(actions(&mut node, 0), []);
    node.handle_release(B, 0);
    assert_eq!(actions(&mut node, 0), [evict(0, NodeTier::Memory), read(1, Source::Origin, 0)]);
}

#[test]
fn a_pin_is_taken_back_after_its_timeout_only_if_a_request_waits() {
    let mut node = node(1, 0, &[1, 1], &[&[0], &[1]]);
    request(&mut node, A, 0, 0);
    actions(&mut node, 0);
    node.handle_read(EntryId(0), ReadOutcome::Ok, ms(5));
    actions(&mut node, 2 * PIN_MS);
    assert_eq!(node.poll_timeout(), None);
    assert_eq!(node.handle_request(B, 0, ms(2 * PIN_MS), ms(2 * PIN_MS)), Ok(()));
    let take_back = NodeAction::TakeBack { consumer: A, access: 0, entry: EntryId(0) };
    let next = [take_back, evict(0, NodeTier::Memory), read(1, Source::Origin, 2 * PIN_MS)];
    assert_eq!(actions(&mut node, 2 * PIN_MS), next);
    // The consumer requests again, and waits until the pin of the other one is over.
    assert_eq!(node.handle_request(A, 0, ms(0), ms(2 * PIN_MS)), Ok(()));
    done(&mut node, 1);
    assert_eq!(actions(&mut node, 2 * PIN_MS), [answer(B, 0, 1, Source::Origin)]);
    assert_eq!(node.poll_timeout(), Some(ms(3 * PIN_MS)));
    assert_eq!(actions(&mut node, 3 * PIN_MS - 1), []);
    assert_eq!(actions(&mut node, 3 * PIN_MS).len(), 3);
    node.handle_release(B, 0);
    assert_eq!(
        node.handle_request(B, 0, ms(0), ms(0)).unwrap_err().to_string(),
        "consumer 1 requested access 0, \
        but its announced accesses are 1 to 1 (exclusive); request announced accesses once and in order"
    );
}

#[test]
fn requests_wait_in_order_of_their_deadlines_and_alternate_at_equal_ones() {
    let mut node = node(1, 0, &[1; 7], &[&[0, 1, 2, 3], &[4, 5, 6]]);
    request(&mut node, A, 0, 0);
    actions(&mut node, 0);
    for access in 1..4 {
        request(&mut node, A, access, 30);
    }
    for access in 0..2 {
        request(&mut node, B, access, 30);
    }
    request(&mut node, B, 2, 20);
    let mut order = Vec::new();
    for _ in 0..7 {
        let entry = *node.active.keys().find(|entry| node.residents.is(**entry, flag::READING)).unwrap();
        order.push(entry);
        done(&mut node, entry);
        let (consumer, access) = if entry < 4 { (A, entry) } else { (B, entry - 4) };
        node.handle_release(consumer, access.into());
        actions(&mut node, 0);
    }
    assert_eq!(order, [0, 6, 1, 4, 2, 5, 3]);
}

#[test]
fn a_request_without_haste_is_not_passed_over_for_longer_than_a_minute() {
    let mut node = node(1, 0, &[1; 3], &[&[0, 1], &[2]]);
    request(&mut node, A, 0, 0);
    actions(&mut node, 0);
    node.handle_request(B, 0, Nanos::MAX, ms(1)).unwrap();
    node.handle_request(A, 1, ms(0), ms(60_002)).unwrap();
    done(&mut node, 0);
    node.handle_release(A, 0);
    assert_eq!(actions(&mut node, 60_002)[2], read(2, Source::Origin, 60_001));
}

#[test]
fn the_entry_that_every_consumer_uses_latest_is_evicted() {
    // B uses entry 0 soon in accesses; with its rate, late.
    for (interval, victim) in [(1, 1), (100, 0)] {
        let mut node = node(2, 0, &[1; 3], &[&[0, 1, 2, 2, 2, 2, 1], &[2, 2, 0]]);
        consume(&mut node, A, 0);
        consume(&mut node, A, 1);
        node.handle_progress(A, 2, Some(ms(10)), ms(0));
        node.handle_progress(B, 0, Some(ms(interval)), ms(0));
        assert_eq!(consume(&mut node, A, 2)[0], evict(victim, NodeTier::Memory), "interval {interval}");
    }
}

#[test]
fn entries_without_an_announced_use_leave_first_the_longest_unused_before_others() {
    let mut node = node(3, 0, &[1; 6], &[&[0, 1, 2, 1, 3, 4, 5, 0]]);
    (0..4).for_each(|access| _ = consume(&mut node, A, access));
    let victims: Vec<_> = (4..7).map(|access| consume(&mut node, A, access)[0]).collect();
    assert_eq!(victims, [2, 1, 3].map(|entry| evict(entry, NodeTier::Memory)));
    assert_eq!(consume(&mut node, A, 7), [answer(A, 7, 0, Source::Ram)]);
}

#[test]
fn an_entry_announced_later_is_no_longer_without_a_use() {
    let mut node = node(2, 0, &[1; 3], &[&[0, 1, 2]]);
    (0..2).for_each(|access| _ = consume(&mut node, A, access));
    announce(&mut node, A, &[0]);
    assert_eq!(consume(&mut node, A, 2)[0], evict(1, NodeTier::Memory));
}

#[test]
fn a_consumer_that_stands_still_loses_its_entries_with_time() {
    for (now, victim) in [(GRACE_MS, 1), (GRACE_MS + 39, 1), (GRACE_MS + 41, 0)] {
        let mut node = node(2, 0, &[1; 4], &[&[1, 2, 3, 3, 3, 3, 1], &[0, 0]]);
        consume(&mut node, B, 0);
        consume(&mut node, A, 0);
        node.handle_progress(A, 1, Some(ms(INTERVAL_MS)), ms(now));
        node.handle_request(A, 1, ms(0), ms(now)).unwrap();
        assert_eq!(node.poll_action(ms(now)), Some(evict(victim, NodeTier::Memory)), "at {now}");
    }
}

#[test]
fn a_consumer_that_stands_still_keeps_at_most_its_share() {
    let run = |share| {
        let mut node = planner(4, 0, share);
        (0..6).for_each(|_| _ = node.handle_entry(Bytes::new(1)).unwrap());
        node.handle_attach(A, ms(0));
        node.handle_attach(B, ms(0));
        announce(&mut node, A, &[0, 1, 0, 1]);
        announce(&mut node, B, &[2, 3, 4, 5, 4, 5, 4, 5, 4, 5, 4, 5, 2, 3]);
        (0..2).for_each(|access| _ = consume(&mut node, A, access));
        (0..2).for_each(|access| _ = consume(&mut node, B, access));
        assert_eq!(node.protected(A, NodeTier::Memory), Bytes::new(2));
        let now = GRACE_MS + 1;
        node.handle_progress(B, 2, Some(ms(INTERVAL_MS)), ms(now));
        node.handle_request(B, 2, ms(0), ms(now)).unwrap();
        node.handle_request(B, 3, ms(0), ms(now)).unwrap();
        actions(&mut node, now)
            .into_iter()
            .filter(|one| matches!(one, NodeAction::Evict { .. }))
            .collect::<Vec<_>>()
    };
    assert_eq!(run(2), [3, 2].map(|entry| evict(entry, NodeTier::Memory)));
    assert_eq!(run(1), [1, 3].map(|entry| evict(entry, NodeTier::Memory)));
    assert_eq!(run(0), [1, 0].map(|entry| evict(entry, NodeTier::Memory)));
}

#[test]
fn a_victim_of_the_memory_is_written_to_the_disk_if_it_is_used_sooner_than_others_there() {
    let mut node = node(1, 1, &[1; 4], &[&[0, 1, 2, 3, 2, 1, 0]]);
    consume(&mut node, A, 0);
    // Free space on disk.
    let next = [store(0), evict(0, NodeTier::Memory), read(1, Source::Origin, 0)];
    assert_eq!(consume(&mut node, A, 1)[..3], next);
    // Entry 1 is used before entry 0, and entry 2 before entry 1.
    assert_eq!(consume(&mut node, A, 2)[..2], [evict(0, NodeTier::Disk), store(1)]);
    assert_eq!(consume(&mut node, A, 3)[..2], [evict(1, NodeTier::Disk), store(2)]);
    assert_eq!(consume(&mut node, A, 4)[1], read(2, Source::Disk, 0));
}

#[test]
fn copies_leave_the_disk_only_if_that_makes_enough_space() {
    let mut node = node(3, 3, &[1, 2, 3, 3], &[&[0, 1, 2, 3, 1, 2, 3, 0]]);
    for access in 0..3 {
        consume(&mut node, A, access);
    }
    assert!(node.holds(EntryId(0), NodeTier::Disk) && node.holds(EntryId(1), NodeTier::Disk));
    // Entry 0 is used after entry 2, but entry 1 before it.
    assert_eq!(consume(&mut node, A, 3)[0], evict(2, NodeTier::Memory));
    assert_eq!(node.used(NodeTier::Disk), Bytes::new(3));
}

#[test]
fn a_copy_that_is_also_on_disk_leaves_the_memory_first() {
    let mut node = node(2, 1, &[1; 3], &[&[0, 1, 2, 0, 1]]);
    assert!(node.handle_held(EntryId(0)));
    (0..2).for_each(|access| _ = consume(&mut node, A, access));
    assert_eq!(consume(&mut node, A, 2)[0], evict(0, NodeTier::Memory));
}

#[test]
fn while_the_disk_has_free_space_the_farthest_copy_leaves_the_memory_first() {
    let mut node = node(2, 2, &[1; 3], &[&[0, 1, 2, 0, 1]]);
    assert!(node.handle_held(EntryId(0)));
    (0..2).for_each(|access| _ = consume(&mut node, A, access));
    assert_eq!(consume(&mut node, A, 2)[..2], [store(1), evict(1, NodeTier::Memory)]);
}

#[test]
fn without_consumers_the_memory_is_written_to_the_free_space_of_the_disk() {
    let mut node = node(4, 2, &[1; 4], &[&[0, 1, 2, 3]]);
    assert!(node.handle_held(EntryId(1)));
    (0..3).for_each(|access| _ = consume(&mut node, A, access));
    node.handle_idle(ms(0));
    assert_eq!(actions(&mut node, 0), [], "a consumer is attached");
    node.handle_detach(A, ms(0));
    node.handle_idle(ms(0));
    assert_eq!(actions(&mut node, 0), [store(0)]);
    node.handle_stored(EntryId(0), ReadOutcome::Ok, ms(0));
    assert!(node.holds(EntryId(0), NodeTier::Memory) && node.holds(EntryId(0), NodeTier::Disk));
    node.handle_idle(ms(0));
    assert_eq!(actions(&mut node, 0), [], "no space is left");
}

#[test]
fn a_failed_write_evicts_the_victim_all_the_same() {
    let mut node = node(1, 1, &[1; 2], &[&[0, 1, 0]]);
    consume(&mut node, A, 0);
    request(&mut node, A, 1, 0);
    assert_eq!(actions(&mut node, 0), [store(0)]);
    assert_eq!(node.poll_timeout(), None);
    node.handle_stored(EntryId(0), ReadOutcome::Full, ms(0));
    assert_eq!(actions(&mut node, 0), [evict(0, NodeTier::Memory), read(1, Source::Origin, 0)]);
    assert_eq!(node.used(NodeTier::Disk), Bytes::ZERO);
}

#[test]
fn a_request_during_the_write_is_a_hit() {
    let mut node = node(1, 1, &[1; 2], &[&[0, 1, 0]]);
    consume(&mut node, A, 0);
    request(&mut node, A, 1, 0);
    actions(&mut node, 0);
    request(&mut node, A, 2, 0);
    assert_eq!(actions(&mut node, 0), [answer(A, 2, 0, Source::Ram)]);
    node.handle_stored(EntryId(0), ReadOutcome::Ok, ms(0));
    assert_eq!(actions(&mut node, 0), []);
    node.handle_release(A, 2);
    assert_eq!(actions(&mut node, 0), [evict(0, NodeTier::Memory), read(1, Source::Origin, 0)]);
}

#[test]
fn a_failed_read_of_the_disk_reads_the_origin_and_one_of_the_origin_fails_all_requests() {
    let mut node = node(1, 1, &[1], &[&[0, 0], &[0]]);
    assert!(node.handle_held(EntryId(0)));
    assert!(!node.handle_held(EntryId(0)), "held already");
    request(&mut node, A, 0, 5);
    request(&mut node, B, 0, 5);
    assert_eq!(actions(&mut node, 0), [read(0, Source::Disk, 5)]);
    node.handle_read(EntryId(0), ReadOutcome::Corrupt, ms(0));
    assert_eq!(actions(&mut node, 0), [read(0, Source::Origin, 5)]);
    assert!(!node.holds(EntryId(0), NodeTier::Disk));
    node.handle_read(EntryId(0), ReadOutcome::Denied, ms(0));
    let fail =
        |consumer| NodeAction::Fail { consumer, access: 0, entry: EntryId(0), outcome: ReadOutcome::Denied };
    assert_eq!(actions(&mut node, 0), [fail(A), fail(B)]);
    assert_eq!(consume(&mut node, A, 1)[0], read(0, Source::Origin, 0));
}

#[test]
fn a_lost_copy_in_memory_takes_its_answers_back_and_spoils_the_copy_being_written() {
    let mut node = node(1, 1, &[1; 2], &[&[0, 1, 0]]);
    consume(&mut node, A, 0);
    request(&mut node, A, 1, 0);
    assert_eq!(actions(&mut node, 0), [store(0)]);
    request(&mut node, A, 2, 0);
    actions(&mut node, 0);
    node.handle_lost(EntryId(0), NodeTier::Memory, ms(0));
    let take_back = NodeAction::TakeBack { consumer: A, access: 2, entry: EntryId(0) };
    assert_eq!(actions(&mut node, 0), [take_back, read(1, Source::Origin, 0)]);
    node.handle_stored(EntryId(0), ReadOutcome::Ok, ms(0));
    assert_eq!(actions(&mut node, 0), [evict(0, NodeTier::Disk)]);
    assert_eq!(node.used(NodeTier::Disk), Bytes::ZERO);
}

#[test]
fn a_smaller_capacity_evicts_and_fails_what_no_longer_fits() {
    let mut node = node(3, 3, &[1, 1, 1, 2], &[&[0, 1, 2, 2, 1, 0, 3]]);
    node.handle_capacity(NodeTier::Disk, Bytes::ZERO, ms(0));
    (0..3).for_each(|access| _ = consume(&mut node, A, access));
    node.handle_capacity(NodeTier::Memory, Bytes::new(1), ms(0));
    assert_eq!(actions(&mut node, 0), [0, 1].map(|entry| evict(entry, NodeTier::Memory)));
    request(&mut node, A, 6, 0);
    let outcome = ReadOutcome::Full;
    let fail = NodeAction::Fail { consumer: A, access: 6, entry: EntryId(3), outcome };
    assert_eq!(actions(&mut node, 0), [fail]);
    node.handle_capacity(NodeTier::Disk, Bytes::new(1), ms(0));
    assert!(node.handle_held(EntryId(1)) && !node.handle_held(EntryId(2)));
    node.handle_capacity(NodeTier::Disk, Bytes::ZERO, ms(0));
    assert_eq!(actions(&mut node, 0), [evict(1, NodeTier::Disk)]);
}

#[test]
fn skipped_accesses_are_not_used() {
    let mut node = node(2, 0, &[1; 4], &[&[0, 1, 0, 2, 1, 0]]);
    (0..2).for_each(|access| _ = consume(&mut node, A, access));
    assert_eq!(node.announced(A), 2..6);
    // Entry 0 would be used next at access 2.
    assert_eq!(consume(&mut node, A, 3)[0], evict(0, NodeTier::Memory));
    assert!(node.handle_request(A, 2, ms(0), ms(0)).is_err(), "it was skipped");
    assert!(node.handle_request(A, 6, ms(0), ms(0)).is_err(), "it is not announced");
    assert!(node.handle_request(B, 0, ms(0), ms(0)).is_err(), "it is not attached");
}

#[test]
fn hits_pass_accesses_without_a_pin_and_give_their_entries_a_later_use() {
    let mut node = node(2, 0, &[1; 4], &[&[0, 1, 0, 2, 0, 1]]);
    (0..2).for_each(|access| _ = consume(&mut node, A, access));
    assert_eq!(node.handle_hits(A, 1, ms(0)), Ok(Bytes::new(1)));
    assert_eq!(node.announced(A), 3..6);
    // Entry 0 is used at access 4 now, and entry 1 at access 5.
    assert_eq!(consume(&mut node, A, 3)[0], evict(1, NodeTier::Memory));
    let refused = node.handle_hits(A, 3, ms(0)).unwrap_err();
    assert!(refused.to_string().contains("access 6, but its announced accesses are 4 to 6"), "{refused}");
    assert_eq!((node.announced(A), node.handle_hits(B, 3, ms(0))), (4..6, Ok(Bytes::ZERO)));
}

#[test]
fn a_restart_drops_what_waits_and_continues_the_numbers() {
    let mut node = node(1, 0, &[1; 3], &[&[0, 1, 2]]);
    request(&mut node, A, 0, 0);
    actions(&mut node, 0);
    done(&mut node, 0);
    request(&mut node, A, 1, 0);
    assert_eq!(actions(&mut node, 0), [answer(A, 0, 0, Source::Origin)]);
    node.handle_end(A);
    node.handle_restart(A, ms(0));
    assert_eq!((node.announced(A), node.poll_timeout().is_some()), (3..3, true));
    assert!(node.wants_epoch(A));
    announce(&mut node, A, &[2]);
    node.handle_release(A, 0);
    assert_eq!(actions(&mut node, 0), []);
    assert_eq!(consume(&mut node, A, 3)[1], read(2, Source::Origin, 0));
}

#[test]
fn a_detached_consumer_leaves_nothing_behind() {
    let mut node = node(1, 0, &[1; 2], &[&[0, 1], &[1]]);
    request(&mut node, A, 0, 0);
    actions(&mut node, 0);
    done(&mut node, 0);
    request(&mut node, A, 1, 0);
    request(&mut node, B, 0, 0);
    node.handle_detach(A, ms(0));
    assert_eq!(actions(&mut node, 0), [evict(0, NodeTier::Memory), read(1, Source::Origin, 0)]);
    done(&mut node, 1);
    assert_eq!(actions(&mut node, 0), [answer(B, 0, 1, Source::Origin)]);
    node.handle_attach(B, ms(0));
    assert_eq!((node.announced(B), node.active.len()), (0..0, 0));
    node.handle_release(A, 0);
    node.handle_progress(A, 9, None, ms(0));
    node.handle_restart(A, ms(0));
    assert!(!node.wants_epoch(A) && node.wants_epoch(B));
}

#[test]
fn the_look_ahead_is_shared_by_the_consumers_and_bounded_by_the_table_budget() {
    for (budget, consumers, epochs) in [(1 << 20, 1, 4), (1 << 20, 2, 2), (12 * 250, 1, 2), (0, 3, 1)] {
        let mut node = planner(10, 0, 0);
        node.affordable = budget / BYTES_PER_ACCESS;
        (0..100).for_each(|_| _ = node.handle_entry(Bytes::new(1)).unwrap());
        (0..consumers).for_each(|consumer| node.handle_attach(ConsumerId(consumer), ms(0)));
        for consumer in (0..consumers).map(ConsumerId) {
            while node.wants_epoch(consumer) {
                announce(&mut node, consumer, &(0..100).collect::<Vec<_>>());
            }
            assert_eq!(node.announced(consumer).end, 100 * epochs, "budget {budget}, {consumers} consumers");
        }
        node.handle_end(A);
        (0..100 * epochs).for_each(|access| _ = consume(&mut node, A, access));
        assert!(!node.wants_epoch(A), "its end was announced");
    }
}

#[test]
fn the_tables_take_16_bytes_per_entry_and_12_per_access() {
    let mut node = planner(10, 0, 0);
    (0..1 << 16).for_each(|_| _ = node.handle_entry(Bytes::new(1)).unwrap());
    assert_eq!(node.table_bytes(), Bytes::new(16 << 16));
    node.handle_attach(A, ms(0));
    announce(&mut node, A, &(0..1 << 16).collect::<Vec<_>>());
    // Three sets of positions add an eighth of a byte each.
    assert!(node.table_bytes() <= Bytes::new((16 + 12 + 1) << 16), "{}", node.table_bytes());
}

#[test]
fn an_entry_of_4_gib_is_refused_with_the_remedy() {
    let error = planner(10, 0, 0).handle_entry(Bytes::new(1 << 32)).unwrap_err();
    assert!(error.to_string().contains("split it into ranges"), "{error}");
}
