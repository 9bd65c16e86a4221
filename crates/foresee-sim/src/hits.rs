// SPDX-License-Identifier: Apache-2.0
//! The walk over a rank's accesses, and what it counts.
//!
//! Apart from the policies, so that each of them is counted by the same hand.

use std::ops::AddAssign;
use std::sync::Arc;

use foresee_data_plan::SampleSizes;
use foresee_units::{Bytes, SampleId};

use crate::policies::PolicyKind;

/// What one epoch came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HitReport {
    /// Accesses served by the cache.
    pub hits: u64,
    /// Accesses that read the origin.
    pub misses: u64,
    /// Bytes of those.
    pub origin_bytes: Bytes,
    /// Copies dropped to make room.
    pub evictions: u64,
    /// Bytes that the cache wrote: what the wear of a disk depends on.
    pub kept_bytes: Bytes,
}

impl HitReport {
    /// Hits per access, 0 to 1; `None` where there was no access.
    pub fn hit_rate(&self) -> Option<f64> {
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
        self.kept_bytes += other.kept_bytes;
    }
}

/// Walks one rank's accesses, epoch by epoch, under a policy with one cache of `capacity` bytes; a report
/// per epoch.
///
/// # Panics
/// If an access names a sample that `sizes` does not have.
pub fn simulate(
    policy: PolicyKind,
    epochs: &[Vec<SampleId>],
    sizes: &Arc<dyn SampleSizes>,
    capacity: Bytes,
) -> Vec<HitReport> {
    let mut policy = policy.build(epochs, sizes, capacity);
    let walk = |epoch: &Vec<SampleId>| {
        let mut report = HitReport::default();
        for &sample in epoch {
            let outcome = policy.access(sample);
            report.evictions += outcome.evicted;
            if outcome.kept {
                report.kept_bytes += sizes.size(sample);
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
    epochs.iter().map(walk).collect()
}
