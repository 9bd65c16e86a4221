// SPDX-License-Identifier: Apache-2.0
//! The queue between the driver and the consumer: batches one way, demand and new places the other.
//!
//! One lock, held for moves of a pointer only. The consumer's wait ends by a batch, an error, `close`, or the tick at
//! which the caller checks for signals; nothing here ever waits without a bound.

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
    End(Epoch),
}

/// Where the consumer stands in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) epoch: Epoch,
    /// Global position from which the epoch is read.
    pub(crate) position: u64,
    /// No batch of it has been handed out yet.
    pub(crate) fresh: bool,
}

/// Where the consumer stands at an epoch's end, which is handed over like a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edge {
    Within,
    /// It has the last batch of this epoch, and not its end.
    Over(Epoch),
    /// It knew that the epoch was over and began the next: the end is skipped when it comes.
    Left,
}

/// What the consumer is waiting for, as the driver sees it.
#[derive(Clone, Debug)]
pub(crate) struct WaitNote {
    pub(crate) cause: Cause,
    /// Number of the read that is waited for.
    pub(crate) read: Option<u64>,
    /// Sample, source and URI, in words.
    pub(crate) what: String,
}

#[derive(Debug)]
struct State {
    queue: VecDeque<QueueEntry>,
    generation: u64,
    standing: Standing,
    edge: Edge,
    /// Batches taken since the generation began.
    taken: u64,
    /// How many ready batches are few, where nothing has to be fetched from afar.
    wake_at: Option<usize>,
    /// The consumer waits.
    wanted: bool,
    /// What is being waited for, in words.
    what: Option<String>,
    causes: WaitCauses,
    /// The run has no further epoch.
    finished: bool,
    closed: bool,
    broken: Option<Arc<LoaderError>>,
    /// Copies that the driver is at, and that a waiting consumer may share.
    shared: Option<Arc<Gather>>,
    last_take: Option<Instant>,
    steps: StepTimes,
}

/// The consumer's demand at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConsumerSnapshot {
    /// Batches and ends of epochs taken since the generation began.
    pub(crate) taken: u64,
    /// It waits, and nothing is ready.
    pub(crate) is_waiting: bool,
    /// Since it took the last one; zero before the first.
    pub(crate) since: Nanos,
    /// A low quantile (p10) of its recent step times; `None` before there are any.
    pub(crate) step: Option<Nanos>,
}

#[derive(Debug)]
pub(crate) struct BatchQueue {
    state: Mutex<State>,
    arrived: Condvar,
    waker: Arc<Waker>,
}

impl BatchQueue {
    pub(crate) fn new(waker: Arc<Waker>) -> Self {
        let state = State {
            queue: VecDeque::new(),
            generation: 0,
            standing: Standing { epoch: Epoch(0), position: 0, fresh: true },
            edge: Edge::Within,
            taken: 0,
            wake_at: None,
            wanted: false,
            what: None,
            causes: WaitCauses::default(),
            finished: false,
            closed: false,
            broken: None,
            shared: None,
            last_take: None,
            steps: StepTimes::default(),
        };
        Self { state: Mutex::new(state), arrived: Condvar::new(), waker }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- the consumer's side

    /// Takes what comes next, or gives up after `tick`: `Ok(None)`. A batch that was waited for says why. `now`: of the
    /// loader's clock.
    pub(crate) fn take(&self, tick: Duration, now: Nanos) -> Result<Option<QueueEntry>, LoaderError> {
        let until = Instant::now() + tick;
        let mut state = self.lock();
        loop {
            if state.closed {
                return Err(LoaderError::Closed);
            }
            if let Some(mut handed) = state.queue.pop_front() {
                if matches!(handed, QueueEntry::End(_)) && matches!(state.edge, Edge::Left) {
                    state.edge = Edge::Within;
                    state.taken += 1;
                    continue;
                }
                self.note_taken(&mut state, &mut handed);
                return Ok(Some(handed));
            }
            if let Some(error) = &state.broken {
                return Err(LoaderError::Stopped(Arc::clone(error)));
            }
            if state.finished {
                return Ok(Some(QueueEntry::End(state.standing.epoch)));
            }
            // After a seek it is a new wait, although `wanted` still stands.
            state.causes.begin(now);
            if !state.wanted {
                state.wanted = true;
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

    fn note_taken(&self, state: &mut State, handed: &mut QueueEntry) {
        let waited = std::mem::take(&mut state.wanted);
        state.taken += 1;
        state.what = None;
        let turns = state.causes.end();
        match handed {
            QueueEntry::Batch(batch) => {
                batch.turns = turns;
                state.standing.epoch = batch.epoch;
                state.standing.fresh = false;
                state.edge = if batch.last { Edge::Over(batch.epoch) } else { Edge::Within };
            }
            QueueEntry::End(epoch) => {
                state.standing = Standing { epoch: Epoch(epoch.0 + 1), position: 0, fresh: true };
                state.edge = Edge::Within;
            }
        }
        let now = Instant::now();
        // A step that waited shows the origin's rate, not the consumer's.
        if let Some(last) = state.last_take.filter(|_| !waited) {
            state.steps.observe((now - last).into());
        }
        state.last_take = Some(now);
        // Waking the driver for every batch would cost a switch each; it plans many at a time. Where bytes come from
        // afar it learns of free capacity early; where all lie in memory, half of what was ready is soon enough.
        let left = state.queue.len();
        let soon = state.wake_at.map_or(left < 4 || left.is_multiple_of(8), |at| left == at);
        if waited || soon {
            self.waker.wake();
        }
    }

    /// The driver's last report on the wait; `None` before there is one.
    pub(crate) fn waited_for(&self) -> Option<String> {
        self.lock().what.clone()
    }

    /// Causes of the present wait so far, and since when each.
    pub(crate) fn turns(&self) -> Vec<(Cause, Nanos)> {
        self.lock().causes.turns()
    }

    /// The loader was opened by the consumer, from `since` on.
    pub(crate) fn note_opened(&self, since: Nanos) {
        self.lock().causes.begin_opening(since);
    }

    /// Moves the consumer to another place. Returns the new generation, or `None` if it is there already. Behind the last
    /// batch of an epoch it is at the start of the next: what is staged of it stays. `anew`: move in any case.
    pub(crate) fn seek(&self, epoch: Epoch, position: u64, anew: bool) -> Option<u64> {
        let mut state = self.lock();
        let there = Standing { epoch, position, fresh: true };
        if state.standing == there && !anew {
            return None;
        }
        state.standing = there;
        if let Edge::Over(over) = state.edge
            && !anew
            && position == 0
            && over.0 + 1 == epoch.0
        {
            state.edge = Edge::Left;
            return None;
        }
        state.edge = Edge::Within;
        state.generation += 1;
        state.taken = 0;
        state.queue.clear();
        state.shared = None;
        state.finished = false;
        state.what = None;
        state.causes.clear();
        state.last_take = None;
        Some(state.generation)
    }

    // ---- the driver's side

    /// Hands over what is ready, unless the consumer has moved since `generation`.
    /// `near`: no sample has to be fetched from afar.
    pub(crate) fn push(&self, generation: u64, ready: impl Iterator<Item = QueueEntry>, near: bool) {
        let mut state = self.lock();
        if state.generation == generation {
            state.queue.extend(ready);
            state.wake_at = near.then_some(state.queue.len() / 2);
            if state.wanted && !state.queue.is_empty() {
                self.arrived.notify_all();
            }
        }
    }

    /// Offers copies to a consumer who waits.
    pub(crate) fn share(&self, gather: &Arc<Gather>) {
        let mut state = self.lock();
        state.shared = Some(Arc::clone(gather));
        if state.wanted {
            self.arrived.notify_all();
        }
    }

    /// Ends the offer: every copy has been begun.
    pub(crate) fn unshare(&self) {
        self.lock().shared = None;
    }

    /// The consumer's demand.
    pub(crate) fn snapshot(&self) -> ConsumerSnapshot {
        let state = self.lock();
        ConsumerSnapshot {
            taken: state.taken,
            is_waiting: state.wanted && state.queue.is_empty(),
            since: state.last_take.map_or(Nanos::ZERO, |last| last.elapsed().into()),
            step: state.steps.low(),
        }
    }

    /// Reports what the consumer is waiting for at the moment.
    pub(crate) fn explain(&self, note: WaitNote, now: Nanos) {
        let mut state = self.lock();
        if state.wanted {
            state.causes.set(note.cause, note.read, now);
            state.what = Some(note.what);
        }
    }

    /// Batches that wait to be taken.
    pub(crate) fn ready(&self) -> usize {
        self.lock().queue.len()
    }

    pub(crate) fn finish(&self, generation: u64) {
        let mut state = self.lock();
        if state.generation == generation {
            state.finished = true;
            self.arrived.notify_all();
        }
    }

    /// Ends the run: the consumer gets `error` once what is ready is taken. The first error stands.
    pub(crate) fn break_with(&self, error: LoaderError) {
        self.lock().broken.get_or_insert(Arc::new(error));
        self.arrived.notify_all();
    }

    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.queue.clear();
        self.arrived.notify_all();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> BatchQueue {
        BatchQueue::new(Arc::new(Waker::default()))
    }

    #[test]
    fn a_seek_to_where_the_consumer_stands_changes_nothing() {
        let queue = place();
        assert_eq!(queue.seek(Epoch(0), 0, false), None);
        assert_eq!(queue.seek(Epoch(2), 64, false), Some(1));
        assert_eq!(queue.seek(Epoch(2), 64, false), None);
        assert_eq!(queue.seek(Epoch(2), 64, true), Some(2));
    }

    #[test]
    fn batches_that_were_ready_before_a_seek_are_never_handed_out_after_it() {
        let queue = place();
        queue.push(0, std::iter::once(QueueEntry::End(Epoch(0))), false);
        assert_eq!(queue.seek(Epoch(5), 0, false), Some(1));
        queue.push(0, std::iter::once(QueueEntry::End(Epoch(0))), false);
        assert!(matches!(queue.take(Duration::from_millis(1), Nanos::ZERO), Ok(None)));
        queue.push(1, std::iter::once(QueueEntry::End(Epoch(5))), false);
        assert!(matches!(
            queue.take(Duration::from_millis(1), Nanos::ZERO),
            Ok(Some(QueueEntry::End(Epoch(5))))
        ));
        assert_eq!(queue.seek(Epoch(6), 0, false), None, "the end of an epoch is the start of the next");
    }

    #[test]
    fn behind_the_last_batch_the_next_epoch_begins_with_what_is_staged_of_it() {
        let queue = place();
        let ready = [
            QueueEntry::Batch(batch(0, true)),
            QueueEntry::End(Epoch(0)),
            QueueEntry::Batch(batch(1, false)),
        ];
        queue.push(0, ready.into_iter(), false);
        let next = || queue.take(Duration::ZERO, Nanos::ZERO).expect("open").expect("ready");
        assert!(matches!(next(), QueueEntry::Batch(_)));
        assert_eq!(queue.seek(Epoch(1), 0, false), None);
        assert!(matches!(next(), QueueEntry::Batch(batch) if batch.epoch == Epoch(1)), "no end in between");
        assert_eq!(queue.snapshot().taken, 3);
        assert_eq!(queue.seek(Epoch(2), 0, false), Some(1), "epoch 1 is not over");
    }

    fn batch(epoch: u64, last: bool) -> Batch {
        let pool = crate::buffer::BufferPool::new(foresee_units::Bytes::ZERO, Arc::default());
        let buffer = Arc::new(pool).lend(1);
        buffer.take_memory().expect("memory");
        Batch {
            epoch: Epoch(epoch),
            step: foresee_units::Step(0),
            start: 0,
            last,
            ids: Vec::new(),
            labels: Vec::new(),
            offsets: vec![0],
            faults: Vec::new(),
            turns: Vec::new(),
            buffer,
        }
    }

    #[test]
    fn close_ends_a_wait_in_another_thread() {
        let queue = Arc::new(place());
        let other = Arc::clone(&queue);
        let waiter = std::thread::spawn(move || other.take(Duration::from_secs(60), Nanos::ZERO));
        queue.close();
        assert!(matches!(waiter.join().expect("the waiter ends"), Err(LoaderError::Closed)));
    }

    #[test]
    fn a_wait_that_goes_on_after_a_seek_has_causes_of_its_own() {
        let queue = place();
        let at = Nanos::from_millis;
        let note = |cause| WaitNote { cause, read: None, what: "sample 1".to_owned() };
        assert!(matches!(queue.take(Duration::ZERO, at(1)), Ok(None)));
        queue.explain(note(Cause::OriginRead), at(2));
        assert_eq!(queue.seek(Epoch(3), 0, false), Some(1));
        assert!(queue.turns().is_empty());
        assert!(matches!(queue.take(Duration::ZERO, at(5)), Ok(None)));
        queue.explain(note(Cause::Disk), at(6));
        assert_eq!(queue.turns(), [(Cause::Disk, at(5))]);
    }

    #[test]
    fn a_batch_that_was_waited_for_says_why_and_the_next_one_does_not() {
        let queue = place();
        let at = Nanos::from_millis;
        assert!(matches!(queue.take(Duration::ZERO, at(1)), Ok(None)));
        let note = |cause| WaitNote { cause, read: None, what: "sample 1".to_owned() };
        queue.explain(note(Cause::OriginQueue), at(2));
        queue.explain(note(Cause::Copy), at(3));
        assert_eq!(queue.waited_for().as_deref(), Some("sample 1"));
        let turns = [(Cause::OriginQueue, at(1)), (Cause::Copy, at(3))];
        assert_eq!(queue.turns(), turns);
        queue.push(0, [batch(0, false), batch(0, false)].map(QueueEntry::Batch).into_iter(), false);
        for expected in [&turns[..], &[]] {
            let taken = queue.take(Duration::ZERO, at(9)).expect("open");
            assert!(matches!(taken, Some(QueueEntry::Batch(batch)) if batch.turns == expected));
        }
        assert!(queue.waited_for().is_none());
        queue.explain(note(Cause::Plan), at(10));
        assert!(queue.turns().is_empty(), "nobody waits");
    }
}
