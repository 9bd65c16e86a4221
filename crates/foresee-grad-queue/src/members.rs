// SPDX-License-Identifier: Apache-2.0
//! The live ranks of one generation, in rank order.
//!
//! A membership never changes: a loss or a join creates a new generation. Therefore decisions under the old
//! membership can be told apart from those under the new one.

use foresee_units::Rank;

use crate::{QueueError, bits};

/// The live ranks of one generation: at least one, of a world of 1 to 65535.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    generation: u32,
    world: u32,
    live: RankSet,
    count: u32,
}

/// The largest world: contributors travel in 16 bits.
const WORLD_MAX: u32 = 65_535;

impl Members {
    /// Membership of the named ranks, each given once, in any order.
    pub fn new(
        generation: u32,
        world: u32,
        ranks: impl IntoIterator<Item = Rank>,
    ) -> Result<Self, QueueError> {
        if world == 0 || world > WORLD_MAX {
            return Err(QueueError::World { world });
        }
        let mut live = RankSet::with_capacity(world);
        let mut is_valid = true;
        for rank in ranks {
            is_valid &= rank.0 < world && live.insert(rank);
        }
        let count = live.len();
        if !is_valid || count == 0 {
            return Err(QueueError::Members { generation, ranks: count, world });
        }
        Ok(Self { generation, world, live, count })
    }

    /// The next generation, without the lost ranks.
    pub fn without(&self, lost: &[Rank]) -> Result<Self, QueueError> {
        let left = self.iter().filter(|rank| !lost.contains(rank));
        Self::new(self.generation.wrapping_add(1), self.world, left)
    }

    /// The number of this membership.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Number of ranks at the start of the job.
    pub fn world(&self) -> u32 {
        self.world
    }

    /// Number of live ranks: 1 to 65535.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether `rank` is alive.
    pub fn contains(&self, rank: Rank) -> bool {
        self.live.contains(rank)
    }

    /// The first live rank, with which every sum begins.
    pub fn first(&self) -> Option<Rank> {
        self.live.at_or_after(0)
    }

    /// The next live rank after `rank`.
    pub fn after(&self, rank: Rank) -> Option<Rank> {
        self.live.at_or_after(rank.0.saturating_add(1))
    }

    /// The live ranks, in rank order.
    pub fn iter(&self) -> impl Iterator<Item = Rank> + '_ {
        self.live.iter()
    }
}

/// A set of ranks. A world of up to 64 ranks takes one inline word, because every slot holds two sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RankSet {
    Few(u64),
    Many(Box<[u64]>),
}

impl RankSet {
    pub(crate) fn with_capacity(world: u32) -> Self {
        if world <= 64 { Self::Few(0) } else { Self::Many(bits::empty(world)) }
    }

    fn words(&self) -> &[u64] {
        match self {
            Self::Few(word) => std::slice::from_ref(word),
            Self::Many(words) => words,
        }
    }

    fn words_mut(&mut self) -> &mut [u64] {
        match self {
            Self::Few(word) => std::slice::from_mut(word),
            Self::Many(words) => words,
        }
    }

    /// Add `rank`; return whether it was absent before.
    pub(crate) fn insert(&mut self, rank: Rank) -> bool {
        bits::insert(self.words_mut(), rank.0)
    }

    pub(crate) fn contains(&self, rank: Rank) -> bool {
        bits::contains(self.words(), rank.0)
    }

    pub(crate) fn len(&self) -> u32 {
        bits::count(self.words())
    }

    /// Whether every member is in the set.
    pub(crate) fn covers(&self, members: &Members) -> bool {
        let members = members.live.words();
        self.words().iter().zip(members).all(|(mine, theirs)| theirs & !mine == 0)
    }

    pub(crate) fn at_or_after(&self, from: u32) -> Option<Rank> {
        let words = self.words();
        let first = (from / 64) as usize;
        let masked = words.get(first)? & (u64::MAX << (from % 64));
        let rest = words.iter().enumerate().skip(first + 1).map(|(index, word)| (index, *word));
        let (index, word) = std::iter::once((first, masked)).chain(rest).find(|(_, word)| *word != 0)?;
        Some(Rank(u32::try_from(index * 64).ok()? + word.trailing_zeros()))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Rank> + '_ {
        bits::iter(self.words()).map(Rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_in_rank_order_for_any_order_of_the_input() {
        for world in [3, 64, 65, 200, 65_535] {
            let last = Rank(world - 1);
            let members = Members::new(7, world, [last, Rank(0), Rank(1)]).unwrap();
            assert_eq!(members.iter().collect::<Vec<_>>(), [Rank(0), Rank(1), last]);
            assert_eq!(members.first(), Some(Rank(0)));
            assert_eq!(members.after(Rank(1)), Some(last));
            assert_eq!(members.after(last), None);
            assert_eq!(members.after(Rank(u32::MAX)), None);
            assert_eq!(
                (members.count(), members.contains(Rank(world)), members.contains(last)),
                (3, false, true)
            );
        }
    }

    #[test]
    fn a_loss_makes_the_next_generation() {
        let members = Members::new(1, 4, (0..4).map(Rank)).unwrap().without(&[Rank(2)]).unwrap();
        assert_eq!(members.generation(), 2);
        assert_eq!(members.iter().collect::<Vec<_>>(), [Rank(0), Rank(1), Rank(3)]);
        let none_left = members.without(&[Rank(0), Rank(1), Rank(3)]).unwrap_err();
        assert_eq!(none_left, QueueError::Members { generation: 3, ranks: 0, world: 4 });
    }

    #[test]
    fn invalid_worlds_unknown_ranks_and_repetitions_are_refused() {
        assert_eq!(Members::new(0, 0, (0..0).map(Rank)), Err(QueueError::World { world: 0 }));
        assert_eq!(Members::new(0, 65_536, (0..65_536).map(Rank)), Err(QueueError::World { world: 65_536 }));
        assert!(Members::new(0, 2, [Rank(2)]).is_err());
        assert!(Members::new(0, 2, [Rank(1), Rank(1)]).is_err());
        assert_eq!(Members::new(0, 65_535, (0..65_535).map(Rank)).unwrap().count(), 65_535);
    }

    #[test]
    fn covering_considers_members_only() {
        let members = Members::new(0, 130, [Rank(1), Rank(129)]).unwrap();
        let mut set = RankSet::with_capacity(130);
        assert!(set.insert(Rank(1)) && !set.insert(Rank(1)) && set.insert(Rank(64)));
        assert!(!set.covers(&members));
        set.insert(Rank(129));
        assert!(set.covers(&members));
        assert_eq!(set.len(), 3);
        assert_eq!(set.iter().last(), Some(Rank(129)));
    }
}
