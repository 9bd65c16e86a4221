// SPDX-License-Identifier: Apache-2.0
//! A trial run over the window, to compute the bytes that a policy would read from the origin.
//!
//! It uses the steps of the walk, whose state it saves before and restores after. It also selects the samples for
//! a trial of a long window.

use foresee_units::Bytes;

use super::Walk;
use crate::hint;
use crate::next_use::narrow;
use crate::policy::Policy;
use crate::room::Room;
use crate::sampling::Sampling;
use crate::victims::NOWHERE;

impl Walk {
    /// A part of the window with about `most` accesses at most, for trials of policies.
    pub(crate) fn sample(&self, most: usize) -> Trial {
        let sampling = Sampling::down_to(most, self.window.len());
        let offsets = (0..self.window.len()).filter(|&offset| sampling.takes(self.window.id(offset)));
        Trial { sampling, offsets: offsets.collect() }
    }

    /// Origin bytes of the sampled samples over the whole window under `policy`; the walk is unchanged
    /// afterwards.
    pub(crate) fn try_policy(&mut self, policy: Policy, trial: &Trial) -> u128 {
        let &Trial { sampling, ref offsets } = trial;
        let (place, rooms) = (self.place.clone(), self.rooms.clone());
        let (victims, tracked) = (std::mem::take(&mut self.victims), self.tracked);
        self.victims = victims.iter().map(|victims| victims.sampled(sampling)).collect();
        self.shrink_rooms(sampling);
        self.track(offsets.iter().copied());
        let mut origin = 0;
        let mut evicted = Vec::new();
        for (number, &offset) in offsets.iter().enumerate() {
            if let Some(later) = hint::later(offsets, number) {
                self.expect(later);
            }
            let id = self.window.id(offset);
            if self.step(offset, policy, &mut evicted).source == NOWHERE {
                origin += u128::from(self.size(id).get());
            }
            evicted.clear();
        }
        (self.place, self.rooms, self.victims, self.tracked) = (place, rooms, victims, tracked);
        origin
    }

    /// Reduce the capacities to those of the sampled samples: their copies, and their share of the free space.
    fn shrink_rooms(&mut self, sampling: Sampling) {
        if sampling == Sampling::ALL {
            return;
        }
        let free: Vec<Bytes> = self.rooms.iter().map(Room::free).collect();
        for room in &mut self.rooms {
            (room.used, room.copies) = (Bytes::ZERO, 0);
        }
        for sample in 0..self.place.len() {
            let (id, tier) = (narrow(sample), self.place[sample]);
            if tier != NOWHERE && sampling.takes(id) {
                let size = self.size(id);
                self.rooms[usize::from(tier)].take(size);
            }
        }
        for (room, free) in self.rooms.iter_mut().zip(free) {
            room.limits.capacity = room.used + sampling.share(free);
        }
    }
}

/// The part of the window that a trial uses.
pub(crate) struct Trial {
    sampling: Sampling,
    /// Offsets of the window with accesses of sampled samples.
    offsets: Vec<usize>,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use foresee_units::SampleId;

    use super::*;
    use crate::room::{SampleSizes, TierRoom};

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
    fn crowded() -> Walk {
        let limits = TierRoom { capacity: Bytes::new(SAMPLES * 75), align: 1, overhead: Bytes::ZERO };
        let samples = usize::try_from(SAMPLES).unwrap();
        let mut walk = Walk::new(Arc::new(Mixed), samples, vec![Room::new(limits)]);
        for stride in [1, 5, 1237, 3, 911, 2047, 7] {
            walk.announce(&mut (0..SAMPLES).map(|place| SampleId((place * stride + stride) % SAMPLES)));
        }
        while !walk.is_crowded_by(0) {
            walk.step(0, Policy::NextUse, &mut Vec::new());
            walk.window.advance();
        }
        walk
    }

    #[test]
    fn a_trial_changes_nothing() {
        for part in [1, 8] {
            let (mut tried, mut untouched) = (crowded(), crowded());
            let trial = tried.sample(tried.window.len().div_ceil(part));
            tried.try_policy(Policy::NextUse, &trial);
            tried.try_policy(Policy::Pin, &trial);
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
    fn a_trial_of_an_eighth_of_the_samples_reads_about_an_eighth_of_the_bytes() {
        let mut walk = crowded();
        let [all, eighth] = [1, 8].map(|part| walk.sample(walk.window.len().div_ceil(part)));
        assert_eq!(all.offsets.len(), walk.window.len());
        for policy in [Policy::NextUse, Policy::Pin] {
            let all = walk.try_policy(policy, &all);
            let eighth = walk.try_policy(policy, &eighth) * 8;
            assert!(eighth.abs_diff(all) < all / 10, "{policy:?}: {eighth} for {all}");
        }
    }
}
