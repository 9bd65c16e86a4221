// SPDX-License-Identifier: Apache-2.0
//! Choice between next-use and pin by dry runs over the announced window: the bytes that each reads from the origin.
//!
//! With samples of one size next-use is never worse (it is Belady's rule with bypass). Pin is as good for one rank that
//! reads a permutation per epoch. It writes less, because it never exchanges a copy, and its hits are spread over the
//! epoch. Those of next-use come at the beginning, while the origin is idle. With unequal sizes either may be better,
//! which only a dry run shows.

use foresee_units::Bytes;

use super::AccessPlanner;
use crate::capacity::TierUsage;
use crate::hint;
use crate::next_use::narrow;
use crate::policy::Policy;
use crate::sampling::Sampling;
use crate::victims::NO_TIER;

/// Maximum number of accesses in a dry run: well under a second. A longer window is tried with a fraction of the
/// samples and the same fraction of the capacity.
const DRY_RUN_ACCESSES_MAX: usize = 1 << 18;
/// Two policies that differ by less than one part in this many are equally good. In a dry run of a fraction of the
/// samples such a difference is noise, and it would not pay for the exchange of copies.
const TOLERANCE: u128 = 128;
/// A window with fewer accesses per sample has too little reuse to prove that both are equal.
const CONCLUSIVE_ACCESSES_PER_SAMPLE: usize = 2;

impl AccessPlanner {
    /// Try both policies from here to the window's end. With about equal origin bytes choose pin, if the window is
    /// long enough or reaches the run's end.
    pub(crate) fn choose_policy(&mut self) -> Policy {
        let accesses = self.window.len();
        let dry_run = self.sample_window(DRY_RUN_ACCESSES_MAX);
        let next_use = self.dry_run(Policy::NextUse, &dry_run);
        let pin = self.dry_run(Policy::Pin, &dry_run);
        let tolerance = next_use / TOLERANCE;
        let samples = self.tier_of.len();
        let is_conclusive = self.window.has_ended() || accesses / CONCLUSIVE_ACCESSES_PER_SAMPLE >= samples;
        if pin < next_use || (is_conclusive && pin <= next_use + tolerance) {
            Policy::Pin
        } else {
            Policy::NextUse
        }
    }

    /// Select a part of the window with at most about `most` accesses.
    fn sample_window(&self, most: usize) -> DryRun {
        let sampling = Sampling::at_most(most, self.window.len());
        let offsets = (0..self.window.len()).filter(|&offset| sampling.includes(self.window.id(offset)));
        DryRun { sampling, offsets: offsets.collect() }
    }

    /// Return the origin bytes of the sampled samples over the window under `policy`; the state is restored
    /// afterwards.
    fn dry_run(&mut self, policy: Policy, dry_run: &DryRun) -> u128 {
        let &DryRun { sampling, ref offsets } = dry_run;
        let (tier_of, usage) = (self.tier_of.clone(), self.usage.clone());
        let (victims, tracked) = (std::mem::take(&mut self.victims), self.tracked);
        self.victims = victims.iter().map(|victims| victims.sampled(sampling)).collect();
        self.scale_capacities(sampling);
        self.track(offsets.iter().copied());
        let mut origin = 0;
        let mut evicted = Vec::new();
        for (number, &offset) in offsets.iter().enumerate() {
            if let Some(later) = hint::later(offsets, number) {
                self.prefetch(later);
            }
            let id = self.window.id(offset);
            if self.step(offset, policy, &mut evicted).source == NO_TIER {
                origin += u128::from(self.size(id).get());
            }
            evicted.clear();
        }
        (self.tier_of, self.usage, self.victims, self.tracked) = (tier_of, usage, victims, tracked);
        origin
    }

    /// Reduce the capacities to those of the sampled samples: their copies, and their share of the free space.
    fn scale_capacities(&mut self, sampling: Sampling) {
        if sampling == Sampling::ALL {
            return;
        }
        let free: Vec<Bytes> = self.usage.iter().map(TierUsage::free).collect();
        for usage in &mut self.usage {
            (usage.used, usage.copies) = (Bytes::ZERO, 0);
        }
        for sample in 0..self.tier_of.len() {
            let (id, tier) = (narrow(sample), self.tier_of[sample]);
            if tier != NO_TIER && sampling.includes(id) {
                let size = self.size(id);
                self.usage[usize::from(tier)].add(size);
            }
        }
        for (usage, free) in self.usage.iter_mut().zip(free) {
            usage.limits.capacity = usage.used + sampling.share(free);
        }
    }
}

/// The part of the window that a dry run uses.
struct DryRun {
    sampling: Sampling,
    /// Offsets of the window with accesses of sampled samples.
    offsets: Vec<usize>,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use foresee_units::SampleId;

    use super::*;
    use crate::capacity::{SampleSizes, TierCapacity};

    const SAMPLES: u64 = 4096;

    struct Mixed;

    impl SampleSizes for Mixed {
        fn count(&self) -> u64 {
            SAMPLES
        }
        fn size(&self, id: SampleId) -> Bytes {
            Bytes::new(100 + id.0 * 37 % 101)
        }
        fn uniform(&self) -> Option<Bytes> {
            None
        }
    }

    /// Capacity for half of the data set, filled in a first epoch whose last part is still ahead, and six more
    /// epochs, each over all samples at a stride of its own.
    fn full_planner() -> AccessPlanner {
        let limits = TierCapacity { capacity: Bytes::new(SAMPLES * 75), align: 1, overhead: Bytes::ZERO };
        let samples = usize::try_from(SAMPLES).unwrap();
        let mut planner = AccessPlanner::new(Arc::new(Mixed), samples, vec![TierUsage::new(limits)]);
        for stride in [1, 5, 1237, 3, 911, 2047, 7] {
            planner
                .announce(&mut (0..SAMPLES).map(|position| SampleId((position * stride + stride) % SAMPLES)));
        }
        while !planner.has_no_space_for(0) {
            planner.step(0, Policy::NextUse, &mut Vec::new());
            planner.window.advance();
        }
        planner
    }

    #[test]
    fn a_dry_run_changes_nothing() {
        for part in [1, 8] {
            let (mut tried, mut untouched) = (full_planner(), full_planner());
            let dry_run = tried.sample_window(tried.window.len().div_ceil(part));
            tried.dry_run(Policy::NextUse, &dry_run);
            tried.dry_run(Policy::Pin, &dry_run);
            while untouched.window.len() > 0 {
                let (mut left, mut right) = (Vec::new(), Vec::new());
                let decision = tried.step(0, Policy::NextUse, &mut left);
                assert_eq!(decision, untouched.step(0, Policy::NextUse, &mut right));
                assert_eq!(left, right);
                tried.window.advance();
                untouched.window.advance();
            }
        }
    }

    #[test]
    fn a_dry_run_of_an_eighth_of_the_samples_reads_about_an_eighth_of_the_bytes() {
        let mut planner = full_planner();
        let [all, eighth] = [1, 8].map(|part| planner.sample_window(planner.window.len().div_ceil(part)));
        assert_eq!(all.offsets.len(), planner.window.len());
        for policy in [Policy::NextUse, Policy::Pin] {
            let all = planner.dry_run(policy, &all);
            let eighth = planner.dry_run(policy, &eighth) * 8;
            assert!(eighth.abs_diff(all) < all / 10, "{policy:?}: {eighth} for {all}");
        }
    }
}
