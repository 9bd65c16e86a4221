// SPDX-License-Identifier: Apache-2.0
//! Cache policies, one file each: what it is, where it comes from, where not to use it.

mod fifo;
mod lru;
mod next_use;
mod pin;
mod planner;

use std::sync::Arc;

use foresee_data_plan::{PolicyChoice, SampleSizes};
use foresee_units::{Bytes, SampleId};

/// What one access came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Whether the cache held the sample.
    pub hit: bool,
    /// Whether the cache keeps what was read from the origin.
    pub kept: bool,
    /// Copies dropped for it.
    pub evicted: u64,
}

/// A cache of samples under some rule. It never holds more than its capacity, and a sample that does not
/// fit at all passes by.
pub trait HitPolicy {
    /// The next access of the rank.
    fn access(&mut self, sample: SampleId) -> Outcome;
}

/// The policies that can be simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// Least recently used goes first.
    Lru,
    /// First in, first out.
    Fifo,
    /// What came first stays.
    Pin,
    /// Belady's rule with bypass, from the textbook.
    NextUse,
    /// The planner that the engine follows.
    Planner {
        /// Its policy.
        choice: PolicyChoice,
        /// How many accesses at least are announced before each is planned; from `usize::MAX` on, the
        /// whole run.
        ahead: usize,
    },
}

impl PolicyKind {
    /// The planner as it comes, with the whole run announced.
    pub const PLANNER: Self = Self::Planner { choice: PolicyChoice::Auto, ahead: usize::MAX };

    /// The policy with an empty cache, about to see `epochs`.
    pub fn build(
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

/// Bytes held, and by whom: what every textbook policy needs.
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
