// SPDX-License-Identifier: Apache-2.0
//! Rules of writes to the disk before an entry leaves the memory.

use super::*;

/// Read the entries of all accesses, and return those that are being written then.
fn stored_after_reads(node: &mut NodePlanner, accesses: u64) -> Vec<u32> {
    for access in 0..accesses {
        request(node, A, access, 0);
    }
    let mut stored = Vec::new();
    while let Some(action) = node.poll_action(Nanos::ZERO) {
        match action {
            NodeAction::Read { entry, .. } => node.handle_read(entry, ReadOutcome::Ok, Nanos::ZERO),
            NodeAction::Store { entry } => stored.push(entry.0),
            _ => {}
        }
    }
    stored
}

#[test]
fn entries_are_written_when_they_are_read_if_the_disk_can_hold_all() {
    let mut all = node(80, 3, &[1; 3], &[&[0, 1, 2]]);
    assert_eq!(stored_after_reads(&mut all, 3), [0, 1, 2]);
    let mut part = node(80, 2, &[1; 3], &[&[0, 1, 2]]);
    assert_eq!(stored_after_reads(&mut part, 3), [], "they are written when they leave the memory");
}

#[test]
fn at_most_an_eighth_of_the_memory_is_written_early_at_a_time() {
    let mut node = node(16, 10, &[1; 10], &[&[0, 1, 2, 3]]);
    assert_eq!(stored_after_reads(&mut node, 4), [0, 1]);
    node.handle_stored(EntryId(1), ReadOutcome::Ok, ms(0));
    assert_eq!(actions(&mut node, 0), [NodeAction::Store { entry: EntryId(2) }]);
    node.handle_stored(EntryId(0), ReadOutcome::Failed, ms(0));
    assert_eq!(actions(&mut node, 0), [NodeAction::Store { entry: EntryId(3) }]);
}

#[test]
fn an_entry_stays_in_memory_if_its_early_write_fails() {
    let mut node = node(80, 1, &[1], &[&[0, 0]]);
    assert_eq!(stored_after_reads(&mut node, 1), [0]);
    node.handle_release(A, 0);
    node.handle_stored(EntryId(0), ReadOutcome::Full, ms(0));
    assert_eq!(actions(&mut node, 0), []);
    assert!(node.holds(EntryId(0), NodeTier::Memory) && !node.holds(EntryId(0), NodeTier::Disk));
}

#[test]
fn what_was_read_from_the_disk_is_not_written_again() {
    let mut node = node(80, 1, &[1], &[&[0]]);
    assert!(node.handle_held(EntryId(0)));
    assert_eq!(stored_after_reads(&mut node, 1), []);
}
