// SPDX-License-Identifier: Apache-2.0
//! Rules of entries that are read together.

use std::sync::Arc;

use foresee_units::SampleId;

use super::*;
use crate::capacity::SampleSizes;
use crate::read_group::ObjectRange;

/// Rows of 10 bytes in one object.
struct Rows(u64);

impl SampleSizes for Rows {
    fn count(&self) -> u64 {
        self.0
    }
    fn size(&self, _: SampleId) -> Bytes {
        Bytes::new(10)
    }
    fn uniform(&self) -> Option<Bytes> {
        Some(Bytes::new(10))
    }
    fn grouped_range(&self, SampleId(id): SampleId) -> Option<ObjectRange> {
        (id < self.0).then_some(ObjectRange { object: 1, start: id * 10, len: 10 })
    }
}

/// A planner whose entries from `first` on are rows.
fn rows(memory: u64, disk: u64, (first, count): (u32, u32), orders: &[&[u32]]) -> NodePlanner {
    let sizes = vec![10; (first + count) as usize];
    let mut node = node(memory, disk, &sizes, orders);
    node.handle_data_set(EntryId(first), Arc::new(Rows(count.into())));
    node
}

/// Entries that are read, with the deadline and the group of each.
fn reads(actions: &[NodeAction]) -> Vec<(u32, Nanos, Option<u32>)> {
    let read = |action: &NodeAction| match *action {
        NodeAction::Read { entry, deadline, group, .. } => {
            Some((entry.0, deadline, group.map(|group| group.0)))
        }
        _ => None,
    };
    actions.iter().filter_map(read).collect()
}

#[test]
fn missing_neighbours_with_a_use_are_read_with_a_requested_entry() {
    let mut node = rows(1000, 0, (2, 6), &[&[4, 0, 7, 6, 5, 3]]);
    request(&mut node, A, 0, 50);
    let late = Nanos::MAX;
    let group = Some(4);
    assert_eq!(
        reads(&actions(&mut node, 0)),
        [(4, ms(50), group), (5, late, group), (6, late, group), (7, late, group), (3, late, group)],
        "entry 2 has no use, and 0 is of another data set"
    );
    request(&mut node, A, 2, 90);
    let wanted = NodeAction::Prioritize { entry: EntryId(7), deadline: ms(90) };
    assert_eq!(actions(&mut node, 0), [wanted]);
    for entry in 3..8 {
        done(&mut node, entry);
    }
    assert_eq!(actions(&mut node, 0), [answer(A, 0, 4, Source::Origin), answer(A, 2, 7, Source::Origin)]);
    request(&mut node, A, 3, 90);
    assert_eq!(actions(&mut node, 0), [answer(A, 3, 6, Source::Origin)]);
}

#[test]
fn requests_that_wait_are_answered_by_the_read_of_their_group() {
    let mut node = rows(1000, 0, (0, 4), &[&[1, 3, 2], &[3, 0]]);
    for (consumer, access, deadline) in [(A, 0, 10), (A, 1, 40), (B, 0, 30), (A, 2, 50)] {
        request(&mut node, consumer, access, deadline);
    }
    let group = Some(1);
    assert_eq!(
        reads(&actions(&mut node, 0)),
        [(1, ms(10), group), (2, ms(50), group), (3, ms(30), group), (0, Nanos::MAX, group)]
    );
    done(&mut node, 3);
    assert_eq!(actions(&mut node, 0), [answer(B, 0, 3, Source::Origin), answer(A, 1, 3, Source::Ram)]);
}

#[test]
fn a_group_takes_only_free_memory() {
    let mut node = rows(30, 0, (0, 6), &[&[0, 1, 2, 3, 4, 5, 0]]);
    request(&mut node, A, 0, 10);
    assert_eq!(reads(&actions(&mut node, 0)).len(), 3);
    assert_eq!(node.used(NodeTier::Memory), Bytes::new(30));
}

#[test]
fn a_disk_for_all_entries_lets_a_group_replace_what_is_used_later() {
    let order: Vec<u32> = (0..6).chain(0..6).collect();
    let mut node = rows(30, 60, (0, 6), &[&order]);
    let mut origin = Vec::new();
    for access in 0..6 {
        let group = reads(&consume(&mut node, A, access));
        origin.extend(group.iter().filter(|(.., group)| group.is_some()).map(|&(entry, ..)| entry));
    }
    origin.sort_unstable();
    assert_eq!(origin, [0, 1, 2, 3, 4, 5]);
    for access in 6..12 {
        assert!(reads(&consume(&mut node, A, access)).iter().all(|(.., group)| group.is_none()));
    }
}

#[test]
fn a_failed_neighbour_fails_nobody() {
    let mut node = rows(1000, 0, (0, 3), &[&[0, 1, 2]]);
    request(&mut node, A, 0, 10);
    assert_eq!(reads(&actions(&mut node, 0)).len(), 3);
    node.handle_read(EntryId(1), ReadOutcome::Failed, Nanos::ZERO);
    assert_eq!(actions(&mut node, 0), []);
    assert_eq!(node.used(NodeTier::Memory), Bytes::new(20));
    request(&mut node, A, 1, 10);
    assert_eq!(reads(&actions(&mut node, 0)), [(1, ms(10), None)]);
}

#[test]
fn entries_that_expected_consumers_may_use_are_read_too() {
    let mut node = rows(1000, 0, (0, 6), &[&[0, 2]]);
    node.handle_expected(1);
    request(&mut node, A, 0, 10);
    assert_eq!(reads(&actions(&mut node, 0)).len(), 6, "another rank uses the rest");
    let mut node = rows(1000, 0, (0, 6), &[&[0, 2]]);
    node.handle_expected(1);
    node.handle_attach(B, ms(0));
    announce(&mut node, B, &[1]);
    request(&mut node, A, 0, 10);
    assert_eq!(reads(&actions(&mut node, 0)).len(), 3);
}
