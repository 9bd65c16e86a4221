// SPDX-License-Identifier: Apache-2.0
//! Ranks that prefetch from an origin which they have in common, in the order of time: what [`prefetch`](super::prefetch)
//! plays rank after rank, for who asks which rank has to wait when.
//!
//! A rank reads ahead as far as its threads and its room go, over the ends of steps and epochs; a heap of events keeps
//! all of them in one time, and requests under way take turns at the origin. So a rank that is ahead stays ahead, and waits for
//! others instead of for data. Costs about a microsecond per read, where the other loop has no events. Refuses to know who holds
//! what: that is the policy's.
//!
//! Two things are not played to the letter. Threads of a rank's tiers go on when its staging does, and go by an estimate
//! of when their samples are here; and what was fetched is told to the policy at its start, with an estimate likewise.

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

/// One in so many of a pool's threads has begun before those of another rank do: what fits two ranks of 16 threads
/// (`docs/notes/019`).
const AT_ONCE: usize = 4;

pub(super) struct Contending<C> {
    caching: C,
    rates: Rates,
    hand_over: HandOver,
    barrier: bool,
    /// Requests of a rank that come before those of another one which begins at the same time: a part of its threads, for ranks
    /// are never quite at the same time, and threads begin one after the other. One thread that asks for all has them all.
    at_once: usize,
    origin: Requests,
    /// By rank: its own sources, and its link.
    lanes: Vec<Lane>,
    ranks: Vec<Rank>,
    events: BinaryHeap<Reverse<Event>>,
    /// Events so far.
    happened: u64,
    ahead: Ahead,
    /// Steps that were taken; and ranks that have not ended the next.
    taken: usize,
    behind: usize,
}

/// What is under way at the origin: reads, and loads of tiers, for which nobody waits here.
pub(super) type Requests = Origin<Option<Read>>;

/// One read of one rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    rank: usize,
    /// Of the run.
    step: usize,
    /// Its place in the rank's batch.
    nth: usize,
}

/// What happens at a time.
#[derive(Debug)]
struct Event {
    at: f64,
    number: u64,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// Threads of a rank go on reading.
    Reads(usize),
    /// A request has reached the origin, and its bytes begin to come.
    Asked(Read),
    /// A sample is in the staging buffer, and its thread is free.
    Staged(Read),
    /// So many samples of a rank leave its staging buffer, with so many bytes.
    Left(usize, usize, f64),
}

/// A rank's staging buffer, and its consumer.
struct Rank {
    /// Staging threads that have nothing to do.
    idle: usize,
    /// What the staging buffer holds, or is to hold once it is fetched.
    samples: usize,
    bytes: f64,
    /// The next sample to read: the step of the run, and the place in its batch.
    next: (usize, usize),
    /// Batches from the first on that is not booked: `over` of them are taken, then comes the one that is being taken.
    batches: VecDeque<Batch>,
    first: usize,
    over: usize,
    /// Steps all of whose samples have left the staging buffer; counted for whole batches.
    left: usize,
    /// `None`: it waits for the others, before a step.
    consumer: Option<Consumer>,
    /// Samples of the batch that the consumer has.
    had: usize,
}

/// What a rank reads in a step.
#[derive(Default)]
struct Batch {
    /// The place of its first sample among the reads of all epochs and ranks.
    place: usize,
    ids: Vec<u32>,
    sizes: Vec<f64>,
    reads: Vec<Staging>,
    /// How many of them are not staged.
    missing: usize,
    ended: Option<Ended>,
}

/// A sample on its way.
#[derive(Clone, Copy)]
struct Staging {
    source: SourceCode,
    start: f64,
    fetched: f64,
    /// When it is in the staging buffer; infinity: not yet.
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

/// Where the ranks' reading has come to in the order, ahead of training.
#[derive(Default)]
struct Ahead {
    /// Steps of the run that were dealt.
    steps: usize,
    /// The list of the epoch that the next of them is in.
    list: Vec<u32>,
    /// Batches that are over; kept for their memory.
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

    /// Deals the next step of the run to all ranks; `false` where there is none.
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

    /// Threads of a rank begin with what there is to read, as far as its room goes.
    fn read(&mut self, number: usize, at: f64, setup: &Setup, book: &mut Book) {
        let mut asked = 0;
        while self.ranks[number].idle > 0 {
            let rank = &mut self.ranks[number];
            // A batch of which nothing is left to read may be over and gone.
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

    /// A thread begins to fetch a sample.
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

    /// A sample was fetched: it is preprocessed, and written into the staging buffer.
    fn stage(&mut self, read: Read, fetched: f64) {
        let rank = &mut self.ranks[read.rank];
        let batch = &mut rank.batches[read.step - rank.first];
        let staged = fetched + batch.sizes[read.nth] * self.rates.write;
        batch.reads[read.nth].fetched = fetched;
        self.happens(staged, What::Staged(read));
    }

    /// The consumer of a rank takes what there is for it.
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

    /// What happens next.
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
                // What is left of nothing after a million sums is not nothing.
                rank.bytes = if rank.samples == 0 { 0.0 } else { rank.bytes - bytes };
                rank.left += 1;
                self.read(number, at, setup, book);
            }
        }
    }

    /// Writes down a rank's batch that is over; when it was.
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

    /// It has a list of its own, which is ahead.
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

    /// Its consumer wants the next batch at `free`.
    fn want(&mut self, hand_over: HandOver, free: f64) {
        self.consumer = Some(Consumer::new(hand_over, free));
    }

    /// Whether what is read for `step` is what the staging buffer gets empty for: nothing before it is in there, so it
    /// goes in whatever its size.
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
