// SPDX-License-Identifier: Apache-2.0
//! Ranks that do one thing after the other: the bound below and the bound above everything that prefetches.

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

impl Driver for Series {
    fn step(&mut self, now: &mut StepNow<'_>) {
        let StepNow { setup, step, ids, clock, book, .. } = now;
        let first = setup.epochs.step(*step).start;
        let mut readers = 0;
        for rank in 0..setup.epochs.ranks {
            let batch = setup.epochs.batch(*step, rank);
            let ids = &ids[batch.start - first..batch.end - first];
            setup.sizes.look_up(ids, &mut self.sizes);
            readers += usize::from(!ids.is_empty());
            let (mut compute, mut stall) = (0.0, 0.0);
            for (&id, &size) in ids.iter().zip(&self.sizes) {
                book.see(id);
                compute += size * self.rates.compute;
                if self.waits {
                    let fetch = size * self.rates.alone.fetch;
                    book.read(ORIGIN, size, fetch);
                    stall += fetch + size * self.rates.alone.write;
                }
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
