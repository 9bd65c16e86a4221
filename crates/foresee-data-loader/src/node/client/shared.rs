// SPDX-License-Identifier: Apache-2.0
//! What driver and thread share: commands in one direction, events in the other, and the memory of batches.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foresee_data_node::NodeError;
use foresee_data_node::message::ConsumerProgress;
use foresee_units::{Nanos, SampleId};

use super::copy::BatchMemory;
use super::{NodeAnnouncement, NodeEvent};
use crate::waker::Waker;

/// A command of the driver. The thread executes commands in their order.
#[derive(Debug)]
pub(super) enum ClientCommand {
    Announce(NodeAnnouncement),
    Request(QueuedBatch),
    /// End a batch that was requested before.
    Withdraw(u64),
    /// Count this many accesses as copied without a request.
    Hits(u64),
}

/// A batch whose memory can be withdrawn.
#[derive(Debug)]
pub(super) struct QueuedBatch {
    pub(super) number: u64,
    pub(super) deadline: Nanos,
    pub(super) samples: Box<[SampleId]>,
    pub(super) spans: Box<[(usize, usize)]>,
    pub(super) memory: Arc<BatchMemory>,
}

/// The queues between driver and thread.
#[derive(Debug)]
pub(super) struct Shared {
    queues: Mutex<Queues>,
    waker: Arc<Waker>,
}

#[derive(Debug, Default)]
struct Queues {
    commands: VecDeque<ClientCommand>,
    progress: Option<ConsumerProgress>,
    events: Vec<NodeEvent>,
    /// Of batches that are neither complete nor withdrawn.
    memories: BTreeMap<u64, Arc<BatchMemory>>,
    /// The greatest number of a batch.
    last: Option<u64>,
    /// Whether the driver knows that an epoch is wanted.
    is_epoch_wanted: bool,
    thread: ThreadState,
    is_closed: bool,
}

/// What the driver knows about the thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ThreadState {
    /// It has taken all that it was woken for.
    #[default]
    Idle,
    /// It was woken for a command that it has not taken.
    Woken,
    /// It takes nothing any more.
    Ended,
}

/// Whether the thread has to be woken for a command: not if it was for an earlier one, which it takes together with this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Wake {
    Needed,
    NotNeeded,
}

impl Queues {
    fn command(&mut self, command: ClientCommand) -> Wake {
        let wake = self.wake();
        self.commands.push_back(command);
        wake
    }

    fn wake(&mut self) -> Wake {
        if self.thread == ThreadState::Idle {
            self.thread = ThreadState::Woken;
            return Wake::Needed;
        }
        Wake::NotNeeded
    }
}

impl Shared {
    pub(super) fn new(waker: Arc<Waker>) -> Self {
        Self { queues: Mutex::default(), waker }
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn announce(&self, announcement: NodeAnnouncement) -> Wake {
        let mut queues = self.lock();
        queues.is_epoch_wanted = false;
        if queues.thread == ThreadState::Ended {
            return Wake::NotNeeded;
        }
        queues.command(ClientCommand::Announce(announcement))
    }

    /// `None`: the thread has ended.
    pub(super) fn request(&self, batch: QueuedBatch) -> Option<Wake> {
        let mut queues = self.lock();
        assert!(queues.last.is_none_or(|last| batch.number > last), "numbers of batches increase");
        queues.last = Some(batch.number);
        if queues.thread == ThreadState::Ended {
            return None;
        }
        queues.memories.insert(batch.number, Arc::clone(&batch.memory));
        Some(queues.command(ClientCommand::Request(batch)))
    }

    /// Count accesses that were copied without a request. The thread is not woken: the next command takes the count along.
    /// Returns `false`, and counts nothing, once the thread has ended.
    pub(super) fn count_hits(&self, accesses: u64) -> bool {
        let mut queues = self.lock();
        if queues.thread == ThreadState::Ended {
            return false;
        }
        match queues.commands.back_mut() {
            Some(ClientCommand::Hits(count)) => *count += accesses,
            _ => queues.commands.push_back(ClientCommand::Hits(accesses)),
        }
        true
    }

    /// Returns the memory that the caller withdraws.
    pub(super) fn withdraw(&self, number: u64) -> Option<(Arc<BatchMemory>, Wake)> {
        let mut queues = self.lock();
        let memory = queues.memories.remove(&number)?;
        Some((memory, queues.command(ClientCommand::Withdraw(number))))
    }

    pub(super) fn progress(&self, progress: ConsumerProgress) -> Wake {
        let mut queues = self.lock();
        let wake = queues.wake();
        queues.progress = Some(progress);
        wake
    }

    pub(super) fn drain(&self, into: &mut Vec<NodeEvent>) {
        into.append(&mut self.lock().events);
    }

    pub(super) fn close(&self) {
        self.lock().is_closed = true;
    }

    /// Whether the thread has to wake for the driver.
    pub(super) fn has_work(&self) -> bool {
        let queues = self.lock();
        queues.is_closed || queues.thread == ThreadState::Woken
    }

    /// Move all commands to the end of `commands`. Returns the latest progress, and whether the thread has to end.
    pub(super) fn take(&self, commands: &mut VecDeque<ClientCommand>) -> (Option<ConsumerProgress>, bool) {
        let mut queues = self.lock();
        commands.append(&mut queues.commands);
        queues.thread = ThreadState::Idle;
        (queues.progress.take(), queues.is_closed)
    }

    /// Report events of a batch, which is complete or not.
    pub(super) fn report(&self, batch: u64, events: impl IntoIterator<Item = NodeEvent>, is_complete: bool) {
        let mut queues = self.lock();
        queues.events.extend(events);
        if is_complete {
            queues.memories.remove(&batch);
        }
        drop(queues);
        self.waker.wake();
    }

    pub(super) fn report_epoch_wanted(&self) {
        let mut queues = self.lock();
        if !std::mem::replace(&mut queues.is_epoch_wanted, true) {
            queues.events.push(NodeEvent::EpochWanted);
            drop(queues);
            self.waker.wake();
        }
    }

    /// Report the end, with the missing positions of requested batches. Requests in `commands` or not taken yet are missing
    /// as a whole.
    pub(super) fn end(
        &self,
        why: NodeError,
        mut missing: Vec<(u64, Vec<u32>)>,
        mut commands: VecDeque<ClientCommand>,
    ) {
        let mut queues = self.lock();
        queues.thread = ThreadState::Ended;
        queues.memories.clear();
        commands.append(&mut queues.commands);
        let requests = commands.iter().filter_map(|command| match command {
            ClientCommand::Request(batch) if !batch.memory.is_withdrawn() => Some(batch),
            _ => None,
        });
        missing.extend(
            requests.map(|batch| (batch.number, (0..).zip(&batch.spans).map(|(at, _)| at).collect())),
        );
        queues.events.push(NodeEvent::Ended { why, missing });
        drop(queues);
        self.waker.wake();
    }
}
