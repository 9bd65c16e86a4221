// SPDX-License-Identifier: Apache-2.0
//! Ranks that prefetch into a staging buffer: the loop over samples, for every policy that caches or does not.
//!
//! One rank after the other within a step, because what they share is visible to others from the next step on. A
//! fetch may start long before its step: threads run ahead as far as the buffer has room, and a source is chosen by
//! what was held at that time. Refuses to know who holds what: that is the policy's.

use super::lane::Lane;
use super::log::Fetched;
use super::rates::{ORIGIN, Rates, SourceCode};
use super::report::Book;
use super::run::{Clock, Driver, Setup, StepNow};
use super::scenario::{HandOver, Options, OriginReaders};

/// One read of one rank.
#[derive(Clone, Copy)]
pub(super) struct Access {
    pub(super) rank: usize,
    pub(super) id: u32,
    /// Its place among the reads of all epochs and ranks, as lists have them.
    pub(super) place: usize,
    /// Its place in the rank's batch.
    pub(super) nth: usize,
}

/// Where a staging thread gets a sample.
#[derive(Clone, Copy)]
pub(super) enum Supply {
    /// It fetches the sample there.
    From(SourceCode),
    /// A thread of that tier is bringing it, and has it then; staging takes it from its hands.
    With(SourceCode, f64),
}

/// What a policy with a staging buffer decides.
pub(super) trait Caching: Send {
    /// As [`Driver::prepare`].
    fn prepare(&mut self, _setup: &Setup, _rates: &Rates, _book: &mut Book) -> (u64, u64) {
        (0, 0)
    }

    /// As [`Driver::init`].
    fn init(&self) -> f64 {
        0.0
    }

    /// As [`Driver::needs_order`].
    fn needs_order(&self) -> bool {
        true
    }

    /// Who reads what in this step, if not as the order has it.
    fn deal(&mut self, _setup: &Setup, _step: usize, _ids: &mut [u32]) {}

    /// A rank's batch begins: the time to look up what is known of its samples, all at once.
    fn look_up(&mut self, _ids: &[u32]) {}

    /// Threads of the rank's tiers go on until `until`.
    fn advance(&mut self, _rank: usize, _until: f64, _around: &mut Around<'_>) {}

    /// Whether a read is expected to need the origin, as far as that is known before it begins.
    fn needs_origin(&self, _place: usize) -> bool {
        true
    }

    /// Where a fetch that starts at `at` gets its sample.
    fn supply(&mut self, access: Access, at: f64, rates: &Rates) -> Supply;

    /// A sample was fetched.
    fn fetched(&mut self, _access: Access, _size: f64, _at: f64) {}

    /// A step has ended.
    fn end_step(&mut self, _ends: &[f64]) {}
}

/// What threads of a rank's tiers need.
pub(super) struct Around<'a> {
    pub(super) setup: &'a Setup,
    pub(super) rates: &'a Rates,
    pub(super) lane: &'a mut Lane,
    pub(super) book: &'a mut Book,
}

pub(super) struct Prefetching<C> {
    caching: C,
    rates: Rates,
    lanes: Vec<Lane>,
    /// Sizes of a batch; kept for its memory.
    sizes: Vec<f64>,
    readers: OriginReaders,
    hand_over: HandOver,
    /// By rank: its part of what the step needs from the origin, where that matters.
    shares: Vec<f64>,
}

impl<C: Caching> Prefetching<C> {
    pub(super) fn new(caching: C, rates: Rates, setup: &Setup) -> Self {
        let Options { readers, hand_over, .. } = setup.scenario.options;
        let together = readers == OriginReaders::Demand;
        let lanes = (0..setup.epochs.ranks).map(|_| Lane::new(&rates, together)).collect();
        Self { caching, rates, lanes, sizes: Vec::new(), readers, hand_over, shares: Vec::new() }
    }

    /// What each rank needs from the origin in a step, as parts of one: together they are never more than it gives, however
    /// far ranks read ahead.
    fn look_at_demand(&mut self, setup: &Setup, step: usize, before: usize, ids: &[u32]) {
        let first = setup.epochs.step(step).start;
        self.shares.clear();
        for rank in 0..setup.epochs.ranks {
            let batch = setup.epochs.batch(step, rank);
            setup.sizes.look_up(&ids[batch.start - first..batch.end - first], &mut self.sizes);
            let needed = (before + batch.start..)
                .zip(&self.sizes)
                .filter(|(place, _)| self.caching.needs_origin(*place))
                .map(|(_, size)| size);
            self.shares.push(needed.sum());
        }
        let all: f64 = self.shares.iter().sum();
        if all > 0.0 {
            self.shares.iter_mut().for_each(|share| *share /= all);
        }
    }
}

impl<C: Caching> Driver for Prefetching<C> {
    fn prepare(&mut self, setup: &Setup, book: &mut Book) -> (u64, u64) {
        self.caching.prepare(setup, &self.rates, book)
    }

    fn init(&self) -> f64 {
        self.caching.init()
    }

    fn needs_order(&self) -> bool {
        self.caching.needs_order()
    }

    fn step(&mut self, now: &mut StepNow<'_>) {
        let StepNow { setup, epoch, step, ids, clock, book } = now;
        self.caching.deal(setup, *step, ids);
        let first = setup.epochs.step(*step).start;
        let before = *epoch as usize * setup.epochs.places;
        if self.readers == OriginReaders::Demand {
            self.look_at_demand(setup, *step, before, ids);
        }
        for rank in 0..setup.epochs.ranks {
            let batch = setup.epochs.batch(*step, rank);
            let place = before + batch.start;
            if let Some(&share) = self.shares.get(rank)
                && share > 0.0
            {
                let readers = self.shares.iter().filter(|&&share| share > 0.0).count();
                self.rates.set_share(readers, share);
            }
            let ids = &ids[batch.start - first..batch.end - first];
            setup.sizes.look_up(ids, &mut self.sizes);
            self.caching.look_up(ids);
            let lane = &mut self.lanes[rank];
            let mut free = clock.free[rank];
            let (mut compute, mut stall) = (0.0, 0.0);
            // When all of the batch is there, and where its last sample came from.
            let mut whole = (free, ORIGIN);
            if let Some(log) = &mut book.log {
                log.begin_batch(rank, free);
            }
            for (nth, (&id, &size)) in ids.iter().zip(&self.sizes).enumerate() {
                let access = Access { rank, id, place: place + nth, nth };
                let start = lane.admit(size);
                let around = &mut Around { setup, rates: &self.rates, lane, book };
                self.caching.advance(rank, start.at, around);
                let (source, fetched) = match self.caching.supply(access, start.at, &self.rates) {
                    Supply::From(source) => (source, lane.fetch(start, size, source, &self.rates)),
                    Supply::With(source, ready) => (source, ready.max(start.at)),
                };
                let available = lane.stage(start, size, fetched, &self.rates);
                self.caching.fetched(access, size, fetched);
                book.read(source, size, fetched - start.at);
                book.see(id);
                let consumed = free.max(available);
                if let Some(log) = &mut book.log {
                    let times = Fetched { start: start.at, end: fetched, wanted: free, consumed };
                    log.read(id, source, size, times);
                }
                let computing = size * self.rates.compute;
                compute += computing;
                if self.hand_over == HandOver::Batch {
                    if consumed > whole.0 {
                        whole = (consumed, source);
                    }
                    continue;
                }
                lane.hold(size, consumed);
                stall += consumed - free;
                book.wait(source, consumed - free);
                free = consumed + computing;
            }
            if self.hand_over == HandOver::Batch {
                let (consumed, last) = whole;
                stall = consumed - free;
                book.wait(last, stall);
                free = consumed + compute;
                self.sizes.iter().for_each(|&size| lane.hold(size, free));
            }
            if let Some(log) = &mut book.log {
                log.end_batch(stall);
            }
            clock.free[rank] = free;
            book.stall += stall;
            book.compute += compute;
        }
    }

    fn end_step(&mut self, clock: &Clock) {
        self.caching.end_step(&clock.ends);
        if self.readers == OriginReaders::Active {
            let readers =
                self.lanes.iter_mut().filter_map(|lane| lane.take_read_origin().then_some(())).count();
            self.rates.set_readers(readers.max(1));
        }
    }
}
