// SPDX-License-Identifier: Apache-2.0
//! Rules of reads ahead of requests.

use super::*;

/// A planner as [`node`], whose consumers share `bytes` of reads ahead.
fn node_ahead(bytes: u64, memory: u64, sizes: &[u64], orders: &[&[u32]]) -> NodePlanner {
    let mut node = node(memory, 0, sizes, orders);
    node.read_ahead_bytes = Bytes::new(bytes);
    node
}

/// As [`actions`], with reads ahead as long as there are any.
fn actions_ahead(node: &mut NodePlanner, now: u64) -> Vec<NodeAction> {
    let mut all = Vec::new();
    loop {
        all.extend(actions(node, now));
        if !node.read_ahead(ms(now)) {
            return all;
        }
    }
}

fn reads(actions: &[NodeAction]) -> Vec<u32> {
    let read = |action: &NodeAction| match action {
        NodeAction::Read { entry, .. } => Some(entry.0),
        _ => None,
    };
    actions.iter().filter_map(read).collect()
}

fn evicted(actions: &[NodeAction]) -> Vec<u32> {
    let evicted = |action: &NodeAction| match action {
        NodeAction::Evict { entry, .. } => Some(entry.0),
        _ => None,
    };
    actions.iter().filter_map(evicted).collect()
}

#[test]
fn announced_entries_are_read_in_order_of_their_predicted_times() {
    let mut node = node_ahead(100, 10, &[1; 5], &[&[0, 1, 2], &[3, 1, 4]]);
    // B takes half as long per access.
    node.handle_progress(B, 0, Some(ms(INTERVAL_MS / 2)), ms(0));
    let actions = actions_ahead(&mut node, 0);
    assert_eq!(reads(&actions), [0, 3, 1, 4, 2]);
    let deadline = |nth: usize| match actions[nth] {
        NodeAction::Read { deadline, .. } => deadline,
        other => panic!("{other:?}"),
    };
    assert_eq!((deadline(2), deadline(4)), (ms(INTERVAL_MS / 2), ms(2 * INTERVAL_MS)));
}

#[test]
fn requests_are_read_first() {
    let mut node = node_ahead(100, 10, &[1; 5], &[&[0, 1, 2], &[3, 4]]);
    request(&mut node, B, 1, 50);
    assert_eq!(reads(&actions_ahead(&mut node, 0)), [4, 0, 1, 2], "access 0 of B was skipped");
}

#[test]
fn a_request_joins_a_read_ahead_with_its_deadline() {
    let mut node = node_ahead(100, 10, &[1; 3], &[&[0, 1, 2]]);
    assert_eq!(reads(&actions_ahead(&mut node, 0)), [0, 1, 2]);
    request(&mut node, A, 0, 0);
    request(&mut node, A, 1, 3);
    assert_eq!(
        actions_ahead(&mut node, 0),
        [NodeAction::Prioritize { entry: EntryId(1), deadline: ms(3) }],
        "that of access 0 is no earlier"
    );
}

#[test]
fn the_window_is_a_share_in_bytes_and_moves_with_the_requests() {
    let mut node = node_ahead(6, 100, &[1, 2, 1, 1, 1, 1], &[&[0, 1, 2, 3, 4, 5], &[0]]);
    assert_eq!(reads(&actions_ahead(&mut node, 0)), [0, 1], "3 bytes for each of two consumers");
    node.handle_detach(B, ms(0));
    assert_eq!(reads(&actions_ahead(&mut node, 0)), [2, 3, 4]);
    request(&mut node, A, 0, 0);
    assert_eq!(reads(&actions_ahead(&mut node, 0)), [5]);
}

#[test]
fn an_entry_leaves_only_for_one_that_is_used_sooner() {
    let mut node = node_ahead(100, 3, &[1; 5], &[&[0, 1, 2, 3, 4, 0, 1]]);
    assert_eq!(reads(&actions_ahead(&mut node, 0)), [0, 1, 2]);
    (0..3).for_each(|entry| done(&mut node, entry));
    assert_eq!(actions_ahead(&mut node, 0), []);
    request(&mut node, A, 0, 0);
    node.handle_release(A, 0);
    // Entry 0 is now used at access 5.
    let actions = actions_ahead(&mut node, 0);
    assert_eq!((reads(&actions), evicted(&actions)), (vec![3], vec![0]));
}

#[test]
fn a_window_larger_than_the_memory_reads_no_entry_twice() {
    let order: Vec<u32> = (0..40).map(|access| access % 10).collect();
    let mut node = node_ahead(100, 4, &[1; 10], &[&order]);
    let mut count = 0;
    for access in 0..40 {
        request(&mut node, A, access, 0);
        while let Some(action) = node.poll_action(Nanos::ZERO).or_else(|| {
            node.read_ahead(Nanos::ZERO);
            node.poll_action(Nanos::ZERO)
        }) {
            match action {
                NodeAction::Read { entry, .. } => {
                    count += 1;
                    node.handle_read(entry, ReadOutcome::Ok, Nanos::ZERO);
                }
                NodeAction::Answer { consumer, access, .. } => node.handle_release(consumer, access),
                _ => {}
            }
        }
    }
    assert!(count <= 40, "{count} reads for 40 accesses");
}

#[test]
fn the_first_answer_has_the_source_of_the_read_ahead() {
    let mut node = node_ahead(100, 10, &[1; 1], &[&[0, 0]]);
    assert_eq!(reads(&actions_ahead(&mut node, 0)), [0]);
    done(&mut node, 0);
    let mut source = |access| {
        request(&mut node, A, access, 0);
        match actions_ahead(&mut node, 0)[..] {
            [NodeAction::Answer { source, .. }] => source,
            ref other => panic!("{other:?}"),
        }
    };
    assert_eq!((source(0), source(1)), (Source::Origin, Source::Ram));
}

#[test]
fn a_failed_read_ahead_is_repeated_by_the_request_alone() {
    let mut node = node_ahead(100, 10, &[1; 1], &[&[0]]);
    assert_eq!(reads(&actions_ahead(&mut node, 0)), [0]);
    node.handle_read(EntryId(0), ReadOutcome::Absent, Nanos::ZERO);
    assert_eq!(actions_ahead(&mut node, 0), []);
    request(&mut node, A, 0, 0);
    assert_eq!(reads(&actions_ahead(&mut node, 0)), [0]);
    node.handle_read(EntryId(0), ReadOutcome::Absent, Nanos::ZERO);
    assert!(matches!(
        actions_ahead(&mut node, 0)[..],
        [NodeAction::Fail { outcome: ReadOutcome::Absent, .. }]
    ));
}

#[test]
fn nothing_is_read_ahead_for_a_consumer_that_stands_still() {
    let mut node = node_ahead(100, 10, &[1; 2], &[&[0], &[1]]);
    node.handle_progress(B, 0, None, ms(0));
    node.handle_attach(B, ms(GRACE_MS + 1));
    announce(&mut node, B, &[1]);
    assert_eq!(reads(&actions_ahead(&mut node, GRACE_MS + 1)), [1]);
    request(&mut node, A, 0, 0);
    assert_eq!(reads(&actions_ahead(&mut node, GRACE_MS + 1)), [0], "a request is always served");
}

#[test]
fn a_restart_begins_a_new_window() {
    let mut node = node_ahead(2, 10, &[1; 6], &[&[0, 1, 2]]);
    assert_eq!(reads(&actions_ahead(&mut node, 0)), [0, 1]);
    node.handle_restart(A, ms(0));
    announce(&mut node, A, &[3, 4, 5]);
    assert_eq!(reads(&actions_ahead(&mut node, 0)), [3, 4]);
}

#[test]
fn an_entry_larger_than_the_memory_is_left_to_its_request() {
    let mut node = node_ahead(100, 10, &[11, 1], &[&[0, 1]]);
    assert_eq!(reads(&actions_ahead(&mut node, 0)), [1]);
}

#[test]
fn a_request_that_is_waited_for_has_a_sooner_deadline() {
    let mut node = node(1, 0, &[1; 3], &[&[0, 1], &[2]]);
    request(&mut node, A, 0, 50);
    request(&mut node, A, 1, 60);
    request(&mut node, B, 0, 70);
    assert_eq!(reads(&actions(&mut node, 0)), [0], "the memory holds one");
    node.handle_deadline(A, 0, ms(5), ms(0));
    node.handle_deadline(B, 0, ms(0), ms(0));
    node.handle_deadline(B, 0, ms(90), ms(0));
    let sooner = NodeAction::Prioritize { entry: EntryId(0), deadline: ms(5) };
    assert_eq!(actions(&mut node, 0), [sooner]);
    done(&mut node, 0);
    assert_eq!(reads(&actions(&mut node, 0)), [], "an answer is pinned until its release");
    node.handle_release(A, 0);
    assert_eq!(reads(&actions(&mut node, 0)), [2], "before the one of A");
    node.handle_deadline(A, 0, ms(0), ms(0));
    assert_eq!(actions(&mut node, 0), [], "it has ended");
}

#[test]
fn a_read_that_is_late_is_prioritized_when_its_consumer_waits() {
    let mut node = node(1, 0, &[1], &[&[0]]);
    request(&mut node, A, 0, 50);
    assert_eq!(reads(&actions(&mut node, 0)), [0]);
    node.handle_deadline(A, 0, ms(70), ms(70));
    let late = NodeAction::Prioritize { entry: EntryId(0), deadline: ms(50) };
    assert_eq!(actions(&mut node, 70), [late]);
}
