// SPDX-License-Identifier: Apache-2.0
//! Cache policies without time: hits, bytes from the origin and evictions of one rank's accesses.
//!
//! They compare the engine's planner with the rules of textbooks and of other loaders. A fetch is always early
//! enough here; `foresee_sim::loading` simulates time. One file per policy.

mod fifo;
mod lru;
mod next_use;
mod pin;
mod planner;

use std::ops::AddAssign;
use std::sync::Arc;

use foresee_data_plan::{PolicyChoice, SampleSizes};
use foresee_units::{Bytes, SampleId};

/// The result of one epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HitReport {
    /// Accesses served by the cache.
    pub(crate) hits: u64,
    /// Accesses that read the origin.
    pub(crate) misses: u64,
    /// Bytes of those.
    pub(crate) origin_bytes: Bytes,
    /// Copies evicted to make space.
    pub(crate) evictions: u64,
    /// Bytes that the cache wrote, which determine the wear of a disk.
    pub(crate) cached_bytes: Bytes,
}

impl HitReport {
    /// Hits per access, 0 to 1; `None` without accesses.
    pub(crate) fn hit_rate(&self) -> Option<f64> {
        let accesses = self.hits + self.misses;
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people: 53 bits are plenty")]
        (accesses > 0).then(|| self.hits as f64 / accesses as f64)
    }
}

impl AddAssign for HitReport {
    fn add_assign(&mut self, other: Self) {
        self.hits += other.hits;
        self.misses += other.misses;
        self.origin_bytes += other.origin_bytes;
        self.evictions += other.evictions;
        self.cached_bytes += other.cached_bytes;
    }
}

/// Simulate one rank's accesses, epoch by epoch, under a policy with one cache of `capacity` bytes; return a
/// report per epoch.
///
/// # Panics
/// If an access names a sample that `sizes` does not have.
pub(crate) fn simulate(
    policy: PolicyKind,
    epochs: &[Vec<SampleId>],
    sizes: &Arc<dyn SampleSizes>,
    capacity: Bytes,
) -> Vec<HitReport> {
    let mut policy = policy.build(epochs, sizes, capacity);
    let simulate_epoch = |epoch: &Vec<SampleId>| {
        let mut report = HitReport::default();
        for &sample in epoch {
            let outcome = policy.access(sample);
            report.evictions += outcome.evicted;
            if outcome.cached {
                report.cached_bytes += sizes.size(sample);
            }
            if outcome.hit {
                report.hits += 1;
            } else {
                report.misses += 1;
                report.origin_bytes += sizes.size(sample);
            }
        }
        report
    };
    epochs.iter().map(simulate_epoch).collect()
}

/// The result of one access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Whether the cache held the sample.
    pub(crate) hit: bool,
    /// Whether the cache stores the sample that was read from the origin.
    pub(crate) cached: bool,
    /// Copies evicted for it.
    pub(crate) evicted: u64,
}

/// A cache of samples under some rule. It never exceeds its capacity, and a sample that cannot fit at all
/// bypasses it.
pub(crate) trait HitPolicy {
    /// The next access of the rank.
    fn access(&mut self, sample: SampleId) -> Outcome;
}

/// The policies that can be simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolicyKind {
    /// Least recently used goes first.
    Lru,
    /// First in, first out.
    Fifo,
    /// The first samples stay.
    Pin,
    /// Belady's rule with bypass, from the textbook.
    NextUse,
    /// The planner that the engine follows.
    Planner {
        /// Its policy.
        choice: PolicyChoice,
        /// Minimum number of accesses that are announced before each is planned; `usize::MAX` means the whole
        /// run.
        ahead: usize,
    },
}

impl PolicyKind {
    /// The planner with its defaults, with the whole run announced.
    pub(crate) const PLANNER: Self = Self::Planner { choice: PolicyChoice::Auto, ahead: usize::MAX };

    /// Create the policy with an empty cache, for a run of `epochs`.
    pub(crate) fn build(
        self,
        epochs: &[Vec<SampleId>],
        sizes: &Arc<dyn SampleSizes>,
        capacity: Bytes,
    ) -> Box<dyn HitPolicy> {
        let sizes = Arc::clone(sizes);
        match self {
            Self::Lru => Box::new(lru::Lru::new(sizes, capacity)),
            Self::Fifo => Box::new(fifo::Fifo::new(sizes, capacity)),
            Self::Pin => Box::new(pin::Pin::new(sizes, capacity)),
            Self::NextUse => Box::new(next_use::NextUse::new(epochs, sizes, capacity)),
            Self::Planner { choice, ahead } => {
                Box::new(planner::Planned::new(epochs, sizes, capacity, choice, ahead))
            }
        }
    }
}

/// Bytes held, with their samples, for the textbook policies.
struct Held {
    sizes: Arc<dyn SampleSizes>,
    here: Vec<bool>,
    free: Bytes,
}

impl Held {
    fn new(sizes: Arc<dyn SampleSizes>, capacity: Bytes) -> Self {
        let samples = usize::try_from(sizes.count()).expect("a simulated data set fits in memory");
        Self { sizes, here: vec![false; samples], free: capacity }
    }

    fn contains(&self, sample: SampleId) -> bool {
        self.here[index(sample)]
    }

    fn size(&self, sample: SampleId) -> Bytes {
        self.sizes.size(sample)
    }

    fn add(&mut self, sample: SampleId) {
        self.here[index(sample)] = true;
        self.free -= self.sizes.size(sample);
    }

    fn remove(&mut self, sample: SampleId) {
        self.here[index(sample)] = false;
        self.free += self.sizes.size(sample);
    }
}

fn index(sample: SampleId) -> usize {
    usize::try_from(sample.0).expect("a simulated data set fits in memory")
}
