// SPDX-License-Identifier: Apache-2.0
//! Ranks that prefetch into a staging buffer: the loop over samples, for every such policy.
//!
//! Ranks are simulated one after the other within a step, because copies become visible to others with the next
//! step. A fetch may start long before its step: threads run ahead as far as the buffer allows, and the source is
//! chosen among the copies held at that time. The policy knows which samples are held.

use super::consume::Consumer;
use super::contention::Requests;
use super::log::ReadTimes;
use super::pipeline::FetchPipeline;
use super::rates::{Rates, SourceCode};
use super::report::{Metrics, Pushes};
use super::run::{Clock, Driver, Setup, StepNow};
use super::scenario::{HandOver, Options, OriginReaders};

/// One read of one rank.
#[derive(Clone, Copy)]
pub(super) struct Access {
    pub(super) rank: usize,
    pub(super) id: u32,
    /// Its position among the reads of all epochs and ranks, in list order.
    pub(super) place: usize,
    /// Its index in the rank's batch.
    pub(super) nth: usize,
}

/// The source of a sample for a staging thread.
#[derive(Clone, Copy)]
pub(super) enum Supply {
    /// It fetches the sample from this source.
    From(SourceCode),
    /// A thread of that tier is loading it and completes at this time; staging takes it from there.
    With(SourceCode, f64),
}

/// The decisions of a policy with a staging buffer.
pub(super) trait Caching: Send {
    /// As [`Driver::prepare`].
    fn prepare(&mut self, _setup: &Setup, _rates: &Rates, _metrics: &mut Metrics) -> (u64, u64) {
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

    /// Whether one thread issues all requests of a rank.
    fn has_single_requester(&self) -> bool {
        false
    }

    /// Change the distribution of reads in this step, if it differs from the order.
    fn distribute(&mut self, _setup: &Setup, _step: usize, _ids: &mut [u32]) {}

    /// A rank's batch begins soon: issue prefetch hints.
    fn expect(&self, _ids: &[u32]) {}

    /// A rank's batch begins: look up the state of its samples, all at once.
    fn look_up(&mut self, _ids: &[u32]) {}

    /// Advance the threads of the rank's tiers until `until`.
    fn advance(&mut self, _rank: usize, _until: f64, _context: &mut FetchContext<'_>) {}

    /// The source of a fetch that starts at `at`.
    fn supply(&mut self, access: Access, at: f64, rates: &Rates) -> Supply;

    /// Handle the fetch of a sample.
    fn fetched(&mut self, _access: Access, _size: f64, _at: f64) {}

    /// Handle the end of a step.
    fn end_step(&mut self, _ends: &[f64]) {}

    /// As [`Driver::pushes`].
    fn pushes(&self) -> Pushes {
        Pushes::default()
    }
}

/// The environment of the threads of a rank's tiers.
pub(super) struct FetchContext<'a> {
    pub(super) setup: &'a Setup,
    pub(super) rates: &'a Rates,
    pub(super) pipeline: &'a mut FetchPipeline,
    /// Requests of all ranks, if they share one origin.
    pub(super) origin: Option<&'a mut Requests>,
    pub(super) metrics: &'a mut Metrics,
}

impl FetchContext<'_> {
    /// Load a sample of `rank` from the origin by a tier's thread, from `start` on; return when it is held.
    pub(super) fn load(&mut self, rank: usize, start: f64, size: f64, tier: usize) -> f64 {
        let rates = &self.rates.loads[tier];
        match &mut self.origin {
            None => self.pipeline.load(start, size, rates),
            Some(origin) => {
                let accepted = origin.request(start);
                origin.enqueue(start, rank, size, None);
                accepted + rates.latency + origin.estimate(size) + size * rates.write
            }
        }
    }
}

pub(super) struct PrefetchDriver<C> {
    caching: C,
    rates: Rates,
    pipelines: Vec<FetchPipeline>,
    /// Sizes of a batch, reused for their memory.
    sizes: Vec<f64>,
    readers: OriginReaders,
    hand_over: HandOver,
}

impl<C: Caching> PrefetchDriver<C> {
    pub(super) fn new(caching: C, rates: Rates, setup: &Setup) -> Self {
        let Options { readers, hand_over, .. } = setup.scenario.options;
        let pipelines = (0..setup.epochs.ranks).map(|_| FetchPipeline::new(&rates)).collect();
        Self { caching, rates, pipelines, sizes: Vec::new(), readers, hand_over }
    }
}

impl<C: Caching> Driver for PrefetchDriver<C> {
    fn prepare(&mut self, setup: &Setup, metrics: &mut Metrics) -> (u64, u64) {
        self.caching.prepare(setup, &self.rates, metrics)
    }

    fn init(&self) -> f64 {
        self.caching.init()
    }

    fn needs_order(&self) -> bool {
        self.caching.needs_order()
    }

    fn pushes(&self) -> Pushes {
        self.caching.pushes()
    }

    fn step(&mut self, now: &mut StepNow<'_>) {
        let StepNow { setup, epoch, step, ids, clock, metrics } = now;
        self.caching.distribute(setup, *step, ids);
        let before = *epoch as usize * setup.epochs.places;
        for rank in 0..setup.epochs.ranks {
            let place = before + setup.epochs.batch(*step, rank).start;
            if rank + 1 < setup.epochs.ranks {
                let ids = &ids[setup.epochs.batch_in_step(*step, rank + 1)];
                setup.sizes.expect(ids);
                self.caching.expect(ids);
            }
            let ids = &ids[setup.epochs.batch_in_step(*step, rank)];
            setup.sizes.look_up(ids, &mut self.sizes);
            self.caching.look_up(ids);
            let pipeline = &mut self.pipelines[rank];
            let mut consumer = Consumer::new(self.hand_over, clock.free[rank]);
            metrics.log.begin_batch(rank, clock.free[rank]);
            for (nth, (&id, &size)) in ids.iter().zip(&self.sizes).enumerate() {
                let access = Access { rank, id, place: place + nth, nth };
                let start = pipeline.admit(size);
                let context =
                    &mut FetchContext { setup, rates: &self.rates, pipeline, origin: None, metrics };
                self.caching.advance(rank, start.at, context);
                let (source, fetched) = match self.caching.supply(access, start.at, &self.rates) {
                    Supply::From(source) => (source, pipeline.fetch(start, size, source, &self.rates)),
                    Supply::With(source, ready) => (source, ready.max(start.at)),
                };
                let available = pipeline.stage(start, size, fetched, &self.rates);
                self.caching.fetched(access, size, fetched);
                let times = consumer.consume(available, source, size * self.rates.compute);
                let read_times = ReadTimes::new(start.at, fetched, times);
                metrics.record_read((id, size), source, fetched - start.at, read_times, times.waited);
                if self.hand_over == HandOver::Sample {
                    pipeline.hold(size, times.consumed);
                }
            }
            let batch_times = consumer.finish();
            let (source, waited) = batch_times.waited;
            metrics.record_wait(source, waited);
            if self.hand_over == HandOver::Batch {
                self.sizes.iter().for_each(|&size| pipeline.hold(size, batch_times.free));
            }
            metrics.end_batch(batch_times.stall, batch_times.compute);
            clock.free[rank] = batch_times.free;
        }
    }

    fn end_step(&mut self, clock: &Clock) {
        self.caching.end_step(&clock.ends);
        if self.readers == OriginReaders::Active {
            let mut readers = 0;
            for pipeline in &mut self.pipelines {
                readers += usize::from(pipeline.take_read_origin());
            }
            self.rates.set_readers(readers.max(1));
        }
    }
}
