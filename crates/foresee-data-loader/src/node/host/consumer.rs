// SPDX-License-Identifier: Apache-2.0
//! One consumer as the driver sees it: its batches, the accesses that they stand for, and the replies of a turn.
//!
//! The planner numbers a consumer's accesses in the order in which they were announced. A batch is a range of them.

use std::collections::BTreeMap;

use foresee_data_node::SlabLocation;
use foresee_data_node::message::{SampleFailure, SampleLocation};
use foresee_data_plan::{ConsumerId, EntryId};
use foresee_units::{Bytes, Nanos, ReadOutcome, Source};

use super::inbox::ConsumerFacts;
use super::peer_job::PlanKey;
use super::session::{Reply, Session};

/// Samples and bytes from one source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Served {
    pub(super) samples: u64,
    pub(super) bytes: Bytes,
}

/// What a consumer has got so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ServedBySource {
    pub(super) memory: Served,
    pub(super) disk: Served,
    pub(super) peers: Served,
    pub(super) origin: Served,
}

/// See the module.
#[derive(Debug)]
pub(super) struct HostConsumer {
    /// Its number in the planner.
    pub(super) id: ConsumerId,
    pub(super) facts: ConsumerFacts,
    pub(super) session: Session,
    pub(super) data_set: Option<u32>,
    /// Entries of an epoch whose announcement is not complete.
    pub(super) announcing: Vec<EntryId>,
    /// Whether it was asked for an epoch since its last announcement.
    pub(super) is_epoch_wanted: bool,
    /// Announced accesses that a restart made void: the planner counts them, the consumer does not.
    pub(super) voided: u64,
    /// See [`Announcement::generation`](foresee_data_node::message::Announcement::generation), and its first access.
    pub(super) generation: u32,
    pub(super) generation_start: u64,
    pub(super) served: ServedBySource,
    /// When it attached, and when it last sent a message.
    pub(super) attached: Nanos,
    pub(super) last_message: Nanos,
    /// Whether it has had a batch.
    pub(super) has_batch: bool,
    batches: BTreeMap<u64, HostBatch>,
    /// The number of each batch by its first access.
    by_access: BTreeMap<u64, u64>,
    /// The batch that was answered last, if it has not ended: the next answer is mostly of the same one.
    latest: Option<(u64, BatchAccesses)>,
    /// Batches with replies that were not sent.
    answered: Vec<u64>,
    /// Samples requested and not released.
    requested: u64,
    /// Those of them that are not answered.
    waiting: u64,
}

/// A batch that has not ended.
#[derive(Debug)]
struct HostBatch {
    first: u64,
    len: u32,
    unanswered: u32,
    deadline: Nanos,
    ready: Vec<SampleLocation>,
    failed: Vec<SampleFailure>,
    /// Time of the first reply that was not sent; meaningful while there is one.
    replied: Nanos,
}

/// Accesses of a batch, or of some of its positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchAccesses {
    pub(super) first: u64,
    pub(super) len: u32,
    pub(super) deadline: Nanos,
}

impl HostConsumer {
    pub(super) fn new(id: ConsumerId, facts: ConsumerFacts, session: Session, now: Nanos) -> Self {
        Self {
            id,
            facts,
            session,
            data_set: None,
            announcing: Vec::new(),
            is_epoch_wanted: false,
            voided: 0,
            generation: 0,
            generation_start: 0,
            served: ServedBySource::default(),
            attached: now,
            last_message: now,
            has_batch: false,
            batches: BTreeMap::new(),
            by_access: BTreeMap::new(),
            latest: None,
            answered: Vec::new(),
            requested: 0,
            waiting: 0,
        }
    }

    /// Samples that it has requested and not released.
    pub(super) fn requested(&self) -> u64 {
        self.requested
    }

    /// Samples that it has requested, and that are not answered.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Accesses of its generation that it needs no longer: all before the first of a batch that has not ended, or before
    /// `next`, which it has not requested.
    pub(super) fn passed(&self, next: u64) -> u64 {
        self.by_access.keys().next().copied().unwrap_or(next).saturating_sub(self.generation_start)
    }

    /// Whether its accesses are those of a plan.
    pub(super) fn follows(&self, plan: &PlanKey) -> bool {
        self.is_of_loader(plan) && self.generation == plan.generation
    }

    /// Whether it belongs to the loader of a plan.
    pub(super) fn is_of_loader(&self, plan: &PlanKey) -> bool {
        self.facts.job == plan.job && self.facts.loader == plan.loader
    }

    /// A position of a batch is requested once more.
    pub(super) fn repeat(&mut self, batch: u64) {
        if let Some(batch) = self.batches.get_mut(&batch) {
            batch.unanswered += 1;
            self.waiting += 1;
        }
    }

    /// Begin a batch whose samples are the accesses from `first` on; `false` if one of this number has not ended.
    pub(super) fn begin(&mut self, batch: u64, first: u64, len: u32, deadline: Nanos) -> bool {
        if self.batches.contains_key(&batch) {
            return false;
        }
        let (ready, failed) = (Vec::new(), Vec::new());
        let replied = Nanos::ZERO;
        self.batches
            .insert(batch, HostBatch { first, len, unanswered: len, deadline, ready, failed, replied });
        self.by_access.insert(first, batch);
        self.requested += u64::from(len);
        self.waiting += u64::from(len);
        true
    }

    /// The accesses of a batch that has not ended.
    pub(super) fn batch(&self, batch: u64) -> Option<BatchAccesses> {
        self.batches.get(&batch).map(HostBatch::accesses)
    }

    /// The batch with this access, if it has not ended.
    pub(super) fn batch_of(&self, access: u64) -> Option<BatchAccesses> {
        let (_, number) = self.by_access.range(..=access).next_back()?;
        self.batch(*number).filter(|batch| batch.position(access).is_some())
    }

    /// End a batch, whatever is missing.
    pub(super) fn end(&mut self, batch: u64) -> Option<BatchAccesses> {
        let ended = self.batches.remove(&batch)?;
        self.has_batch = true;
        self.by_access.remove(&ended.first);
        self.latest = self.latest.filter(|&(latest, _)| latest != batch);
        self.requested -= u64::from(ended.len);
        self.waiting -= u64::from(ended.unanswered);
        Some(ended.accesses())
    }

    /// An access was answered: its `len` bytes are at `location`.
    pub(super) fn answer(
        &mut self,
        access: u64,
        location: SlabLocation,
        len: Bytes,
        source: Source,
        now: Nanos,
    ) {
        let served = match source {
            Source::Disk => &mut self.served.disk,
            Source::Peer => &mut self.served.peers,
            Source::Origin => &mut self.served.origin,
            _ => &mut self.served.memory,
        };
        served.samples += 1;
        served.bytes += len;
        self.reply(access, now, |batch, position| {
            batch.ready.push(SampleLocation { position, location, source });
        });
    }

    /// It has copied `samples` samples of `bytes` in all without a request.
    pub(super) fn note_hits(&mut self, samples: u64, bytes: Bytes) {
        self.served.memory.samples += samples;
        self.served.memory.bytes += bytes;
        self.has_batch = true;
    }

    /// An access cannot be read.
    pub(super) fn fail(&mut self, access: u64, outcome: ReadOutcome, now: Nanos) {
        self.reply(access, now, |batch, position| batch.failed.push(SampleFailure { position, outcome }));
    }

    /// Send the replies of batches that are complete, and of those with a reply from `until` or before.
    ///
    /// The consumer can use a batch only when it is complete, and each message wakes two threads.
    pub(super) fn send(&mut self, epoch_wanted: Option<u32>, until: Nanos) {
        let batches = &mut self.batches;
        let is_due = |batch: &HostBatch| batch.unanswered == 0 || batch.replied <= until;
        let due = self.answered.extract_if(.., |number| batches.get(number).is_none_or(is_due));
        let due: Vec<_> = due.collect();
        let replies = due.into_iter().flat_map(|batch| {
            let replied = batches.get_mut(&batch);
            let (ready, failed) = replied.map_or_else(Default::default, |replied| {
                (std::mem::take(&mut replied.ready), std::mem::take(&mut replied.failed))
            });
            let answer = (!ready.is_empty()).then_some(Reply::Answer { batch, samples: ready });
            let failure = (!failed.is_empty()).then_some(Reply::Failure { batch, samples: failed });
            answer.into_iter().chain(failure)
        });
        let wanted = epoch_wanted.map(|data_set| Reply::EpochWanted { data_set });
        let replies: Vec<_> = replies.chain(wanted).collect();
        if !replies.is_empty() {
            self.session.send(replies.into_iter());
        }
    }

    /// Time of the oldest reply that was not sent.
    pub(super) fn unsent_since(&self) -> Option<Nanos> {
        self.answered.iter().filter_map(|number| Some(self.batches.get(number)?.replied)).min()
    }

    fn reply(&mut self, access: u64, now: Nanos, add: impl FnOnce(&mut HostBatch, u32)) {
        // None if the batch has ended.
        let Some((number, position)) = self.find(access) else { return };
        let Some(batch) = self.batches.get_mut(&number) else { return };
        if batch.ready.is_empty() && batch.failed.is_empty() {
            self.answered.push(number);
            batch.replied = now;
        }
        batch.unanswered -= 1;
        self.waiting -= 1;
        add(batch, position);
    }

    /// The batch of an access, and its position there.
    fn find(&mut self, access: u64) -> Option<(u64, u32)> {
        if let Some((number, accesses)) = &self.latest
            && let Some(position) = accesses.position(access)
        {
            return Some((*number, position));
        }
        let (_, &number) = self.by_access.range(..=access).next_back()?;
        let accesses = self.batches.get(&number)?.accesses();
        let position = accesses.position(access)?;
        self.latest = Some((number, accesses));
        Some((number, position))
    }
}

impl BatchAccesses {
    fn position(&self, access: u64) -> Option<u32> {
        let position = u32::try_from(access.checked_sub(self.first)?).ok()?;
        (position < self.len).then_some(position)
    }
}

impl HostBatch {
    const fn accesses(&self) -> BatchAccesses {
        BatchAccesses { first: self.first, len: self.len, deadline: self.deadline }
    }
}
