// SPDX-License-Identifier: Apache-2.0
//! Which answers are valid, the messages in their order, and the positions that are missing at the end.

use std::sync::Arc;

use foresee_data_node::NodeError;
use foresee_data_node::message::{ConsumerMessage, ConsumerProgress};
use foresee_units::{Bytes, Nanos, SampleId};

use super::batches::Batches;
use super::copy::BatchMemory;
use super::messages::Outgoing;
use super::shared::{ClientCommand, QueuedBatch, Shared, Wake};
use super::{NodeAnnouncement, NodeEvent};
use crate::buffer::BufferPool;

const DATA_SET: u32 = 3;

/// A batch of samples with 10 bytes each.
fn batch(number: u64, count: usize) -> QueuedBatch {
    let pool = Arc::new(BufferPool::new(Bytes::new(1 << 20), Arc::default()));
    let buffer = pool.lend(10 * count);
    buffer.ensure_mapped().unwrap();
    QueuedBatch {
        number,
        deadline: Nanos::MAX,
        samples: (0..count as u64).map(SampleId).collect(),
        spans: (0..count).map(|at| (10 * at, 10)).collect(),
        memory: Arc::new(BatchMemory::new(buffer)),
    }
}

/// Batches with one requested batch of 3 samples, number 7.
fn requested() -> Batches {
    let mut batches = Batches::default();
    batches.insert(batch(7, 3));
    batches.on_requested(7);
    batches
}

/// Push up to `most` messages, and return them.
fn push(outgoing: &mut Outgoing, batches: &mut Batches, most: usize) -> Vec<Vec<u8>> {
    let mut pushed = Vec::new();
    let try_push = |message: &[u8]| {
        let has_space = pushed.len() < most;
        if has_space {
            pushed.push(message.to_vec());
        }
        Ok(has_space)
    };
    outgoing.push(try_push, batches).unwrap();
    pushed
}

fn kinds(messages: &[Vec<u8>]) -> Vec<String> {
    let kind = |message: &Vec<u8>| match ConsumerMessage::decode(message).unwrap() {
        ConsumerMessage::Request(request) => format!("request {}", request.batch),
        ConsumerMessage::Release(release) => {
            format!("release {} {:?}", release.batch, release.positions)
        }
        ConsumerMessage::Repeat(repeat) => format!("repeat {} {:?}", repeat.batch, repeat.positions),
        ConsumerMessage::Progress(progress) => format!("progress {}", progress.accesses),
        ConsumerMessage::Announce(part) => format!(
            "announce {}{}{}{}",
            part.samples.len(),
            if part.is_restart { " restart" } else { "" },
            if part.is_epoch_end { " epoch end" } else { "" },
            if part.is_end { " end" } else { "" },
        ),
        ConsumerMessage::Hits(hits) => format!("hits {}", hits.accesses),
        other => panic!("{other:?}"),
    };
    messages.iter().map(kind).collect()
}

#[test]
fn a_position_is_answered_once() {
    let mut batches = requested();
    let batch = batches.answered(7).unwrap().unwrap();
    assert_eq!(batch.place(2).unwrap(), (SampleId(2), (20, 10)));
    batch.on_done(2);
    for (position, why) in [(2, "answered before"), (3, "does not exist")] {
        let fault = batch.place(position).unwrap_err();
        assert!(matches!(fault, NodeError::Malformed { .. }));
        assert!(fault.to_string().contains(why), "{fault}");
    }
    batch.on_done(0);
    assert!(!batch.is_complete());
    batch.on_done(1);
    assert!(batch.is_complete());
}

#[test]
fn a_position_that_was_taken_back_is_answered_after_its_request_is_repeated() {
    let mut batches = requested();
    batches.answered(7).unwrap().unwrap().on_taken_back(1);
    let fault = batches.answered(7).unwrap().unwrap().check(1).unwrap_err();
    assert!(fault.to_string().contains("not requested yet"), "{fault}");
    let mut outgoing = Outgoing::new(DATA_SET, 4088);
    outgoing.repeat(7, &[1]);
    assert_eq!(kinds(&push(&mut outgoing, &mut batches, 9)), ["repeat 7 [1]"]);
    batches.answered(7).unwrap().unwrap().check(1).unwrap();
}

#[test]
fn answers_of_ended_batches_are_ignored_and_those_of_unknown_ones_are_faults() {
    let mut batches = requested();
    assert!(batches.end(7) && !batches.end(7));
    assert!(batches.answered(7).unwrap().is_none());
    assert!(batches.answered(6).unwrap().is_none());
    assert!(matches!(batches.answered(8), Err(NodeError::Malformed { .. })));
    assert!(matches!(Batches::default().answered(0), Err(NodeError::Malformed { .. })));
}

#[test]
fn replies_come_first_and_the_progress_after_the_commands_in_their_order() {
    let (mut outgoing, mut batches) = (Outgoing::new(DATA_SET, 4088), requested());
    let announcement = NodeAnnouncement { samples: vec![SampleId(1)], ..NodeAnnouncement::default() };
    outgoing.commands.extend([ClientCommand::Announce(announcement), ClientCommand::Request(batch(8, 1))]);
    outgoing.commands.extend([ClientCommand::Withdraw(8), ClientCommand::Withdraw(8)]);
    outgoing.report(ConsumerProgress { accesses: 1, interval: Nanos::ZERO, is_waiting: false });
    outgoing.report(ConsumerProgress { accesses: 2, interval: Nanos::ZERO, is_waiting: false });
    outgoing.release(7, &[0, 2]);
    outgoing.end(7);
    let first = push(&mut outgoing, &mut batches, 3);
    assert_eq!(kinds(&first), ["release 7 [0, 2]", "release 7 []", "announce 1"]);
    // The request waits for space, so it is not sent.
    assert!(outgoing.waiting_bytes().is_some());
    assert!(batches.answered(8).unwrap().unwrap().check(0).is_err());
    outgoing.release(7, &[1]);
    let second = push(&mut outgoing, &mut batches, 9);
    assert_eq!(kinds(&second), ["request 8", "release 7 [1]", "release 8 []", "progress 2"]);
    assert_eq!(outgoing.waiting_bytes(), None);
    assert!(batches.answered(8).unwrap().is_none());
}

#[test]
fn long_lists_are_split_and_flags_are_those_of_the_first_or_the_last_part() {
    let (mut outgoing, mut batches) = (Outgoing::new(DATA_SET, 4088), Batches::default());
    let samples: Vec<_> = (0..300).map(SampleId).collect();
    let announcement =
        NodeAnnouncement { samples, generation: 1, is_restart: true, is_epoch_end: true, is_end: true };
    let empty = NodeAnnouncement { is_epoch_end: true, ..NodeAnnouncement::default() };
    outgoing.commands.extend([ClientCommand::Announce(announcement), ClientCommand::Announce(empty)]);
    let expected =
        ["announce 125 restart", "announce 125", "announce 50 epoch end end", "announce 0 epoch end"];
    assert_eq!(kinds(&push(&mut outgoing, &mut batches, 9)), expected);
    let positions: Vec<_> = (0..2000).collect();
    outgoing.release(1, &positions);
    let mut found = Vec::new();
    for message in push(&mut outgoing, &mut batches, 9) {
        assert!(message.len() <= 4088);
        let ConsumerMessage::Release(release) = ConsumerMessage::decode(&message).unwrap() else { panic!() };
        found.extend(release.positions);
    }
    assert_eq!(found, positions);
}

#[test]
fn positions_that_no_one_fills_are_reported_at_the_end() {
    let (shared, mut batches) = (Shared::new(Arc::default()), requested());
    batches.answered(7).unwrap().unwrap().on_done(1);
    let withdrawn = batch(8, 2);
    withdrawn.memory.withdraw();
    batches.insert(withdrawn);
    let taken = [ClientCommand::Request(batch(9, 1)), ClientCommand::Withdraw(8)].into();
    assert_eq!(shared.request(batch(10, 2)), Some(Wake::Needed));
    shared.end(NodeError::Ended, batches.missing(), taken);
    let mut events = Vec::new();
    shared.drain(&mut events);
    let [NodeEvent::Ended { why: NodeError::Ended, missing }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(missing[..], [(7, vec![0, 2]), (9, vec![0]), (10, vec![0, 1])]);
    assert_eq!(shared.request(batch(11, 1)), None, "nothing is taken afterwards");
    assert!(shared.withdraw(10).is_none());
}

#[test]
fn an_epoch_is_wanted_once_until_the_next_announcement() {
    let shared = Shared::new(Arc::default());
    let wanted = |shared: &Shared| {
        let mut events = Vec::new();
        shared.report_epoch_wanted();
        shared.report_epoch_wanted();
        shared.drain(&mut events);
        events.len()
    };
    assert_eq!((wanted(&shared), wanted(&shared)), (1, 0));
    assert_eq!(shared.announce(NodeAnnouncement::default()), Wake::Needed);
    assert_eq!(wanted(&shared), 1);
}

#[test]
fn hits_are_counted_together_and_sent_with_the_next_command() {
    let shared = Shared::new(Arc::default());
    assert!(shared.count_hits(3) && shared.count_hits(4));
    assert!(!shared.has_work(), "they do not wake the thread");
    assert_eq!(shared.request(batch(1, 1)), Some(Wake::Needed));
    assert!(shared.count_hits(5) && shared.has_work());
    let (mut outgoing, mut batches) = (Outgoing::new(DATA_SET, 4088), Batches::default());
    shared.take(&mut outgoing.commands);
    assert_eq!(kinds(&push(&mut outgoing, &mut batches, 9)), ["hits 7", "request 1", "hits 5"]);
    shared.end(NodeError::Ended, Vec::new(), [].into());
    assert!(!shared.count_hits(1), "nobody counts them any more");
}

#[test]
fn the_thread_is_woken_once_for_the_commands_that_it_takes_together() {
    let shared = Shared::new(Arc::default());
    assert_eq!(shared.request(batch(1, 1)), Some(Wake::Needed));
    assert_eq!(shared.request(batch(2, 1)), Some(Wake::NotNeeded));
    assert_eq!(shared.withdraw(1).map(|(_, wake)| wake), Some(Wake::NotNeeded));
    let progress = ConsumerProgress { accesses: 1, interval: Nanos::ZERO, is_waiting: false };
    assert_eq!(shared.progress(progress), Wake::NotNeeded);
    let mut commands = std::collections::VecDeque::new();
    assert!(shared.take(&mut commands).0.is_some() && commands.len() == 3);
    assert_eq!(shared.progress(progress), Wake::Needed);
    assert_eq!(shared.request(batch(3, 1)), Some(Wake::NotNeeded), "the progress has woken it");
}
