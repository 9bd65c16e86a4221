// SPDX-License-Identifier: Apache-2.0
//! Rules of entries that other nodes read here.

use super::*;

fn reserve(node: &mut NodePlanner, entries: &[u32]) {
    for &entry in entries {
        node.handle_reserved(EntryId(entry), true);
    }
}

fn tiers(node: &NodePlanner, entry: u32) -> [bool; 2] {
    [NodeTier::Memory, NodeTier::Disk].map(|tier| node.holds(EntryId(entry), tier))
}

#[test]
fn a_reserved_entry_stays_although_no_consumer_uses_it_again() {
    let mut node = node(2, 0, &[1, 1, 1], &[&[0, 1, 2, 1, 2]]);
    consume(&mut node, A, 0);
    reserve(&mut node, &[0]);
    (1..5).for_each(|access| drop(consume(&mut node, A, access)));
    assert_eq!(tiers(&node, 0), [true, false]);
    node.handle_reserved(EntryId(0), false);
    announce(&mut node, A, &[1, 2]);
    (5..7).for_each(|access| drop(consume(&mut node, A, access)));
    assert_eq!(tiers(&node, 0), [false, false]);
}

#[test]
fn a_reserved_entry_moves_to_the_disk_and_replaces_copies_there_that_are_used_sooner() {
    let mut node = node(1, 1, &[1, 1, 1], &[&[0, 1, 0, 2, 0]]);
    consume(&mut node, A, 0);
    // The disk gets the first entry, whose next use is near.
    consume(&mut node, A, 1);
    assert_eq!(tiers(&node, 0), [false, true]);
    reserve(&mut node, &[1]);
    let all = consume(&mut node, A, 2);
    assert_eq!(all[..2], [evict(0, NodeTier::Disk), store(1)]);
    // Nothing replaces it there.
    consume(&mut node, A, 3);
    consume(&mut node, A, 4);
    assert_eq!(tiers(&node, 1), [false, true]);
}

#[test]
fn a_request_that_finds_only_reserved_entries_in_memory_is_answered() {
    let mut node = node(2, 1, &[1; 5], &[&[0, 1, 2, 3, 4]]);
    reserve(&mut node, &[0, 1, 2]);
    (0..3).for_each(|access| drop(consume(&mut node, A, access)));
    // The disk has the first entry.
    assert_eq!([0, 1, 2].map(|entry| tiers(&node, entry)), [[false, true], [true, false], [true, false]]);
    let all = consume(&mut node, A, 3);
    assert_eq!(all[..2], [evict(1, NodeTier::Memory), read(3, Source::Origin, 0)]);
    // Now another one may leave.
    let all = consume(&mut node, A, 4);
    assert_eq!(all[0], evict(3, NodeTier::Memory));
}

#[test]
fn a_reduced_disk_loses_reserved_entries_last() {
    let mut node = node(9, 3, &[1; 3], &[&[]]);
    (0..3).for_each(|entry| assert!(node.handle_held(EntryId(entry))));
    reserve(&mut node, &[0, 2]);
    node.handle_capacity(NodeTier::Disk, Bytes::new(1), ms(0));
    assert_eq!(actions(&mut node, 0), [evict(1, NodeTier::Disk), evict(0, NodeTier::Disk)]);
    assert_eq!(tiers(&node, 2), [false, true]);
}

#[test]
fn an_offer_is_accepted_if_the_entry_is_missing_and_memory_can_be_freed() {
    let mut node = node(1, 0, &[1, 1, 2], &[&[0, 1]]);
    consume(&mut node, A, 0);
    assert!(!node.handle_offer(EntryId(0), ms(0)), "it is in memory");
    assert!(!node.handle_offer(EntryId(2), ms(0)), "it is larger than the memory");
    assert!(node.handle_offer(EntryId(1), ms(0)));
    assert!(!node.handle_offer(EntryId(1), ms(0)), "it is being received");
    assert_eq!(actions(&mut node, 0), [evict(0, NodeTier::Memory)]);
    done(&mut node, 1);
    request(&mut node, A, 1, 0);
    assert_eq!(actions(&mut node, 0), [answer(A, 1, 1, Source::Peer)]);
    assert!(!node.handle_offer(EntryId(0), ms(0)), "the other one is pinned");
}

#[test]
fn a_request_waits_for_an_offered_entry_and_reads_the_origin_if_that_fails() {
    let mut node = node(1, 0, &[1, 1], &[&[0, 1]]);
    request(&mut node, A, 0, 0);
    assert_eq!(actions(&mut node, 0), [read(0, Source::Origin, 0)]);
    request(&mut node, A, 1, 5);
    done(&mut node, 0);
    node.handle_release(A, 0);
    // Before the planner acts on the request.
    assert!(node.handle_offer(EntryId(1), ms(0)));
    node.handle_read(EntryId(1), ReadOutcome::Failed, ms(0));
    let all = actions(&mut node, 0);
    assert_eq!(all.last(), Some(&read(1, Source::Origin, 5)));
}

#[test]
fn an_entry_stays_in_memory_while_it_is_sent() {
    let mut node = node(1, 0, &[1, 1], &[&[0, 1]]);
    assert!(!node.handle_sending(EntryId(0)), "it is not in memory");
    consume(&mut node, A, 0);
    assert!(node.handle_sending(EntryId(0)) && node.handle_sending(EntryId(0)));
    request(&mut node, A, 1, 5);
    assert_eq!(actions(&mut node, 0), []);
    assert!(node.is_blocked());
    node.handle_sent(EntryId(0));
    assert_eq!(actions(&mut node, 0), [], "another node still gets it");
    node.handle_sent(EntryId(0));
    assert_eq!(actions(&mut node, 0), [evict(0, NodeTier::Memory), read(1, Source::Origin, 5)]);
}

#[test]
fn an_entry_that_was_to_be_read_from_the_origin_may_come_from_another_node() {
    let mut node = node(2, 0, &[1, 1], &[&[0, 1]]);
    request(&mut node, A, 0, 5);
    assert_eq!(actions(&mut node, 0), [read(0, Source::Origin, 5)]);
    node.handle_received(EntryId(0), ms(0));
    assert_eq!(actions(&mut node, 0), [answer(A, 0, 0, Source::Peer)]);
    node.handle_received(EntryId(1), ms(0));
    assert_eq!(actions(&mut node, 0), [], "it was not being read");
    assert_eq!(tiers(&node, 1), [false, false]);
}
