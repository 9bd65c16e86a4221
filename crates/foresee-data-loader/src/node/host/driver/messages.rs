// SPDX-License-Identifier: Apache-2.0
//! Consumers and their messages. A message that contradicts what the consumer announced ends its attachment.

use foresee_data_node::message::{
    Announcement, BatchRelease, BatchRequest, ConsumerMessage, ConsumerProgress, MemoryHits, MessageError,
    RepeatRequest,
};
use foresee_data_plan::{ConsumerId, EntryId, NodePlanError};
use foresee_units::{Nanos, SampleId};

use super::super::consumer::{BatchAccesses, HostConsumer};
use super::super::inbox::ConsumerFacts;
use super::super::session::Session;
use super::{HostDriver, UNSENT_MAX};
use crate::node::now;

/// Samples that a consumer may have requested and not released.
const REQUESTED_MAX: u64 = 1 << 22;
/// Accesses of one epoch.
const EPOCH_MAX: usize = 1 << 28;

/// Why a message cannot be right.
#[derive(Debug, thiserror::Error)]
enum MessageFault {
    #[error(transparent)]
    Encoding(#[from] MessageError),
    #[error("it is about data set {0}, which the consumer has not opened")]
    DataSet(u32),
    #[error("it announces sample {sample} of {count}")]
    Sample { sample: SampleId, count: u64 },
    #[error("it announces an epoch of more than {EPOCH_MAX} samples")]
    EpochTooLong,
    #[error(
        "batch {batch} requests sample {requested} as its number {position}, but announced was {announced}"
    )]
    OtherSample { batch: u64, position: usize, requested: SampleId, announced: String },
    #[error("batch {0} has not ended, and is requested again")]
    BatchInUse(u64),
    #[error("position {position} is outside batch {batch} of {len} samples")]
    Position { batch: u64, position: u32, len: u32 },
    #[error("more than {REQUESTED_MAX} samples are requested and not released")]
    TooMany,
    #[error(transparent)]
    Plan(#[from] NodePlanError),
}

impl HostDriver {
    pub(super) fn attach(&mut self, number: u32, facts: ConsumerFacts, session: Session) {
        let free = self.numbers.iter().position(Option::is_none).unwrap_or(self.numbers.len());
        if free == self.numbers.len() {
            self.numbers.push(None);
        }
        self.numbers[free] = Some(number);
        let id = ConsumerId(u32::try_from(free).expect("consumers are few"));
        let now = now();
        self.start.note_attached(now);
        self.planner.handle_attach(id, now);
        self.consumers.insert(number, HostConsumer::new(id, facts, session, now));
    }

    pub(super) fn detach(&mut self, number: u32) {
        let Some(consumer) = self.consumers.remove(&number) else { return };
        self.planner.handle_detach(consumer.id, now());
        self.numbers[consumer.id.0 as usize] = None;
        self.note_detached();
        if self.consumers.is_empty() {
            self.planner.handle_idle(now());
        }
    }

    pub(super) fn handle_message(&mut self, number: u32, bytes: &[u8]) {
        let Some(consumer) = self.consumers.get_mut(&number) else { return };
        consumer.session.note_handled();
        consumer.last_message = now();
        let outcome =
            ConsumerMessage::decode(bytes).map_err(MessageFault::from).and_then(|message| match message {
                ConsumerMessage::Announce(announcement) => self.announce(number, announcement),
                ConsumerMessage::Request(request) => self.request(number, request),
                ConsumerMessage::Repeat(request) => self.repeat(number, request),
                ConsumerMessage::Release(release) => self.release_batch(number, release),
                ConsumerMessage::Hits(hits) => self.count_hits(number, hits),
                ConsumerMessage::Progress(progress) => {
                    self.progress(number, progress);
                    Ok(())
                }
                _ => Ok(()),
            });
        if let Err(fault) = outcome {
            self.shared.reception.end(number, format!("a message cannot be used: {fault}"));
        }
    }

    fn announce(&mut self, number: u32, announcement: Announcement<'_>) -> Result<(), MessageFault> {
        let now = now();
        let Some(consumer) = self.consumers.get_mut(&number) else { return Ok(()) };
        let data_set = announcement.data_set;
        let opened = self.data_sets.get(data_set as usize).filter(|_| consumer.data_set == Some(data_set));
        let opened = opened.ok_or(MessageFault::DataSet(data_set))?;
        consumer.is_epoch_wanted = false;
        if announcement.is_restart {
            let void = self.planner.announced(consumer.id);
            consumer.voided += void.end - void.start;
            consumer.generation_start = void.end;
            consumer.announcing.clear();
            self.planner.handle_restart(consumer.id, now);
        }
        let is_new =
            std::mem::replace(&mut consumer.generation, announcement.generation) != announcement.generation;
        let count = opened.data.index().len();
        if consumer.announcing.len() + announcement.samples.len() > EPOCH_MAX {
            return Err(MessageFault::EpochTooLong);
        }
        for sample in announcement.samples {
            if sample.0 >= count {
                return Err(MessageFault::Sample { sample, count });
            }
            consumer.announcing.push(opened.entry(sample));
        }
        if announcement.is_epoch_end && !consumer.announcing.is_empty() {
            let epoch = std::mem::take(&mut consumer.announcing);
            self.planner.handle_epoch(consumer.id, &mut epoch.into_iter(), now);
        }
        if announcement.is_end {
            self.planner.handle_end(consumer.id);
        }
        if is_new {
            self.note_generation(number);
        }
        Ok(())
    }

    /// Request the next announced accesses, after a check that they are these samples.
    fn request(&mut self, number: u32, request: BatchRequest<'_>) -> Result<(), MessageFault> {
        let now = now();
        let Some(consumer) = self.consumers.get_mut(&number) else { return Ok(()) };
        let (data_set, len) = (request.data_set, request.samples.len());
        let opened = self.data_sets.get(data_set as usize).filter(|_| consumer.data_set == Some(data_set));
        let opened = opened.ok_or(MessageFault::DataSet(data_set))?;
        if consumer.requested() + len as u64 > REQUESTED_MAX {
            return Err(MessageFault::TooMany);
        }
        let (id, first) = (consumer.id, self.planner.announced(consumer.id).start);
        let count = opened.data.index().len();
        for (position, (sample, access)) in request.samples.iter().zip(first..).enumerate() {
            let announced = self.planner.announced_entry(id, access);
            let is_same = sample.0 < count && announced == Some(opened.entry(sample));
            if !is_same {
                let text = |EntryId(entry): EntryId| (u64::from(entry) - u64::from(opened.first)).to_string();
                let announced = announced.map_or_else(|| "nothing".to_owned(), text);
                let (batch, requested) = (request.batch, sample);
                return Err(MessageFault::OtherSample { batch, position, requested, announced });
            }
            self.places.prefetch(opened.entry(sample));
        }
        let requested = u32::try_from(len).expect("a message has few samples");
        if !consumer.begin(request.batch, first, requested, request.deadline) {
            return Err(MessageFault::BatchInUse(request.batch));
        }
        for access in first..first + len as u64 {
            self.planner.handle_request(id, access, request.deadline, now)?;
        }
        Ok(())
    }

    /// Request samples of a batch again that were withdrawn.
    fn repeat(&mut self, number: u32, request: RepeatRequest<'_>) -> Result<(), MessageFault> {
        let Some(consumer) = self.consumers.get_mut(&number) else { return Ok(()) };
        let Some(batch) = consumer.batch(request.batch) else { return Ok(()) };
        for position in request.positions {
            let access = access_of(request.batch, batch, position)?;
            self.planner.handle_request(consumer.id, access, batch.deadline, now())?;
            consumer.repeat(request.batch);
        }
        Ok(())
    }

    fn release_batch(&mut self, number: u32, release: BatchRelease<'_>) -> Result<(), MessageFault> {
        let Some(consumer) = self.consumers.get_mut(&number) else { return Ok(()) };
        let id = consumer.id;
        if release.positions.is_empty() {
            if let Some(BatchAccesses { first, len, .. }) = consumer.end(release.batch) {
                for access in first..first + u64::from(len) {
                    self.planner.handle_release(id, access);
                }
            }
            self.note_fetched(number);
            return Ok(());
        }
        let Some(batch) = consumer.batch(release.batch) else { return Ok(()) };
        for position in release.positions {
            self.planner.handle_release(id, access_of(release.batch, batch, position)?);
        }
        Ok(())
    }

    /// Count accesses that the consumer has copied without a request.
    fn count_hits(&mut self, number: u32, MemoryHits { accesses }: MemoryHits) -> Result<(), MessageFault> {
        let Some(consumer) = self.consumers.get_mut(&number) else { return Ok(()) };
        let bytes = self.planner.handle_hits(consumer.id, accesses, now())?;
        consumer.note_hits(accesses, bytes);
        self.note_fetched(number);
        Ok(())
    }

    fn progress(&mut self, number: u32, progress: ConsumerProgress) {
        let Some(consumer) = self.consumers.get(&number) else { return };
        let position = progress.accesses.saturating_add(consumer.voided);
        let interval = (progress.interval != Nanos::ZERO).then_some(progress.interval);
        let (id, now) = (consumer.id, now());
        let waited_for = consumer.batch_of(position).filter(|_| progress.is_waiting);
        self.planner.handle_progress(id, position, interval, now);
        if let Some(BatchAccesses { first, len, .. }) = waited_for {
            for access in first..first + u64::from(len) {
                self.planner.handle_deadline(id, access, now, now);
            }
        }
    }

    /// Send the replies that are due, with the request for an epoch where the planner can use one. All are due if reads wait
    /// for memory, which consumers give back after they have copied.
    pub(super) fn send_replies(&mut self) {
        let is_short = self.planner.is_blocked() || !self.unplaced.is_empty();
        let until = if is_short { Nanos::MAX } else { now().saturating_sub(UNSENT_MAX) };
        for consumer in self.consumers.values_mut() {
            let is_complete = consumer.announcing.is_empty() && !consumer.is_epoch_wanted;
            let data_set = consumer.data_set.filter(|_| is_complete && self.planner.wants_epoch(consumer.id));
            consumer.is_epoch_wanted |= data_set.is_some();
            consumer.send(data_set, until);
        }
    }
}

fn access_of(batch: u64, accesses: BatchAccesses, position: u32) -> Result<u64, MessageFault> {
    let BatchAccesses { first, len, .. } = accesses;
    if position >= len {
        return Err(MessageFault::Position { batch, position, len });
    }
    Ok(first + u64::from(position))
}
