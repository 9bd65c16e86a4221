// SPDX-License-Identifier: Apache-2.0
//! Walking the window without consequences, to see what a policy would read from the origin.
//!
//! Apart from the walk, whose steps it takes; it owns what is put aside before and put back after, and
//! which samples a trial of a long window follows.

use foresee_units::Bytes;

use super::Walk;
use crate::choice::Policy;
use crate::next_use::narrow;
use crate::room::Room;
use crate::victims::NOWHERE;

impl Walk {
    /// Origin bytes of the sampled samples over the whole window under `policy`; changes nothing.
    pub(crate) fn try_policy(&mut self, policy: Policy, sampling: Sampling) -> u128 {
        let (place, rooms) = (self.place.clone(), self.rooms.clone());
        let (victims, tracked) = (std::mem::take(&mut self.victims), self.tracked);
        self.victims = victims.iter().map(|victims| victims.sampled(sampling)).collect();
        self.shrink_rooms(sampling);
        self.track(sampling);
        let mut origin = 0;
        let mut evicted = Vec::new();
        for offset in 0..self.window.len() {
            let (id, _) = self.window.access(offset);
            if sampling.takes(id) && self.step(offset, policy, &mut evicted).source == NOWHERE {
                origin += u128::from(self.size(id).get());
            }
            evicted.clear();
        }
        (self.place, self.rooms, self.victims, self.tracked) = (place, rooms, victims, tracked);
        self.window.rewind(sampling);
        origin
    }

    /// Rooms as the sampled samples would find them if all others were away: their copies, and their
    /// share of what is free.
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

/// Which samples a trial looks at: one in `2^shift`, chosen by a hash of the id, so that a sample is
/// followed through all its accesses or not at all (SHARDS: Waldspurger et al., FAST 2015, section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sampling {
    shift: u32,
}

impl Sampling {
    pub(crate) const ALL: Self = Self { shift: 0 };

    /// As few halvings as bring `accesses` to `most` or below.
    pub(crate) fn down_to(most: usize, accesses: usize) -> Self {
        let ratio = accesses.div_ceil(most.max(1)).max(1);
        Self { shift: ratio.next_power_of_two().trailing_zeros() }
    }

    pub(crate) fn takes(self, id: u32) -> bool {
        // Fibonacci hashing: the upper bits of the product depend on all bits of the id.
        let hash = u64::from(id).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.shift == 0 || hash >> (64 - self.shift) == 0
    }

    fn share(self, bytes: Bytes) -> Bytes {
        Bytes::new(bytes.get() >> self.shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sampling_takes_about_its_share_and_all_takes_all() {
        assert!((0..1000).all(|id| Sampling::ALL.takes(id)));
        assert_eq!(Sampling::down_to(100, 100), Sampling::ALL);
        let eighth = Sampling::down_to(100, 701);
        assert_eq!(eighth.share(Bytes::new(800)), Bytes::new(100));
        let taken = (0..80_000).filter(|id| eighth.takes(*id)).count();
        assert!((9_500..10_500).contains(&taken), "{taken} of 80,000");
    }
}
