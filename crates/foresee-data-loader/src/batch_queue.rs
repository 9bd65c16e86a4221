// SPDX-License-Identifier: Apache-2.0
//! The queue between the driver and the consumer: batches in one direction, demand and seeks in the other.
//!
//! It has one lock, which is held for moves of pointers only. The consumer's wait ends by a batch, an error, `close`,
//! or the tick at which the caller checks for signals.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use foresee_ledger::Cause;
use foresee_model::StepTimes;
use foresee_units::{Epoch, Nanos};

use crate::batch::Batch;
use crate::errors::LoaderError;
use crate::gather::Gather;
use crate::wait_causes::WaitCauses;
use crate::waker::Waker;

/// An entry of the queue.
#[derive(Debug)]
pub(crate) enum QueueEntry {
    Batch(Batch),
    /// The epoch has no more batches.
    EpochEnd(Epoch),
}

/// The consumer's position in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReadPosition {
    epoch: Epoch,
    /// Global position at which the epoch begins.
    start: u64,
    /// Whether none of its batches was taken.
    is_fresh: bool,
}

/// The consumer's position at an epoch's end, which is delivered like a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EpochEdge {
    Within,
    /// It has the last batch of this epoch, and not its end.
    Last(Epoch),
    /// It began the next epoch after the last batch: the end is skipped when it arrives.
    Skipped,
}

/// The cause of the consumer's wait.
#[derive(Clone, Debug)]
pub(crate) struct WaitReport {
    pub(crate) cause: Cause,
    /// Number of the awaited read.
    pub(crate) read: Option<u64>,
    /// Sample, source and URI.
    pub(crate) text: String,
}

#[derive(Debug)]
struct QueueState {
    queue: VecDeque<QueueEntry>,
    generation: u64,
    position: ReadPosition,
    edge: EpochEdge,
    /// Entries taken since the generation began.
    taken: u64,
    /// If all samples are in memory: the queue length at which the driver is woken.
    wake_at: Option<usize>,
    /// Whether the consumer waits.
    is_wanted: bool,
    /// The last report on the wait.
    wait_text: Option<String>,
    causes: WaitCauses,
    /// Whether the run has no further epoch.
    is_finished: bool,
    is_closed: bool,
    error: Option<Arc<LoaderError>>,
    /// Copies of the driver that a waiting consumer may share.
    shared: Option<Arc<Gather>>,
    last_take: Option<Instant>,
    steps: StepTimes,
}

/// The consumer's demand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConsumerSnapshot {
    /// Entries taken since the generation began.
    pub(crate) taken: u64,
    /// Whether it waits, and nothing is ready.
    pub(crate) is_waiting: bool,
    /// Time since it took the last entry; zero before the first.
    pub(crate) since: Nanos,
    /// A low quantile (p10) of its recent step times; `None` before there are any.
    pub(crate) step: Option<Nanos>,
}

#[derive(Debug)]
pub(crate) struct BatchQueue {
    state: Mutex<QueueState>,
    arrived: Condvar,
    waker: Arc<Waker>,
}

impl BatchQueue {
    pub(crate) fn new(waker: Arc<Waker>) -> Self {
        let state = QueueState {
            queue: VecDeque::new(),
            generation: 0,
            position: ReadPosition { epoch: Epoch(0), start: 0, is_fresh: true },
            edge: EpochEdge::Within,
            taken: 0,
            wake_at: None,
            is_wanted: false,
            wait_text: None,
            causes: WaitCauses::default(),
            is_finished: false,
            is_closed: false,
            error: None,
            shared: None,
            last_take: None,
            steps: StepTimes::default(),
        };
        Self { state: Mutex::new(state), arrived: Condvar::new(), waker }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- consumer

    /// Take the next entry, or return `Ok(None)` after `tick`. A batch has the causes of the wait for it. `now` is on
    /// the loader's clock.
    pub(crate) fn take(&self, tick: Duration, now: Nanos) -> Result<Option<QueueEntry>, LoaderError> {
        let until = Instant::now() + tick;
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return Err(LoaderError::Closed);
            }
            if let Some(mut entry) = state.queue.pop_front() {
                if matches!(entry, QueueEntry::EpochEnd(_)) && state.edge == EpochEdge::Skipped {
                    state.edge = EpochEdge::Within;
                    state.taken += 1;
                    continue;
                }
                self.note_taken(&mut state, &mut entry);
                return Ok(Some(entry));
            }
            if let Some(error) = &state.error {
                return Err(LoaderError::Stopped(Arc::clone(error)));
            }
            if state.is_finished {
                return Ok(Some(QueueEntry::EpochEnd(state.position.epoch)));
            }
            // After a seek a new wait begins, although `is_wanted` is still set.
            state.causes.begin(now);
            if !state.is_wanted {
                state.is_wanted = true;
                self.waker.wake();
            }
            if let Some(gather) = state.shared.take() {
                drop(state);
                if gather.help() {
                    self.waker.wake();
                }
                state = self.lock();
                continue;
            }
            let Some(left) = until.checked_duration_since(Instant::now()) else { return Ok(None) };
            state = self.arrived.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn note_taken(&self, state: &mut QueueState, entry: &mut QueueEntry) {
        let waited = std::mem::take(&mut state.is_wanted);
        state.taken += 1;
        state.wait_text = None;
        let stages = state.causes.end();
        match entry {
            QueueEntry::Batch(batch) => {
                batch.stages = stages;
                state.position.epoch = batch.epoch;
                state.position.is_fresh = false;
                state.edge = if batch.last { EpochEdge::Last(batch.epoch) } else { EpochEdge::Within };
            }
            QueueEntry::EpochEnd(epoch) => {
                state.position = ReadPosition { epoch: Epoch(epoch.0 + 1), start: 0, is_fresh: true };
                state.edge = EpochEdge::Within;
            }
        }
        let now = Instant::now();
        // A step that waited has the origin's rate, not the consumer's.
        if let Some(last) = state.last_take.filter(|_| !waited) {
            state.steps.observe((now - last).into());
        }
        state.last_take = Some(now);
        // A wake-up per batch would cost a context switch each, and the driver plans many batches at a time. With a
        // distant source it is woken early; with all samples in memory, half of the ready batches suffice.
        let left = state.queue.len();
        let is_due = state.wake_at.map_or(left < 4 || left.is_multiple_of(8), |at| left == at);
        if waited || is_due {
            self.waker.wake();
        }
    }

    /// The driver's last report on the wait.
    pub(crate) fn wait_text(&self) -> Option<String> {
        self.lock().wait_text.clone()
    }

    /// Causes of the present wait so far, each with its start.
    pub(crate) fn wait_stages(&self) -> Vec<(Cause, Nanos)> {
        self.lock().causes.stages()
    }

    /// The consumer opened the loader, from `since` on.
    pub(crate) fn begin_opening(&self, since: Nanos) {
        self.lock().causes.begin_opening(since);
    }

    /// Move the consumer to another position. Return the new generation, or `None` if it is there already. After the
    /// last batch of an epoch it is at the start of the next, whose staged batches stay. `is_forced`: move in any
    /// case.
    pub(crate) fn seek(&self, epoch: Epoch, start: u64, is_forced: bool) -> Option<u64> {
        let mut state = self.lock();
        let position = ReadPosition { epoch, start, is_fresh: true };
        if state.position == position && !is_forced {
            return None;
        }
        state.position = position;
        if let EpochEdge::Last(last) = state.edge
            && !is_forced
            && start == 0
            && last.0 + 1 == epoch.0
        {
            state.edge = EpochEdge::Skipped;
            return None;
        }
        state.edge = EpochEdge::Within;
        state.generation += 1;
        state.taken = 0;
        state.queue.clear();
        state.shared = None;
        state.is_finished = false;
        state.wait_text = None;
        state.causes.clear();
        state.last_take = None;
        Some(state.generation)
    }

    // ---- driver

    /// Append ready entries, unless the consumer has moved since `generation`. `in_memory`: all samples are in memory.
    pub(crate) fn push(&self, generation: u64, ready: impl Iterator<Item = QueueEntry>, in_memory: bool) {
        let mut state = self.lock();
        if state.generation == generation {
            state.queue.extend(ready);
            state.wake_at = in_memory.then_some(state.queue.len() / 2);
            if state.is_wanted && !state.queue.is_empty() {
                self.arrived.notify_all();
            }
        }
    }

    /// Offer copies to a waiting consumer.
    pub(crate) fn share(&self, gather: &Arc<Gather>) {
        let mut state = self.lock();
        state.shared = Some(Arc::clone(gather));
        if state.is_wanted {
            self.arrived.notify_all();
        }
    }

    /// End the offer, because every copy has begun.
    pub(crate) fn unshare(&self) {
        self.lock().shared = None;
    }

    /// The consumer's demand.
    pub(crate) fn snapshot(&self) -> ConsumerSnapshot {
        let state = self.lock();
        ConsumerSnapshot {
            taken: state.taken,
            is_waiting: state.is_wanted && state.queue.is_empty(),
            since: state.last_take.map_or(Nanos::ZERO, |last| last.elapsed().into()),
            step: state.steps.low(),
        }
    }

    /// Report the present cause of the consumer's wait.
    pub(crate) fn report_wait(&self, report: WaitReport, now: Nanos) {
        let mut state = self.lock();
        if state.is_wanted {
            state.causes.set(report.cause, report.read, now);
            state.wait_text = Some(report.text);
        }
    }

    /// Number of ready entries.
    pub(crate) fn len(&self) -> usize {
        self.lock().queue.len()
    }

    pub(crate) fn finish(&self, generation: u64) {
        let mut state = self.lock();
        if state.generation == generation {
            state.is_finished = true;
            self.arrived.notify_all();
        }
    }

    /// End the run: the consumer gets the first `error` after the ready entries.
    pub(crate) fn fail(&self, error: LoaderError) {
        self.lock().error.get_or_insert(Arc::new(error));
        self.arrived.notify_all();
    }

    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.queue.clear();
        self.arrived.notify_all();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty_queue() -> BatchQueue {
        BatchQueue::new(Arc::new(Waker::default()))
    }

    #[test]
    fn a_seek_to_where_the_consumer_stands_changes_nothing() {
        let queue = empty_queue();
        assert_eq!(queue.seek(Epoch(0), 0, false), None);
        assert_eq!(queue.seek(Epoch(2), 64, false), Some(1));
        assert_eq!(queue.seek(Epoch(2), 64, false), None);
        assert_eq!(queue.seek(Epoch(2), 64, true), Some(2));
    }

    #[test]
    fn batches_that_were_ready_before_a_seek_are_never_delivered_after_it() {
        let queue = empty_queue();
        queue.push(0, std::iter::once(QueueEntry::EpochEnd(Epoch(0))), false);
        assert_eq!(queue.seek(Epoch(5), 0, false), Some(1));
        queue.push(0, std::iter::once(QueueEntry::EpochEnd(Epoch(0))), false);
        assert!(matches!(queue.take(Duration::from_millis(1), Nanos::ZERO), Ok(None)));
        queue.push(1, std::iter::once(QueueEntry::EpochEnd(Epoch(5))), false);
        assert!(matches!(
            queue.take(Duration::from_millis(1), Nanos::ZERO),
            Ok(Some(QueueEntry::EpochEnd(Epoch(5))))
        ));
        assert_eq!(queue.seek(Epoch(6), 0, false), None, "the end of an epoch is the start of the next");
    }

    #[test]
    fn after_the_last_batch_the_next_epoch_begins_with_its_staged_batches() {
        let queue = empty_queue();
        let ready = [
            QueueEntry::Batch(batch(0, true)),
            QueueEntry::EpochEnd(Epoch(0)),
            QueueEntry::Batch(batch(1, false)),
        ];
        queue.push(0, ready.into_iter(), false);
        let next = || queue.take(Duration::ZERO, Nanos::ZERO).expect("open").expect("ready");
        assert!(matches!(next(), QueueEntry::Batch(_)));
        assert_eq!(queue.seek(Epoch(1), 0, false), None);
        assert!(matches!(next(), QueueEntry::Batch(batch) if batch.epoch == Epoch(1)), "the end is skipped");
        assert_eq!(queue.snapshot().taken, 3);
        assert_eq!(queue.seek(Epoch(2), 0, false), Some(1), "epoch 1 is not over");
    }

    fn batch(epoch: u64, last: bool) -> Batch {
        let pool = crate::buffer::BufferPool::new(foresee_units::Bytes::ZERO, Arc::default());
        let buffer = Arc::new(pool).lend(1);
        buffer.ensure_mapped().expect("memory");
        Batch {
            epoch: Epoch(epoch),
            step: foresee_units::Step(0),
            start: 0,
            last,
            ids: Vec::new(),
            labels: Vec::new(),
            offsets: vec![0],
            faults: Vec::new(),
            stages: Vec::new(),
            buffer,
        }
    }

    #[test]
    fn close_ends_a_wait_in_another_thread() {
        let queue = Arc::new(empty_queue());
        let other = Arc::clone(&queue);
        let waiter = std::thread::spawn(move || other.take(Duration::from_secs(60), Nanos::ZERO));
        queue.close();
        assert!(matches!(waiter.join().expect("the waiter ends"), Err(LoaderError::Closed)));
    }

    #[test]
    fn a_wait_that_continues_after_a_seek_has_its_own_causes() {
        let queue = empty_queue();
        let at = Nanos::from_millis;
        let report = |cause| WaitReport { cause, read: None, text: "sample 1".to_owned() };
        assert!(matches!(queue.take(Duration::ZERO, at(1)), Ok(None)));
        queue.report_wait(report(Cause::OriginRead), at(2));
        assert_eq!(queue.seek(Epoch(3), 0, false), Some(1));
        assert!(queue.wait_stages().is_empty());
        assert!(matches!(queue.take(Duration::ZERO, at(5)), Ok(None)));
        queue.report_wait(report(Cause::Disk), at(6));
        assert_eq!(queue.wait_stages(), [(Cause::Disk, at(5))]);
    }

    #[test]
    fn a_batch_has_the_causes_of_its_wait_and_the_next_one_has_none() {
        let queue = empty_queue();
        let at = Nanos::from_millis;
        assert!(matches!(queue.take(Duration::ZERO, at(1)), Ok(None)));
        let report = |cause| WaitReport { cause, read: None, text: "sample 1".to_owned() };
        queue.report_wait(report(Cause::OriginQueue), at(2));
        queue.report_wait(report(Cause::Copy), at(3));
        assert_eq!(queue.wait_text().as_deref(), Some("sample 1"));
        let stages = [(Cause::OriginQueue, at(1)), (Cause::Copy, at(3))];
        assert_eq!(queue.wait_stages(), stages);
        queue.push(0, [batch(0, false), batch(0, false)].map(QueueEntry::Batch).into_iter(), false);
        for expected in [&stages[..], &[]] {
            let taken = queue.take(Duration::ZERO, at(9)).expect("open");
            assert!(matches!(taken, Some(QueueEntry::Batch(batch)) if batch.stages == expected));
        }
        assert!(queue.wait_text().is_none());
        queue.report_wait(report(Cause::Plan), at(10));
        assert!(queue.wait_stages().is_empty(), "the consumer does not wait");
    }
}
