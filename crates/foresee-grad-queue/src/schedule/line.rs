// SPDX-License-Identifier: Apache-2.0
//! What one flow has waiting for one connection: a ring of lanes per rank, and which rings are not empty.

use super::ring::Ring;
use super::rules::Order;

/// A place in the order of a flow: first what a fence was set behind, by class, then the rest, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank(u16);

impl Rank {
    /// Where classes do not count.
    pub(super) const ONLY: Self = Self(0);
    const FIRST_FRESH: u16 = 256;

    /// Of what is offered now.
    pub(super) fn fresh(class: u8) -> Self {
        Self(Self::FIRST_FRESH + u16::from(class))
    }

    /// Of the same class, once a fence was set behind it; `None` if that was done before.
    pub(super) const fn fenced(self) -> Option<Self> {
        match self.0.checked_sub(Self::FIRST_FRESH) {
            Some(class) => Some(Self(class)),
            None => None,
        }
    }

    const fn at(self) -> usize {
        self.0 as usize
    }
}

/// Which of 512 ranks have something.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RankMap([u64; 8]);

impl RankMap {
    pub(super) const fn insert(&mut self, rank: Rank) {
        self.0[rank.at() >> 6] |= 1 << (rank.at() & 63);
    }

    pub(super) const fn remove(&mut self, rank: Rank) {
        self.0[rank.at() >> 6] &= !(1 << (rank.at() & 63));
    }

    /// The most urgent one.
    pub(super) fn first(&self) -> Option<Rank> {
        self.first_from(Rank(0))
    }

    /// The most urgent one that no fence was set behind.
    pub(super) fn first_fresh(&self) -> Option<Rank> {
        self.first_from(Rank(Rank::FIRST_FRESH))
    }

    /// `from` is the first rank of a word.
    fn first_from(&self, from: Rank) -> Option<Rank> {
        (0_u16..).zip(self.0).skip(from.at() >> 6).find(|(_, word)| *word != 0).map(|(high, word)| {
            let low = u16::try_from(word.trailing_zeros()).expect("a word that is not 0 has 64 bits");
            Rank((high << 6) | low)
        })
    }
}

/// The lanes of one flow over one connection.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub ranks: RankMap,
    /// One for each rank, or a single one where classes do not count.
    rings: Box<[Ring]>,
    /// When a packet of it was last granted; 0 never.
    pub turn: u64,
}

impl Line {
    pub(super) fn new(order: Order) -> Self {
        let rings = match order {
            Order::Readiness => 1,
            Order::Class => 512,
        };
        Self { ranks: RankMap::default(), rings: vec![Ring::default(); rings].into(), turn: 0 }
    }

    pub(super) fn ring(&mut self, rank: Rank) -> &mut Ring {
        &mut self.rings[rank.at()]
    }

    /// The lane that goes first, and the rank in which it waits.
    pub(super) fn head(&self) -> Option<(Rank, u32)> {
        let rank = self.ranks.first()?;
        Some((rank, self.head_of(rank)?))
    }

    /// The lane that goes first in one rank.
    pub(super) fn head_of(&self, rank: Rank) -> Option<u32> {
        self.rings[rank.at()].head()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rank_is_found_across_all_words() {
        let mut map = RankMap::default();
        assert_eq!(map.first(), None);
        for rank in (0..512).rev().map(Rank) {
            map.insert(rank);
            assert_eq!(map.first(), Some(rank));
            assert_eq!(map.first_fresh(), Some(rank.max(Rank(256))));
        }
        for rank in 0..511 {
            map.remove(Rank(rank));
            assert_eq!(map.first(), Some(Rank(rank + 1)));
        }
        map.remove(Rank(511));
        assert_eq!((map.first(), map.first_fresh()), (None, None));
    }
}
