// SPDX-License-Identifier: Apache-2.0
//! Results of a simulated run, and their accumulation during the run.
//!
//! Every read and every second of every rank is counted once, so the sums of a report add up: `ranks * total` is
//! `ranks * init + compute + stall + barrier`.

use foresee_model::Compat;

use super::log::{Log, ReadTimes};
use super::policy::Policy;
use super::rates::SourceCode;

/// Reads of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reads {
    /// Number of samples.
    pub samples: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their duration in seconds, summed over threads and ranks.
    pub seconds: f64,
    /// Time that training waited for them in seconds, summed over ranks.
    pub waited: f64,
}

/// The place of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The origin.
    Origin,
    /// This rank's tier, counted from 0, fastest first, without the staging buffer.
    Tier(u8),
    /// Another rank's tier.
    Peer(u8),
}

/// One pass over the data set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EpochReport {
    /// When the last rank ended it, in seconds from the start of the run.
    pub end: f64,
    /// Samples read from the origin during the epoch, for staging or into a tier, over all ranks.
    pub origin_samples: u64,
    /// Seconds that ranks waited for samples, summed over ranks.
    pub stall: f64,
}

/// The result of a policy. Times are in seconds; sums are over all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The policy.
    pub policy: Policy,
    /// The reading of the model.
    pub compat: Compat,
    /// From the start to the end of the slowest rank, `init` included.
    pub total: f64,
    /// Time before training could begin, of the slowest rank.
    pub init: f64,
    /// Results by epoch, as far as the run got.
    pub epochs: Vec<EpochReport>,
    /// Reads into staging by place; places without reads are omitted.
    pub reads: Vec<(Place, Reads)>,
    /// Loads from the origin into each tier by its threads, before or during training.
    pub loads: Vec<Reads>,
    /// Requests to the origin: one per sample read.
    pub origin_requests: u64,
    /// Bytes of those requests.
    pub origin_bytes: u64,
    /// Samples that the reader of the origin sent to the node that caches them. They are no reads, and delay nothing.
    pub pushed_samples: u64,
    /// Their bytes.
    pub pushed_bytes: u64,
    /// Listings of the origin; window policies only.
    pub listings: u64,
    /// Seconds of compute, over ranks.
    pub compute: f64,
    /// Seconds of waiting for a sample, over ranks.
    pub stall: f64,
    /// Seconds of waiting for other ranks, over ranks.
    pub barrier: f64,
    /// Ranks.
    pub ranks: u32,
    /// Distinct samples that were read at least once.
    pub covered: u64,
    /// Samples of the data set.
    pub samples: u64,
    /// Whether the run was simulated to its end.
    pub finished: bool,
}

impl Report {
    /// Fraction of the data set that training saw, 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "a share for people: 53 bits are plenty")]
    pub fn coverage(&self) -> f64 {
        self.covered as f64 / self.samples as f64
    }

    /// Reads into staging from `place`.
    pub fn from(&self, place: Place) -> Reads {
        self.reads.iter().find(|(other, _)| *other == place).map(|(_, reads)| *reads).unwrap_or_default()
    }

    /// Fraction of reads into staging that did not use the origin, 0 to 1; `None` before any.
    #[expect(clippy::cast_precision_loss, reason = "a share for people: 53 bits are plenty")]
    pub fn hit_rate(&self) -> Option<f64> {
        let all: u64 = self.reads.iter().map(|(_, reads)| reads.samples).sum();
        (all > 0).then(|| 1.0 - self.from(Place::Origin).samples as f64 / all as f64)
    }
}

/// Running sums. Bytes are whole numbers below 2^53 and therefore exact.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadSums {
    samples: u64,
    bytes: f64,
    seconds: f64,
    waited: f64,
}

impl ReadSums {
    pub(super) fn add(&mut self, size: f64, seconds: f64) {
        self.samples += 1;
        self.bytes += size;
        self.seconds += seconds;
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a sum of sizes")]
    fn reads(self) -> Reads {
        Reads { samples: self.samples, bytes: self.bytes as u64, seconds: self.seconds, waited: self.waited }
    }
}

/// All counters of a run.
#[derive(Debug)]
pub(super) struct Metrics {
    tiers: usize,
    samples: u32,
    sources: Vec<ReadSums>,
    loads: Vec<ReadSums>,
    pub(super) listings: u64,
    downloads: ReadSums,
    compute: f64,
    stall: f64,
    pub(super) barrier: f64,
    epochs: Vec<EpochReport>,
    seen: Vec<u64>,
    covered: u64,
    pub(super) log: Log,
}

impl Metrics {
    pub(super) fn new(tiers: usize, samples: u32) -> Self {
        Self {
            tiers,
            samples,
            sources: vec![ReadSums::default(); 1 + 2 * tiers.max(1)],
            loads: vec![ReadSums::default(); tiers],
            listings: 0,
            downloads: ReadSums::default(),
            compute: 0.0,
            stall: 0.0,
            barrier: 0.0,
            epochs: Vec::new(),
            seen: vec![0; (samples as usize).div_ceil(64)],
            covered: 0,
            log: Log::new(&[], None),
        }
    }

    /// Count the read of one of the batch's samples into staging, and the wait for this sample alone.
    pub(super) fn record_read(
        &mut self,
        (id, size): (u32, f64),
        source: SourceCode,
        seconds: f64,
        times: ReadTimes,
        waited: f64,
    ) {
        self.record_unlogged_read((id, size), source, seconds);
        self.record_wait(source, waited);
        self.log.read(id, source, size, times);
    }

    /// Count a read that the caller logs.
    pub(super) fn record_unlogged_read(&mut self, (id, size): (u32, f64), source: SourceCode, seconds: f64) {
        self.sources[usize::from(source)].add(size, seconds);
        self.mark_seen(id);
    }

    /// Count a sample of the batch whose read costs no time.
    pub(super) fn record_ready(&mut self, id: u32) {
        self.mark_seen(id);
        self.log.add_ready();
    }

    /// Count a wait of training for a sample from this source.
    pub(super) fn record_wait(&mut self, source: SourceCode, seconds: f64) {
        self.sources[usize::from(source)].waited += seconds;
    }

    /// End the batch with its times, in seconds.
    pub(super) fn end_batch(&mut self, stall: f64, compute: f64) {
        self.stall += stall;
        self.compute += compute;
        self.log.end_batch(stall);
    }

    /// Count the load of a sample from the origin into a tier of `rank`, from `start` to `end`.
    pub(super) fn record_load(
        &mut self,
        rank: usize,
        tier: usize,
        (id, size): (u32, f64),
        (start, end): (f64, f64),
    ) {
        self.loads[tier].add(size, end - start);
        self.log.load(rank, id, size, start, end - start);
    }

    /// Count the download of a sample into a bucket's cache.
    pub(super) fn record_download(&mut self, rank: usize, (id, size): (u32, f64), start: f64, seconds: f64) {
        self.downloads.add(size, seconds);
        self.log.load(rank, id, size, start, seconds);
    }

    /// Mark a sample as seen by training.
    fn mark_seen(&mut self, id: u32) {
        if self.covered == u64::from(self.samples) {
            return;
        }
        let (word, bit) = (id as usize / 64, 1 << (id % 64));
        self.covered += u64::from(self.seen[word] & bit == 0);
        self.seen[word] |= bit;
    }

    pub(super) fn end_epoch(&mut self, end: f64) {
        let before = self
            .epochs
            .iter()
            .fold((0, 0.0), |(origin, stall), epoch| (origin + epoch.origin_samples, stall + epoch.stall));
        let (samples, _) = self.origin();
        self.epochs.push(EpochReport {
            end,
            origin_samples: samples - before.0,
            stall: self.stall - before.1,
        });
    }

    /// Samples and bytes from the origin.
    fn origin(&self) -> (u64, f64) {
        let all = self.loads.iter().chain([&self.sources[0], &self.downloads]);
        all.fold((0, 0.0), |(samples, bytes), sums| (samples + sums.samples, bytes + sums.bytes))
    }

    /// The report so far.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a sum of sizes")]
    pub(super) fn report(
        &self,
        policy: Policy,
        compat: Compat,
        ranks: u32,
        times: Times,
        pushes: Pushes,
    ) -> Report {
        let (origin_requests, origin_bytes) = self.origin();
        let tiers = u8::try_from(self.tiers.max(1)).expect("few tiers");
        let places = std::iter::once(Place::Origin)
            .chain((0..tiers).map(Place::Tier))
            .chain((0..tiers).map(Place::Peer));
        let reads = places.zip(&self.sources).filter(|(_, sums)| sums.samples > 0);
        Report {
            policy,
            compat,
            total: times.init + times.trained,
            init: times.init,
            epochs: self
                .epochs
                .iter()
                .map(|epoch| EpochReport { end: times.init + epoch.end, ..*epoch })
                .collect(),
            reads: reads.map(|(place, sums)| (place, sums.reads())).collect(),
            loads: self.loads.iter().map(|sums| sums.reads()).collect(),
            origin_requests,
            origin_bytes: origin_bytes as u64,
            pushed_samples: pushes.samples,
            pushed_bytes: pushes.bytes as u64,
            listings: self.listings,
            compute: self.compute,
            stall: self.stall,
            barrier: self.barrier + times.behind,
            ranks,
            covered: self.covered,
            samples: u64::from(self.samples),
            finished: times.finished,
        }
    }
}

/// Samples that were sent to the node that caches them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pushes {
    samples: u64,
    bytes: f64,
}

impl Pushes {
    pub(super) fn add(&mut self, size: f64) {
        self.samples += 1;
        self.bytes += size;
    }
}

/// The times of a run so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// Before training.
    pub(super) init: f64,
    /// Time of the slowest rank, from the start of training.
    pub(super) trained: f64,
    /// Sum of the seconds by which the others are ahead of it.
    pub(super) behind: f64,
    pub(super) finished: bool,
}
