// SPDX-License-Identifier: Apache-2.0
//! Ranks without overlap: the lower and upper bounds of all policies that prefetch.

use std::ops::Range;

use super::log::ReadTimes;
use super::origin::Origin;
use super::rates::{ORIGIN, Rates};
use super::run::{Driver, Setup, StepNow};
use super::scenario::OriginReaders;

/// `perfect` never waits for a sample; `naive` fetches, preprocesses and computes in sequence, in one thread.
pub(super) struct SerialDriver {
    waits: bool,
    rates: Rates,
    readers: OriginReaders,
    /// The common origin of ranks that wait, with the indices of their turns.
    origin: Option<Origin<usize>>,
    sizes: Vec<f64>,
}

impl SerialDriver {
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
    in_flight: bool,
    stall: f64,
    compute: f64,
}

impl Turn {
    /// When it requests its next sample; infinity if a request is in flight, or none is left.
    fn next_request(&self) -> f64 {
        if self.in_flight || self.next == self.end { f64::INFINITY } else { self.free }
    }
}

/// All ranks read one sample at a time from a common origin whose requests take turns: capacity that one rank
/// does not use while it waits or computes goes to the others. Ranks that request together continue together, at
/// the time of the last one.
fn step_in_turn(origin: &mut Origin<usize>, rates: &Rates, sizes: &mut Vec<f64>, now: &mut StepNow<'_>) {
    let StepNow { setup, step, ids, clock, metrics, .. } = now;
    setup.sizes.look_up(ids, sizes);
    let mut turns: Vec<Turn> = (0..setup.epochs.ranks)
        .map(|rank| {
            let Range { start: next, end } = setup.epochs.batch_in_step(*step, rank);
            let free = clock.free[rank];
            Turn { rank, next, end, free, in_flight: false, stall: 0.0, compute: 0.0 }
        })
        .collect();
    loop {
        let next_request =
            turns.iter().enumerate().min_by(|(_, a), (_, b)| a.next_request().total_cmp(&b.next_request()));
        let (place, joins) = next_request.map_or((0, f64::INFINITY), |(place, turn)| {
            (place, origin.acceptance(turn.next_request()) + rates.latency)
        });
        if joins < origin.turn_end() {
            let turn = &mut turns[place];
            origin.request(turn.next_request());
            origin.enqueue(joins, turn.rank, sizes[turn.next], place);
            turn.in_flight = true;
            continue;
        }
        if origin.turn_end().is_infinite() {
            break;
        }
        // Not every turn ends a request.
        let Some((at, place)) = origin.end_turn() else { continue };
        let turn = &mut turns[place];
        let (id, size) = (ids[turn.next], sizes[turn.next]);
        let fetched = at.max(turn.free + rates.latency + size * rates.link);
        let staged = fetched + size * rates.alone.write;
        metrics.record_unlogged_read((id, size), ORIGIN, fetched - turn.free);
        metrics.log.load(turn.rank, id, size, turn.free, fetched - turn.free);
        turn.stall += staged - turn.free;
        turn.compute += size * rates.compute;
        (turn.free, turn.in_flight) = (staged, false);
        turn.next += 1;
    }
    for turn in &turns {
        let samples = setup.epochs.batch(*step, turn.rank).len();
        metrics.log.begin_batch(turn.rank, clock.free[turn.rank]);
        (0..samples).for_each(|_| metrics.log.add_ready());
        metrics.log.blame_origin();
        metrics.record_wait(ORIGIN, turn.stall);
        metrics.end_batch(turn.stall, turn.compute);
        clock.free[turn.rank] = turn.free + turn.compute;
    }
}

impl Driver for SerialDriver {
    fn step(&mut self, now: &mut StepNow<'_>) {
        if let Some(origin) = &mut self.origin {
            return step_in_turn(origin, &self.rates, &mut self.sizes, now);
        }
        let StepNow { setup, step, ids, clock, metrics, .. } = now;
        let mut readers = 0;
        for rank in 0..setup.epochs.ranks {
            let ids = &ids[setup.epochs.batch_in_step(*step, rank)];
            setup.sizes.look_up(ids, &mut self.sizes);
            readers += usize::from(!ids.is_empty());
            let (mut compute, mut stall) = (0.0, 0.0);
            let free = clock.free[rank];
            metrics.log.begin_batch(rank, free);
            for (&id, &size) in ids.iter().zip(&self.sizes) {
                compute += size * self.rates.compute;
                if self.waits {
                    let fetch = self.rates.request + self.rates.latency + size * self.rates.alone.fetch;
                    let wanted = free + stall + compute - size * self.rates.compute;
                    let end = wanted + fetch;
                    let consumed = end + size * self.rates.alone.write;
                    let times = ReadTimes { start: wanted, end, wanted, consumed };
                    metrics.record_read((id, size), ORIGIN, fetch, times, 0.0);
                    stall += fetch + size * self.rates.alone.write;
                } else {
                    metrics.record_ready(id);
                }
            }
            metrics.record_wait(ORIGIN, stall);
            metrics.end_batch(stall, compute);
            clock.free[rank] += stall + compute;
        }
        if self.readers == OriginReaders::Active {
            self.rates.set_readers(readers.max(1));
        }
    }
}
