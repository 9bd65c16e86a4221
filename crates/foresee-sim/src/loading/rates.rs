// SPDX-License-Identifier: Apache-2.0
//! A scenario's rates as seconds per byte, for the loop over samples.
//!
//! Sources have numbers: 0 is the origin, then this rank's tiers, then its peers' tiers, fastest first each. The
//! two readings of the model differ only in these values: `Compat::Paper` replaces `p` threads by one server that
//! is `p` times as fast, and no source is ever busy.

use foresee_model::{Compat, ModelError, SourceRate, Staging};

use super::scenario::{Cluster, Scenario, WriteCost};

/// The number of a source.
pub(super) type SourceCode = u8;

/// The number of the origin.
pub(super) const ORIGIN: SourceCode = 0;

#[derive(Clone, Debug)]
pub(super) struct Rates {
    /// Seconds from a request of the origin to its first byte.
    pub(super) latency: f64,
    /// Seconds that the origin needs to accept a request of this rank; 0 without a limit.
    pub(super) request: f64,
    /// The same, if this rank used the origin alone.
    pub(super) request_alone: f64,
    /// Seconds per byte of compute.
    pub(super) compute: f64,
    /// Seconds per byte of a staging thread from fetched to available.
    pub(super) write: f64,
    pub(super) staging_threads: usize,
    /// Bytes of the staging buffer.
    pub(super) capacity: f64,
    /// By source.
    pub(super) sources: Vec<SourceSeconds>,
    /// Rates of the origin, by the number of ranks that read it, less one.
    origin: Vec<SourceSeconds>,
    /// The same for all of those ranks together.
    yields: Vec<f64>,
    /// Seconds per byte of a rank's link to the origin; 0 without a limit.
    pub(super) link: f64,
    /// Rates of the threads that fill each tier.
    pub(super) loads: Vec<LoadRates>,
    /// Sources by speed; among equals this rank's tiers, then peers' tiers, then the origin.
    pub(super) preference: Vec<SourceCode>,
    /// Rates of a rank with one thread for everything.
    pub(super) alone: AloneSeconds,
}

/// Seconds per byte of one thread that reads the origin.
#[derive(Clone, Copy, Debug)]
pub(super) struct AloneSeconds {
    pub(super) fetch: f64,
    /// From fetched to available.
    pub(super) write: f64,
}

/// Seconds per byte from a source.
#[derive(Clone, Copy, Debug)]
pub(super) struct SourceSeconds {
    /// For one thread.
    pub(super) thread: f64,
    /// For all threads together; 0 if they are not counted together.
    pub(super) all: f64,
    /// The index of the clock that sources which share a resource have in common.
    pub(super) clock: usize,
}

/// Rates of the threads that load a tier from the origin.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadRates {
    /// Seconds that the origin needs to accept a request, and from then on to its first byte.
    pub(super) request: f64,
    pub(super) latency: f64,
    pub(super) threads: usize,
    /// Capacity of the tier in bytes.
    pub(super) capacity: f64,
    /// Seconds per byte of the fetch by one thread, while all ranks read the origin.
    pub(super) fetch: f64,
    /// The same for all threads; 0 if they are not counted together.
    pub(super) all: f64,
    /// Seconds per byte from fetched to held.
    pub(super) write: f64,
}

impl Rates {
    /// The rates of a valid scenario.
    pub(super) fn new(scenario: &Scenario) -> Result<Self, ModelError> {
        let Scenario { cluster, training, options, .. } = scenario;
        let paper = options.compat == Compat::Paper;
        let latency = if paper { 0.0 } else { cluster.origin_latency.as_secs_f64() };
        let request_alone =
            cluster.origin_requests.filter(|_| !paper).map_or(0.0, |requests| 1.0 / as_f64(requests.get()));
        let request = f64::from(cluster.ranks) * request_alone;
        let servers = |threads: u32| if paper { 1.0 } else { f64::from(threads) };
        let speed_up = |threads: u32| f64::from(threads) / servers(threads);
        let p_0 = cluster.staging.threads;
        let seconds = |rate: SourceRate, clock: usize, speed_up: f64| SourceSeconds {
            thread: 1.0 / (rate.thread * speed_up),
            all: if paper { 0.0 } else { 1.0 / rate.all },
            clock,
        };
        let staging_write = cluster.staging.write.as_ref().map(|curve| curve.rate(p_0.get())).transpose()?;
        let preprocess = training.preprocess.map(|rate| as_f64(rate.get()));
        let staging = Staging::new(p_0, preprocess, staging_write)?;
        let origin = origin_rates(cluster)?;
        let all_read = origin.last().copied().expect("a rank or more");
        let staged = speed_up(p_0.get());
        let tiers = &cluster.tiers;
        let (mut local, mut peers) = (Vec::new(), Vec::new());
        for (tier, clock) in tiers.iter().zip(1..) {
            let rate = tier.read.rate(tier.threads.get())?;
            local.push(seconds(SourceRate::local(rate, tier.threads)?, clock, staged));
            if let Some(link) = cluster.peer_link {
                let rate = SourceRate::peer(as_f64(link.get()), rate, tier.threads)?;
                peers.push(seconds(rate, tiers.len() + 1, staged));
            }
        }
        let mut loads = Vec::new();
        for tier in tiers {
            let threads = tier.threads.get();
            let written = tier.write.as_ref().map(|curve| curve.rate(threads)).transpose()?;
            let (beta, written) = match options.write_cost {
                WriteCost::Preprocess => (preprocess, written),
                WriteCost::Write => (None, written),
                WriteCost::None => (None, None),
            };
            let write = Staging::new(tier.threads, beta, written)?.write_seconds(1.0);
            let fetch = seconds(all_read, 0, speed_up(threads));
            loads.push(LoadRates {
                request,
                latency,
                threads: if paper { 1 } else { threads as usize },
                capacity: as_f64(tier.capacity.get()),
                fetch: fetch.thread,
                all: fetch.all,
                write: write / speed_up(threads),
            });
        }
        let alone = AloneSeconds { fetch: 1.0 / all_read.thread, write: staging.write_seconds(1.0) };
        let sources = std::iter::once(seconds(all_read, 0, staged)).chain(local).chain(peers).collect();
        let mut rates = Self {
            latency,
            request,
            request_alone,
            compute: 1.0 / as_f64(training.compute.get()),
            write: staging.write_seconds(1.0) / staged,
            staging_threads: if paper { 1 } else { p_0.get() as usize },
            capacity: as_f64(cluster.staging.capacity.get()),
            sources,
            yields: (1..=cluster.ranks)
                .map(|readers| Ok(1.0 / cluster.origin.share(f64::from(readers))? / f64::from(readers)))
                .collect::<Result<_, ModelError>>()?,
            link: cluster.origin_link.map_or(0.0, |rate| 1.0 / as_f64(rate.get())),
            origin: origin.into_iter().map(|rate| seconds(rate, 0, staged)).collect(),
            loads,
            preference: Vec::new(),
            alone,
        };
        rates.prefer();
        Ok(rates)
    }

    /// Set the number of ranks that read the origin, 1 or more. `Compat::Physical` only.
    pub(super) fn set_readers(&mut self, readers: usize) {
        let now = self.origin[readers - 1];
        self.sources[usize::from(ORIGIN)] = now;
        #[expect(clippy::cast_precision_loss, reason = "ranks")]
        let request = readers as f64 * self.request_alone;
        self.request = request;
        for load in &mut self.loads {
            (load.fetch, load.all, load.request) = (now.thread, now.all, request);
        }
        self.alone.fetch = now.thread;
        self.prefer();
    }

    /// Seconds per byte of the origin for all of `readers` ranks together.
    pub(super) fn all_ranks(&self, readers: usize) -> f64 {
        self.yields[readers - 1]
    }

    /// The number of this rank's tier.
    pub(super) fn local(tier: usize) -> SourceCode {
        u8::try_from(1 + tier).expect("few tiers")
    }

    /// The number of a peer's tier.
    pub(super) fn peer(&self, tier: usize) -> SourceCode {
        u8::try_from(1 + self.loads.len() + tier).expect("few tiers")
    }

    /// The source, or the origin if that is faster.
    pub(super) fn faster(&self, code: SourceCode) -> SourceCode {
        let seconds = |code: SourceCode| self.sources[usize::from(code)].thread;
        if seconds(code) <= seconds(ORIGIN) { code } else { ORIGIN }
    }

    /// Number of clocks of one rank: the origin's, each tier's, and that of the link to peers.
    pub(super) fn clocks(&self) -> usize {
        self.loads.len() + 2
    }

    fn prefer(&mut self) {
        let Self { preference, sources, .. } = self;
        preference.clear();
        // A stable sort keeps this order among equals.
        preference.extend((1..sources.len()).map(|code| u8::try_from(code).expect("few tiers")));
        preference.push(ORIGIN);
        let seconds = |code: &SourceCode| sources[usize::from(*code)].thread;
        preference.sort_by(|one, other| seconds(one).total_cmp(&seconds(other)));
    }
}

/// Rates of one rank, by the number of ranks that read, less one.
fn origin_rates(cluster: &Cluster) -> Result<Vec<SourceRate>, ModelError> {
    let link = cluster.origin_link.map(|rate| as_f64(rate.get()));
    (1..=cluster.ranks).map(|readers| SourceRate::origin(link, &cluster.origin, f64::from(readers))).collect()
}

#[expect(clippy::cast_precision_loss, reason = "rates and capacities, far below 2^53")]
const fn as_f64(value: u64) -> f64 {
    value as f64
}
