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

use super::consume::{Consumer, Ended, Taken};
use super::lane::Lane;
use super::log::Fetched;
use super::origin::Origin;
use super::prefetch::{Access, Around, Caching, Supply};
use super::rates::{ORIGIN, Rates, SourceCode};
use super::report::Book;
use super::run::{Clock, Driver, Setup, StepNow};
use super::scenario::HandOver;

/// Fraction of a pool's threads that start before those of another rank: one in this many. It fits measurements
/// of two ranks with 16 threads (`docs/notes/019`).
const AT_ONCE: usize = 4;

pub(super) struct Contending<C> {
    caching: C,
    rates: Rates,
    hand_over: HandOver,
    barrier: bool,
    /// Requests of a rank that precede those of another rank which begins at the same time. It is a fraction of
    /// the threads, because ranks never start exactly together and threads start one after the other. A rank with
    /// one requesting thread issues all of its requests first.
    at_once: usize,
    origin: Requests,
    /// By rank: its own sources and its link.
    lanes: Vec<Lane>,
    ranks: Vec<Rank>,
    events: BinaryHeap<Reverse<Event>>,
    /// The number of events so far.
    happened: u64,
    ahead: Ahead,
    /// Steps taken, and the ranks that have not ended the next step.
    taken: usize,
    behind: usize,
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
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// Threads of a rank continue to read.
    Reads(usize),
    /// A request has reached the origin, and its transfer begins.
    Asked(Read),
    /// A sample is in the staging buffer, and its thread is idle.
    Staged(Read),
    /// This number of samples and bytes of a rank leaves its staging buffer.
    Left(usize, usize, f64),
}

/// A rank's staging buffer and consumer.
struct Rank {
    /// Idle staging threads.
    idle: usize,
    /// Samples that the staging buffer holds or has reserved space for.
    samples: usize,
    bytes: f64,
    /// The next sample to read: the step of the run, and the index in its batch.
    next: (usize, usize),
    /// Batches from the first one that is not accounted for: `over` consumed ones, then the current one.
    batches: VecDeque<Batch>,
    first: usize,
    over: usize,
    /// Steps whose samples have all left the staging buffer; counted for whole batches.
    left: usize,
    /// `None` while it waits for the other ranks before a step.
    consumer: Option<Consumer>,
    /// Samples of the batch that the consumer has taken.
    had: usize,
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
    ended: Option<Ended>,
}

/// A sample in transfer.
#[derive(Clone, Copy)]
struct Staging {
    source: SourceCode,
    start: f64,
    fetched: f64,
    /// When it is staged; infinity until this is known.
    staged: f64,
    taken: Taken,
}

const UNREAD: Staging = Staging {
    source: ORIGIN,
    start: 0.0,
    fetched: f64::INFINITY,
    staged: f64::INFINITY,
    taken: Taken { wanted: 0.0, consumed: 0.0, waited: 0.0 },
};

/// The position of the ranks' reading in the order, ahead of training.
#[derive(Default)]
struct Ahead {
    /// Steps of the run that were distributed.
    steps: usize,
    /// The list of the epoch of the next step.
    list: Vec<u32>,
    /// Finished batches, reused for their memory.
    spare: Vec<Batch>,
}

impl<C: Caching> Contending<C> {
    pub(super) fn new(caching: C, rates: Rates, setup: &Setup) -> Self {
        let options = setup.scenario.options;
        let ranks = setup.epochs.ranks;
        let at_once =
            if caching.asks_at_once() { usize::MAX } else { rates.staging_threads.div_ceil(AT_ONCE) };
        Self {
            at_once,
            caching,
            hand_over: options.hand_over,
            barrier: options.barrier,
            origin: Origin::of(setup, &rates),
            lanes: (0..ranks).map(|_| Lane::new(&rates)).collect(),
            ranks: (0..ranks).map(|_| Rank::new(rates.staging_threads)).collect(),
            events: BinaryHeap::new(),
            happened: 0,
            ahead: Ahead::default(),
            taken: 0,
            behind: ranks,
            rates,
        }
    }

    /// Distribute the next step of the run to all ranks; `false` if there is none.
    fn deal(&mut self, setup: &Setup) -> bool {
        let Self { ahead, caching, ranks, .. } = self;
        let epochs = &setup.epochs;
        let (epoch, step) = (ahead.steps / epochs.steps, ahead.steps % epochs.steps);
        if epoch == epochs.count as usize {
            return false;
        }
        if step == 0 {
            if caching.needs_order() {
                epochs.fill(u32::try_from(epoch).expect("epochs are counted in 32 bits"), &mut ahead.list);
            } else {
                ahead.list.resize(epochs.places, 0);
            }
        }
        let whole = epochs.step(step);
        caching.deal(setup, step, &mut ahead.list[whole]);
        for (number, rank) in ranks.iter_mut().enumerate() {
            let range = epochs.batch(step, number);
            let mut batch = ahead.spare.pop().unwrap_or_default();
            batch.place = epoch * epochs.places + range.start;
            batch.ids.clear();
            batch.ids.extend_from_slice(&ahead.list[range]);
            setup.sizes.look_up(&batch.ids, &mut batch.sizes);
            batch.reads.clear();
            batch.reads.resize(batch.ids.len(), UNREAD);
            (batch.missing, batch.ended) = (batch.ids.len(), None);
            rank.batches.push_back(batch);
        }
        ahead.steps += 1;
        true
    }

    /// Start reads of a rank, as far as its threads and its buffer allow.
    fn read(&mut self, number: usize, at: f64, setup: &Setup, book: &mut Book) {
        let mut asked = 0;
        while self.ranks[number].idle > 0 {
            let rank = &mut self.ranks[number];
            // A batch without remaining reads may be finished and removed.
            let (step, nth) = rank.next.max((rank.first, 0));
            let Some(batch) = rank.batches.get(step - rank.first) else {
                if self.deal(setup) {
                    continue;
                }
                return;
            };
            let Some((&id, &size)) = batch.ids.get(nth).zip(batch.sizes.get(nth)) else {
                rank.next = (step + 1, 0);
                continue;
            };
            if rank.bytes + size > self.rates.room && !rank.is_next_to_go(step, self.hand_over) {
                return;
            }
            let access = Access { rank: number, id, place: batch.place + nth, nth: 0 };
            rank.next = (step, nth + 1);
            rank.idle -= 1;
            rank.samples += 1;
            rank.bytes += size;
            self.fetch(Read { rank: number, step, nth }, access, size, at, setup, book);
            asked += 1;
            if asked >= self.at_once && self.events.peek().is_some_and(|Reverse(event)| event.at <= at) {
                self.happens(at, What::Reads(number));
                return;
            }
        }
    }

    /// Start the fetch of a sample by a thread.
    fn fetch(&mut self, read: Read, access: Access, size: f64, at: f64, setup: &Setup, book: &mut Book) {
        let Self { caching, rates, origin, lanes, .. } = self;
        let lane = &mut lanes[read.rank];
        let around = &mut Around { setup, rates, lane, origin: Some(origin), book };
        caching.advance(read.rank, at, around);
        caching.look_up(&[access.id]);
        let (source, fetched) = match caching.supply(access, at, rates) {
            Supply::From(ORIGIN) => (ORIGIN, None),
            Supply::From(source) => (source, Some(lane.take_from(source, at, size, rates))),
            Supply::With(source, ready) => (source, Some(ready.max(at))),
        };
        let begins = if fetched.is_none() { origin.ask(at) + rates.latency } else { at };
        let told = fetched.unwrap_or_else(|| begins + origin.estimate(size));
        caching.fetched(access, size, told);
        let rank = &mut self.ranks[read.rank];
        let staging = &mut rank.batches[read.step - rank.first].reads[read.nth];
        *staging = Staging { source, start: at, ..UNREAD };
        match fetched {
            Some(fetched) => self.stage(read, fetched),
            None => self.happens(begins, What::Asked(read)),
        }
    }

    /// Preprocess a fetched sample and write it into the staging buffer.
    fn stage(&mut self, read: Read, fetched: f64) {
        let rank = &mut self.ranks[read.rank];
        let batch = &mut rank.batches[read.step - rank.first];
        let staged = fetched + batch.sizes[read.nth] * self.rates.write;
        batch.reads[read.nth].fetched = fetched;
        self.happens(staged, What::Staged(read));
    }

    /// Let the consumer of a rank take the staged samples.
    fn consume(&mut self, number: usize) {
        let rank = &mut self.ranks[number];
        while let Some(consumer) = &mut rank.consumer
            && let Some(batch) = rank.batches.get_mut(rank.over)
        {
            if self.hand_over == HandOver::Batch && batch.missing > 0 {
                return;
            }
            for (read, &size) in batch.reads.iter_mut().zip(&batch.sizes).skip(rank.had) {
                if !read.staged.is_finite() {
                    return;
                }
                rank.had += 1;
                read.taken = consumer.take(read.staged, read.source, size * self.rates.compute);
                if self.hand_over == HandOver::Sample {
                    let what = What::Left(number, 1, size);
                    self.events.push(Event::at(read.taken.consumed, &mut self.happened, what));
                }
            }
            let ended = consumer.end();
            if self.hand_over == HandOver::Batch {
                let what = What::Left(number, batch.sizes.len(), batch.sizes.iter().sum());
                self.events.push(Event::at(ended.free, &mut self.happened, what));
            }
            batch.ended = Some(ended);
            self.behind -= usize::from(rank.over == 0);
            rank.over += 1;
            (rank.had, rank.consumer) = (0, None);
            if !self.barrier {
                rank.want(self.hand_over, ended.free);
            }
        }
    }

    fn happens(&mut self, at: f64, what: What) {
        self.events.push(Event::at(at, &mut self.happened, what));
    }

    /// Process the next event.
    fn go_on(&mut self, setup: &Setup, book: &mut Book) {
        let first = self.events.peek().map_or(f64::INFINITY, |Reverse(event)| event.at);
        if self.origin.next() <= first && self.origin.next().is_finite() {
            // Not every turn ends a request, and not every request is a read.
            if let Some((at, Some(read))) = self.origin.take() {
                let rank = &self.ranks[read.rank];
                let batch = &rank.batches[read.step - rank.first];
                let (start, size) = (batch.reads[read.nth].start, batch.sizes[read.nth]);
                let over_link = self.lanes[read.rank].over_link(start, size, &self.rates);
                self.stage(read, at.max(over_link));
            }
            return;
        }
        let Reverse(Event { at, what, .. }) =
            self.events.pop().expect("a rank that waits has a sample on its way");
        match what {
            What::Reads(number) => self.read(number, at, setup, book),
            What::Asked(read) => {
                let rank = &self.ranks[read.rank];
                let size = rank.batches[read.step - rank.first].sizes[read.nth];
                self.origin.join(at, read.rank, size, Some(read));
            }
            What::Staged(read) => {
                let rank = &mut self.ranks[read.rank];
                let batch = &mut rank.batches[read.step - rank.first];
                batch.reads[read.nth].staged = at;
                batch.missing -= 1;
                rank.idle += 1;
                self.consume(read.rank);
                self.read(read.rank, at, setup, book);
            }
            What::Left(number, samples, bytes) => {
                let rank = &mut self.ranks[number];
                rank.samples -= samples;
                // Reset the rounding error of a million sums to 0.
                rank.bytes = if rank.samples == 0 { 0.0 } else { rank.bytes - bytes };
                rank.left += 1;
                self.read(number, at, setup, book);
            }
        }
    }

    /// Account for a rank's finished batch; return its end.
    fn write_down(&mut self, number: usize, book: &mut Book) -> f64 {
        let rank = &mut self.ranks[number];
        let batch = rank.batches.pop_front().expect("a batch that is over");
        let ended = batch.ended.expect("a batch that is over");
        rank.first += 1;
        rank.over -= 1;
        self.behind += usize::from(rank.over == 0);
        if let Some(log) = &mut book.log {
            log.begin_batch(number, ended.asked);
        }
        for ((&id, &size), read) in batch.ids.iter().zip(&batch.sizes).zip(&batch.reads) {
            let &Staging { source, start, fetched, taken, .. } = read;
            let Taken { wanted, consumed, waited } = taken;
            book.read(source, size, fetched - start);
            book.see(id);
            if let Some(log) = &mut book.log {
                log.read(id, source, size, Fetched { start, end: fetched, wanted, consumed });
            }
            book.wait(source, waited);
        }
        let (last, waited) = ended.waited;
        book.wait(last, waited);
        if let Some(log) = &mut book.log {
            log.end_batch(ended.stall);
        }
        book.stall += ended.stall;
        book.compute += ended.compute;
        self.ahead.spare.push(batch);
        ended.free
    }
}

impl<C: Caching> Driver for Contending<C> {
    fn prepare(&mut self, setup: &Setup, book: &mut Book) -> (u64, u64) {
        self.caching.prepare(setup, &self.rates, book)
    }

    fn init(&self) -> f64 {
        self.caching.init()
    }

    /// It has its own list, which is ahead.
    fn needs_order(&self) -> bool {
        false
    }

    fn step(&mut self, now: &mut StepNow<'_>) {
        let StepNow { setup, clock, book, .. } = now;
        if self.ahead.steps == self.taken {
            self.deal(setup);
        }
        for (number, &free) in clock.free.iter().enumerate() {
            if self.barrier || self.taken == 0 {
                self.ranks[number].want(self.hand_over, free);
            }
            self.consume(number);
            if self.taken == 0 {
                self.happens(0.0, What::Reads(number));
            }
        }
        while self.behind > 0 {
            self.go_on(setup, book);
        }
        for (number, free) in clock.free.iter_mut().enumerate() {
            *free = self.write_down(number, book);
        }
        self.taken += 1;
    }

    fn end_step(&mut self, clock: &Clock) {
        self.caching.end_step(&clock.ends);
    }
}

impl Rank {
    fn new(threads: usize) -> Self {
        Self {
            idle: threads,
            samples: 0,
            bytes: 0.0,
            next: (0, 0),
            batches: VecDeque::new(),
            first: 0,
            over: 0,
            left: 0,
            consumer: None,
            had: 0,
        }
    }

    /// Its consumer requests the next batch at `free`.
    fn want(&mut self, hand_over: HandOver, free: f64) {
        self.consumer = Some(Consumer::new(hand_over, free));
    }

    /// Whether `step` is the next one to leave the staging buffer: the buffer holds no earlier sample, so this
    /// one fits at any size.
    fn is_next_to_go(&self, step: usize, hand_over: HandOver) -> bool {
        match hand_over {
            HandOver::Sample => self.samples == 0,
            HandOver::Batch => self.left == step,
        }
    }
}

impl Event {
    fn at(at: f64, happened: &mut u64, what: What) -> Reverse<Self> {
        *happened += 1;
        Reverse(Self { at, number: *happened, what })
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
