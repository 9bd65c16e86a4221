// SPDX-License-Identifier: Apache-2.0
//! Ranks that do one thing after the other: the bound below and the bound above everything that prefetches.

use super::log::Fetched;
use super::rates::{ORIGIN, Rates};
use super::run::{Driver, StepNow};
use super::scenario::OriginReaders;

/// `perfect` never waits for a sample; `naive` fetches, preprocesses and computes in turn, in one thread.
pub(super) struct Series {
    waits: bool,
    rates: Rates,
    readers: OriginReaders,
    sizes: Vec<f64>,
}

impl Series {
    pub(super) fn perfect(rates: Rates) -> Self {
        Self { waits: false, rates, readers: OriginReaders::All, sizes: Vec::new() }
    }

    pub(super) fn naive(rates: Rates, readers: OriginReaders) -> Self {
        Self { waits: true, rates, readers, sizes: Vec::new() }
    }
}

/// A rank in the middle of its batch.
struct Turn {
    rank: usize,
    /// Where its next sample stands in the step's list, and where its batch ends.
    next: usize,
    end: usize,
    /// When its thread is free.
    free: f64,
    stall: f64,
    compute: f64,
}

impl Series {
    /// All ranks read one sample at a time, and the origin serves whoever asks first: what one does not use while it
    /// waits or computes, the others have.
    fn step_in_turn(&mut self, now: &mut StepNow<'_>) {
        let StepNow { setup, step, ids, clock, book, .. } = now;
        let first = setup.epochs.step(*step).start;
        setup.sizes.look_up(ids, &mut self.sizes);
        let mut turns: Vec<Turn> = (0..setup.epochs.ranks)
            .map(|rank| {
                let batch = setup.epochs.batch(*step, rank);
                let (next, end) = (batch.start - first, batch.end - first);
                Turn { rank, next, end, free: clock.free[rank], stall: 0.0, compute: 0.0 }
            })
            .collect();
        let readers = turns.iter().filter(|turn| turn.next < turn.end).count();
        let served = self.rates.all_ranks(readers.max(1));
        let mut busy = 0.0_f64;
        while let Some(turn) =
            turns.iter_mut().filter(|turn| turn.next < turn.end).min_by(|a, b| a.free.total_cmp(&b.free))
        {
            let (id, size) = (ids[turn.next], self.sizes[turn.next]);
            let asked = turn.free + self.rates.latency;
            busy = busy.max(asked) + size * served;
            let fetched = busy.max(asked + size * self.rates.link);
            let there = fetched + size * self.rates.alone.write;
            book.see(id);
            book.read(ORIGIN, size, fetched - turn.free);
            if let Some(log) = &mut book.log {
                log.load(turn.rank, id, size, turn.free, fetched - turn.free);
            }
            turn.stall += there - turn.free;
            turn.compute += size * self.rates.compute;
            turn.free = there;
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
}

impl Driver for Series {
    fn step(&mut self, now: &mut StepNow<'_>) {
        // Without a barrier ranks are in different steps at a time, and this goes step by step: each has its fixed part then.
        if self.waits
            && matches!(self.readers, OriginReaders::Demand | OriginReaders::Queue)
            && now.setup.scenario.options.barrier
        {
            return self.step_in_turn(now);
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
                    let fetch = self.rates.latency + size * self.rates.alone.fetch;
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
