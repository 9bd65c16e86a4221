// SPDX-License-Identifier: Apache-2.0
//! What one flow has waiting for one connection: a ring of lanes for each round and class that has any.

use std::collections::BTreeMap;

use super::ring::Ring;
use crate::name::Round;

/// A place in the order of a flow: earlier rounds first, inside a round by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    round: Round,
    class: u8,
}

impl Rank {
    /// Where neither counts.
    pub(super) const ONLY: Self = Self::new(Round(0), 0);

    pub(super) const fn new(round: Round, class: u8) -> Self {
        Self { round, class }
    }
}

/// The lanes of one flow over one connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    /// None of them is empty.
    rings: BTreeMap<Rank, Ring>,
    /// When a packet of it was last granted; 0 never.
    pub turn: u64,
}

impl Line {
    /// The ring of a rank, to put something in.
    pub(super) fn ring(&mut self, rank: Rank) -> &mut Ring {
        self.rings.entry(rank).or_default()
    }

    /// To be called when something was taken out of a ring.
    pub(super) fn drop_if_empty(&mut self, rank: Rank) {
        if self.head_of(rank).is_none() {
            self.rings.remove(&rank);
        }
    }

    /// The lane that goes first, and the rank in which it waits.
    pub(super) fn head(&self) -> Option<(Rank, u32)> {
        let (&rank, ring) = self.rings.first_key_value()?;
        Some((rank, ring.head()?))
    }

    /// The lane that goes first in one rank.
    pub(super) fn head_of(&self, rank: Rank) -> Option<u32> {
        self.rings.get(&rank)?.head()
    }
}

#[cfg(test)]
mod tests {
    use super::super::ring::{Links, Slab};
    use super::*;

    #[test]
    fn the_first_rank_is_that_of_the_oldest_round_and_then_of_the_lowest_class() {
        let (mut line, mut links, mut nodes) = (Line::default(), Links::default(), Slab::new());
        assert_eq!(line.head(), None);
        let order =
            [(4, 255), (5, 0), (5, 1), (1 << 40, 0)].map(|(round, class)| Rank::new(Round(round), class));
        let lanes: Vec<(Rank, u32)> = order.iter().rev().map(|&rank| (rank, nodes.insert(()))).collect();
        for &(rank, node) in &lanes {
            links.push_back(line.ring(rank), node);
            assert_eq!(line.head(), Some((rank, node)));
        }
        for &(rank, node) in lanes.iter().rev() {
            assert_eq!(line.head(), Some((rank, node)));
            links.remove(line.ring(rank), node);
            line.drop_if_empty(rank);
        }
        assert_eq!(line.head(), None);
    }
}
