// SPDX-License-Identifier: Apache-2.0
//! Ranks without overlap: the lower and upper bounds of all policies that prefetch.

use super::log::Fetched;
use super::origin::Origin;
use super::rates::{ORIGIN, Rates};
use super::run::{Driver, Setup, StepNow};
use super::scenario::OriginReaders;

/// `perfect` never waits for a sample; `naive` fetches, preprocesses and computes in sequence, in one thread.
pub(super) struct Series {
    waits: bool,
    rates: Rates,
    readers: OriginReaders,
    /// The common origin of ranks that wait, with the indices of their turns.
    origin: Option<Origin<usize>>,
    sizes: Vec<f64>,
}

impl Series {
    pub(super) fn perfect(rates: Rates) -> Self {
        Self { waits: false, rates, readers: OriginReaders::All, origin: None, sizes: Vec::new() }
    }

    pub(super) fn naive(rates: Rates, setup: &Setup) -> Self {
        let options = &setup.scenario.options;
        let by_demand = matches!(options.readers, OriginReaders::Demand | OriginReaders::Queue);
        // Without a barrier ranks are in different steps at a time, but this loop goes step by step, so each rank
        // then has a fixed share.
        let origin = (by_demand && options.barrier).then(|| Origin::of(setup, &rates));
        Self { waits: true, rates, readers: options.readers, origin, sizes: Vec::new() }
    }
}

/// A rank within its batch.
struct Turn {
    rank: usize,
    /// Position of its next sample in the step's list, and the end of its batch.
    next: usize,
    end: usize,
    /// When its thread is idle, or was when it issued the current request.
    free: f64,
    under_way: bool,
    stall: f64,
    compute: f64,
}

impl Turn {
    /// When it requests its next sample; infinity if a request is in flight, or none is left.
    fn asks(&self) -> f64 {
        if self.under_way || self.next == self.end { f64::INFINITY } else { self.free }
    }
}

/// All ranks read one sample at a time from a common origin whose requests take turns: capacity that one rank
/// does not use while it waits or computes goes to the others. Ranks that request together continue together, at
/// the time of the last one.
fn step_in_turn(origin: &mut Origin<usize>, rates: &Rates, sizes: &mut Vec<f64>, now: &mut StepNow<'_>) {
    let StepNow { setup, step, ids, clock, book, .. } = now;
    let first = setup.epochs.step(*step).start;
    setup.sizes.look_up(ids, sizes);
    let mut turns: Vec<Turn> = (0..setup.epochs.ranks)
        .map(|rank| {
            let batch = setup.epochs.batch(*step, rank);
            let (next, end) = (batch.start - first, batch.end - first);
            let free = clock.free[rank];
            Turn { rank, next, end, free, under_way: false, stall: 0.0, compute: 0.0 }
        })
        .collect();
    loop {
        let asks = turns.iter().enumerate().min_by(|(_, a), (_, b)| a.asks().total_cmp(&b.asks()));
        let (place, joins) = asks
            .map_or((0, f64::INFINITY), |(place, turn)| (place, origin.takes(turn.asks()) + rates.latency));
        if joins < origin.next() {
            let turn = &mut turns[place];
            origin.ask(turn.asks());
            origin.join(joins, turn.rank, sizes[turn.next], place);
            turn.under_way = true;
            continue;
        }
        if origin.next().is_infinite() {
            break;
        }
        // Not every turn ends a request.
        let Some((at, place)) = origin.take() else { continue };
        let turn = &mut turns[place];
        let (id, size) = (ids[turn.next], sizes[turn.next]);
        let fetched = at.max(turn.free + rates.latency + size * rates.link);
        let there = fetched + size * rates.alone.write;
        book.see(id);
        book.read(ORIGIN, size, fetched - turn.free);
        if let Some(log) = &mut book.log {
            log.load(turn.rank, id, size, turn.free, fetched - turn.free);
        }
        turn.stall += there - turn.free;
        turn.compute += size * rates.compute;
        (turn.free, turn.under_way) = (there, false);
        turn.next += 1;
    }
    for turn in &turns {
        let samples = setup.epochs.batch(*step, turn.rank).len();
        if let Some(log) = &mut book.log {
            log.begin_batch(turn.rank, clock.free[turn.rank]);
            (0..samples).for_each(|_| log.ready());
            log.waits_for_origin();
            log.end_batch(turn.stall);
        }
        clock.free[turn.rank] = turn.free + turn.compute;
        book.stall += turn.stall;
        book.wait(ORIGIN, turn.stall);
        book.compute += turn.compute;
    }
}

impl Driver for Series {
    fn step(&mut self, now: &mut StepNow<'_>) {
        if let Some(origin) = &mut self.origin {
            return step_in_turn(origin, &self.rates, &mut self.sizes, now);
        }
        let StepNow { setup, step, ids, clock, book, .. } = now;
        let first = setup.epochs.step(*step).start;
        let mut readers = 0;
        for rank in 0..setup.epochs.ranks {
            let batch = setup.epochs.batch(*step, rank);
            let ids = &ids[batch.start - first..batch.end - first];
            setup.sizes.look_up(ids, &mut self.sizes);
            readers += usize::from(!ids.is_empty());
            let (mut compute, mut stall) = (0.0, 0.0);
            let free = clock.free[rank];
            if let Some(log) = &mut book.log {
                log.begin_batch(rank, free);
            }
            for (&id, &size) in ids.iter().zip(&self.sizes) {
                book.see(id);
                compute += size * self.rates.compute;
                if self.waits {
                    let fetch = self.rates.request + self.rates.latency + size * self.rates.alone.fetch;
                    book.read(ORIGIN, size, fetch);
                    if let Some(log) = &mut book.log {
                        let wanted = free + stall + compute - size * self.rates.compute;
                        let end = wanted + fetch;
                        let consumed = end + size * self.rates.alone.write;
                        log.read(id, ORIGIN, size, Fetched { start: wanted, end, wanted, consumed });
                    }
                    stall += fetch + size * self.rates.alone.write;
                } else if let Some(log) = &mut book.log {
                    log.ready();
                }
            }
            if let Some(log) = &mut book.log {
                log.end_batch(stall);
            }
            clock.free[rank] += stall + compute;
            book.stall += stall;
            book.wait(ORIGIN, stall);
            book.compute += compute;
        }
        if self.readers == OriginReaders::Active {
            self.rates.set_readers(readers.max(1));
        }
    }
}
