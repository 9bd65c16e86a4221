// SPDX-License-Identifier: Apache-2.0
//! Ranks that prefetch from a common origin, in order of time. [`prefetch`](super::prefetch) simulates one rank
//! after the other instead; here requests of different ranks delay each other.
//!
//! A rank reads ahead as far as its threads and its buffer allow, across steps and epochs. A heap of events keeps
//! all ranks on one clock, and requests in flight take turns at the origin. Therefore a rank that is ahead stays
//! ahead, and waits for others instead of for data. A read costs about a microsecond of simulation. The policy
//! knows which samples are held.
//!
//! Two things are approximate. Threads of a rank's tiers advance together with its staging, with an estimate of
//! their arrival times. The policy learns of a fetch at its start, also with an estimate.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

use super::consume::{BatchTimes, Consumer, SampleTimes};
use super::log::ReadTimes;
use super::origin::Origin;
use super::pipeline::FetchPipeline;
use super::prefetch::{Access, Caching, FetchContext, Supply};
use super::rates::{ORIGIN, Rates, SourceCode};
use super::report::{Metrics, Pushes};
use super::run::{Clock, Driver, Setup, StepNow};
use super::scenario::HandOver;

/// Fraction of a pool's threads that start before those of another rank: one in this many. It fits measurements
/// of two ranks with 16 threads (`docs/notes/019`).
const BURST_SHARE: usize = 4;

pub(super) struct ContentionDriver<C> {
    caching: C,
    rates: Rates,
    hand_over: HandOver,
    barrier: bool,
    /// Requests of a rank that precede those of another rank which begins at the same time. It is a fraction of
    /// the threads, because ranks never start exactly together and threads start one after the other. A rank with
    /// one requesting thread issues all of its requests first.
    request_burst: usize,
    origin: Requests,
    /// By rank: its own sources and its link.
    pipelines: Vec<FetchPipeline>,
    ranks: Vec<Rank>,
    events: BinaryHeap<Reverse<Event>>,
    /// The number of events so far.
    event_count: u64,
    lookahead: Lookahead,
    /// Steps taken, and the ranks that have not ended the next step.
    steps_done: usize,
    ranks_behind: usize,
}

/// Requests in flight at the origin: reads, and loads of tiers, for which no staging thread waits.
pub(super) type Requests = Origin<Option<Read>>;

/// One read of one rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    rank: usize,
    /// The step of the run.
    step: usize,
    /// The index in the rank's batch.
    nth: usize,
}

/// An event.
#[derive(Debug)]
struct Event {
    at: f64,
    number: u64,
    kind: EventKind,
}

#[derive(Clone, Copy, Debug)]
enum EventKind {
    /// Threads of a rank continue to read.
    Continue(usize),
    /// A request has reached the origin, and its transfer begins.
    Arrived(Read),
    /// A sample is in the staging buffer, and its thread is idle.
    Staged(Read),
    /// This number of samples and bytes of a rank leaves its staging buffer.
    Released(usize, usize, f64),
}

/// A rank's staging buffer and consumer.
#[derive(Default)]
struct Rank {
    /// Idle staging threads.
    idle: usize,
    /// Samples that the staging buffer holds or has reserved space for.
    samples: usize,
    bytes: f64,
    /// The next sample to read: the step of the run, and the index in its batch.
    next: (usize, usize),
    /// Batches from the first one that is not accounted for: `finished` consumed ones, then the current one.
    batches: VecDeque<Batch>,
    first: usize,
    finished: usize,
    /// Steps whose samples have all left the staging buffer; counted for whole batches.
    released_steps: usize,
    /// `None` while it waits for the other ranks before a step.
    consumer: Option<Consumer>,
    /// Samples of the batch that the consumer has taken.
    consumed_samples: usize,
}

/// The reads of a rank in a step.
#[derive(Default)]
struct Batch {
    /// The index of its first sample among the reads of all epochs and ranks.
    place: usize,
    ids: Vec<u32>,
    sizes: Vec<f64>,
    reads: Vec<Staging>,
    /// The number of samples that are not staged.
    missing: usize,
    times: Option<BatchTimes>,
}

/// A sample in transfer.
#[derive(Clone, Copy)]
struct Staging {
    source: SourceCode,
    start: f64,
    fetched: f64,
    /// When it is staged; infinity until this is known.
    staged: f64,
    times: SampleTimes,
}

const UNREAD: Staging = Staging {
    source: ORIGIN,
    start: 0.0,
    fetched: f64::INFINITY,
    staged: f64::INFINITY,
    times: SampleTimes { wanted: 0.0, consumed: 0.0, waited: 0.0 },
};

/// The position of the ranks' reading in the order, ahead of training.
#[derive(Default)]
struct Lookahead {
    /// Steps of the run that were distributed.
    steps: usize,
    /// The list of the epoch of the next step.
    list: Vec<u32>,
    /// Finished batches, reused for their memory.
    spare: Vec<Batch>,
}

impl<C: Caching> ContentionDriver<C> {
    pub(super) fn new(caching: C, rates: Rates, setup: &Setup) -> Self {
        let options = setup.scenario.options;
        let ranks = setup.epochs.ranks;
        let request_burst = if caching.has_single_requester() {
            usize::MAX
        } else {
            rates.staging_threads.div_ceil(BURST_SHARE)
        };
        Self {
            request_burst,
            caching,
            hand_over: options.hand_over,
            barrier: options.barrier,
            origin: Origin::of(setup, &rates),
            pipelines: (0..ranks).map(|_| FetchPipeline::new(&rates)).collect(),
            ranks: (0..ranks).map(|_| Rank { idle: rates.staging_threads, ..Rank::default() }).collect(),
            events: BinaryHeap::new(),
            event_count: 0,
            lookahead: Lookahead::default(),
            steps_done: 0,
            ranks_behind: ranks,
            rates,
        }
    }

    /// Distribute the next step of the run to all ranks; `false` if there is none.
    fn distribute(&mut self, setup: &Setup) -> bool {
        let Self { lookahead, caching, ranks, .. } = self;
        let epochs = &setup.epochs;
        let (epoch, step) = (lookahead.steps / epochs.steps, lookahead.steps % epochs.steps);
        if epoch == epochs.count as usize {
            return false;
        }
        if step == 0 {
            if caching.needs_order() {
                epochs
                    .fill(u32::try_from(epoch).expect("epochs are counted in 32 bits"), &mut lookahead.list);
            } else {
                lookahead.list.resize(epochs.places, 0);
            }
        }
        let whole = epochs.step(step);
        caching.distribute(setup, step, &mut lookahead.list[whole]);
        for (number, rank) in ranks.iter_mut().enumerate() {
            let range = epochs.batch(step, number);
            let mut batch = lookahead.spare.pop().unwrap_or_default();
            batch.place = epoch * epochs.places + range.start;
            batch.ids.clear();
            batch.ids.extend_from_slice(&lookahead.list[range]);
            setup.sizes.look_up(&batch.ids, &mut batch.sizes);
            batch.reads.clear();
            batch.reads.resize(batch.ids.len(), UNREAD);
            (batch.missing, batch.times) = (batch.ids.len(), None);
            rank.batches.push_back(batch);
        }
        lookahead.steps += 1;
        true
    }

    /// Start reads of a rank, as far as its threads and its buffer allow.
    fn read(&mut self, number: usize, at: f64, setup: &Setup, metrics: &mut Metrics) {
        let mut requests = 0;
        while self.ranks[number].idle > 0 {
            let rank = &mut self.ranks[number];
            // A batch without remaining reads may be finished and removed.
            let (step, nth) = rank.next.max((rank.first, 0));
            let Some(batch) = rank.batches.get(step - rank.first) else {
                if self.distribute(setup) {
                    continue;
                }
                return;
            };
            let Some((&id, &size)) = batch.ids.get(nth).zip(batch.sizes.get(nth)) else {
                rank.next = (step + 1, 0);
                continue;
            };
            if rank.bytes + size > self.rates.capacity && !rank.is_next_to_leave(step, self.hand_over) {
                return;
            }
            let access = Access { rank: number, id, place: batch.place + nth, nth: 0 };
            rank.next = (step, nth + 1);
            rank.idle -= 1;
            rank.samples += 1;
            rank.bytes += size;
            self.fetch(Read { rank: number, step, nth }, access, size, at, setup, metrics);
            requests += 1;
            if requests >= self.request_burst
                && self.events.peek().is_some_and(|Reverse(event)| event.at <= at)
            {
                self.schedule(at, EventKind::Continue(number));
                return;
            }
        }
    }

    /// Start the fetch of a sample by a thread.
    fn fetch(
        &mut self,
        read: Read,
        access: Access,
        size: f64,
        at: f64,
        setup: &Setup,
        metrics: &mut Metrics,
    ) {
        let Self { caching, rates, origin, pipelines, .. } = self;
        let pipeline = &mut pipelines[read.rank];
        let context = &mut FetchContext { setup, rates, pipeline, origin: Some(origin), metrics };
        caching.advance(read.rank, at, context);
        caching.look_up(&[access.id]);
        let (source, fetched) = match caching.supply(access, at, rates) {
            Supply::From(ORIGIN) => (ORIGIN, None),
            Supply::From(source) => (source, Some(pipeline.take_from(source, at, size, rates))),
            Supply::With(source, ready) => (source, Some(ready.max(at))),
        };
        let begins = if fetched.is_none() { origin.request(at) + rates.latency } else { at };
        let available = fetched.unwrap_or_else(|| begins + origin.estimate(size));
        caching.fetched(access, size, available);
        let rank = &mut self.ranks[read.rank];
        let staging = &mut rank.batches[read.step - rank.first].reads[read.nth];
        *staging = Staging { source, start: at, ..UNREAD };
        match fetched {
            Some(fetched) => self.stage(read, fetched),
            None => self.schedule(begins, EventKind::Arrived(read)),
        }
    }

    /// Preprocess a fetched sample and write it into the staging buffer.
    fn stage(&mut self, read: Read, fetched: f64) {
        let rank = &mut self.ranks[read.rank];
        let batch = &mut rank.batches[read.step - rank.first];
        let staged = fetched + batch.sizes[read.nth] * self.rates.write;
        batch.reads[read.nth].fetched = fetched;
        self.schedule(staged, EventKind::Staged(read));
    }

    /// Let the consumer of a rank take the staged samples.
    fn consume(&mut self, number: usize) {
        let rank = &mut self.ranks[number];
        while let Some(consumer) = &mut rank.consumer
            && let Some(batch) = rank.batches.get_mut(rank.finished)
        {
            if self.hand_over == HandOver::Batch && batch.missing > 0 {
                return;
            }
            for (read, &size) in batch.reads.iter_mut().zip(&batch.sizes).skip(rank.consumed_samples) {
                if !read.staged.is_finite() {
                    return;
                }
                rank.consumed_samples += 1;
                read.times = consumer.consume(read.staged, read.source, size * self.rates.compute);
                if self.hand_over == HandOver::Sample {
                    let kind = EventKind::Released(number, 1, size);
                    self.events.push(Event::at(read.times.consumed, &mut self.event_count, kind));
                }
            }
            let batch_times = consumer.finish();
            if self.hand_over == HandOver::Batch {
                let kind = EventKind::Released(number, batch.sizes.len(), batch.sizes.iter().sum());
                self.events.push(Event::at(batch_times.free, &mut self.event_count, kind));
            }
            batch.times = Some(batch_times);
            self.ranks_behind -= usize::from(rank.finished == 0);
            rank.finished += 1;
            (rank.consumed_samples, rank.consumer) = (0, None);
            if !self.barrier {
                rank.request_batch(self.hand_over, batch_times.free);
            }
        }
    }

    fn schedule(&mut self, at: f64, kind: EventKind) {
        self.events.push(Event::at(at, &mut self.event_count, kind));
    }

    /// Process the next event.
    fn process_event(&mut self, setup: &Setup, metrics: &mut Metrics) {
        let first = self.events.peek().map_or(f64::INFINITY, |Reverse(event)| event.at);
        if self.origin.turn_end() <= first && self.origin.turn_end().is_finite() {
            // Not every turn ends a request, and not every request is a read.
            if let Some((at, Some(read))) = self.origin.end_turn() {
                let rank = &self.ranks[read.rank];
                let batch = &rank.batches[read.step - rank.first];
                let (start, size) = (batch.reads[read.nth].start, batch.sizes[read.nth]);
                let over_link = self.pipelines[read.rank].over_link(start, size, &self.rates);
                self.stage(read, at.max(over_link));
            }
            return;
        }
        let Reverse(Event { at, kind, .. }) =
            self.events.pop().expect("a rank that waits has a sample on its way");
        match kind {
            EventKind::Continue(number) => self.read(number, at, setup, metrics),
            EventKind::Arrived(read) => {
                let rank = &self.ranks[read.rank];
                let size = rank.batches[read.step - rank.first].sizes[read.nth];
                self.origin.enqueue(at, read.rank, size, Some(read));
            }
            EventKind::Staged(read) => {
                let rank = &mut self.ranks[read.rank];
                let batch = &mut rank.batches[read.step - rank.first];
                batch.reads[read.nth].staged = at;
                batch.missing -= 1;
                rank.idle += 1;
                self.consume(read.rank);
                self.read(read.rank, at, setup, metrics);
            }
            EventKind::Released(number, samples, bytes) => {
                let rank = &mut self.ranks[number];
                rank.samples -= samples;
                // Reset the rounding error of a million sums to 0.
                rank.bytes = if rank.samples == 0 { 0.0 } else { rank.bytes - bytes };
                rank.released_steps += 1;
                self.read(number, at, setup, metrics);
            }
        }
    }

    /// Account for a rank's finished batch; return its end.
    fn finish_batch(&mut self, number: usize, metrics: &mut Metrics) -> f64 {
        let rank = &mut self.ranks[number];
        let batch = rank.batches.pop_front().expect("a batch that is over");
        let batch_times = batch.times.expect("a batch that is over");
        rank.first += 1;
        rank.finished -= 1;
        self.ranks_behind += usize::from(rank.finished == 0);
        metrics.log.begin_batch(number, batch_times.requested);
        for ((&id, &size), read) in batch.ids.iter().zip(&batch.sizes).zip(&batch.reads) {
            let &Staging { source, start, fetched, times, .. } = read;
            let read_times = ReadTimes::new(start, fetched, times);
            metrics.record_read((id, size), source, fetched - start, read_times, times.waited);
        }
        let (source, waited) = batch_times.waited;
        metrics.record_wait(source, waited);
        metrics.end_batch(batch_times.stall, batch_times.compute);
        self.lookahead.spare.push(batch);
        batch_times.free
    }
}

impl<C: Caching> Driver for ContentionDriver<C> {
    fn prepare(&mut self, setup: &Setup, metrics: &mut Metrics) -> (u64, u64) {
        self.caching.prepare(setup, &self.rates, metrics)
    }

    fn init(&self) -> f64 {
        self.caching.init()
    }

    /// It has its own list, which is ahead.
    fn needs_order(&self) -> bool {
        false
    }

    fn pushes(&self) -> Pushes {
        self.caching.pushes()
    }

    fn step(&mut self, now: &mut StepNow<'_>) {
        let StepNow { setup, clock, metrics, .. } = now;
        if self.lookahead.steps == self.steps_done {
            self.distribute(setup);
        }
        for (number, &free) in clock.free.iter().enumerate() {
            if self.barrier || self.steps_done == 0 {
                self.ranks[number].request_batch(self.hand_over, free);
            }
            self.consume(number);
            if self.steps_done == 0 {
                self.schedule(0.0, EventKind::Continue(number));
            }
        }
        while self.ranks_behind > 0 {
            self.process_event(setup, metrics);
        }
        for (number, free) in clock.free.iter_mut().enumerate() {
            *free = self.finish_batch(number, metrics);
        }
        self.steps_done += 1;
    }

    fn end_step(&mut self, clock: &Clock) {
        self.caching.end_step(&clock.ends);
    }
}

impl Rank {
    /// Its consumer requests the next batch at `free`.
    fn request_batch(&mut self, hand_over: HandOver, free: f64) {
        self.consumer = Some(Consumer::new(hand_over, free));
    }

    /// Whether `step` is the next one to leave the staging buffer: the buffer holds no earlier sample, so this
    /// one fits at any size.
    fn is_next_to_leave(&self, step: usize, hand_over: HandOver) -> bool {
        match hand_over {
            HandOver::Sample => self.samples == 0,
            HandOver::Batch => self.released_steps == step,
        }
    }
}

impl Event {
    fn at(at: f64, event_count: &mut u64, kind: EventKind) -> Reverse<Self> {
        *event_count += 1;
        Reverse(Self { at, number: *event_count, kind })
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.total_cmp(&other.at).then(self.number.cmp(&other.number))
    }
}
