// SPDX-License-Identifier: Apache-2.0
//! The packets of one flow that wait for one connection: a ring of lanes for each round and class.

use std::collections::BTreeMap;

use super::ring::Ring;
use crate::name::Round;

/// A position in the order of a flow: by round, then by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    round: Round,
    class: u8,
}

impl Rank {
    /// The position when neither counts.
    pub(super) const ONLY: Self = Self::new(Round(0), 0);

    pub(super) const fn new(round: Round, class: u8) -> Self {
        Self { round, class }
    }
}

/// The lanes of one flow over one connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    /// No ring is empty.
    rings: BTreeMap<Rank, Ring>,
    /// The number of the last grant from this line; 0 before the first.
    pub turn: u64,
}

impl Line {
    /// The ring at a position, for an insertion.
    pub(super) fn ring(&mut self, rank: Rank) -> &mut Ring {
        self.rings.entry(rank).or_default()
    }

    /// Drop the ring at a position if it is empty; call after a removal.
    pub(super) fn drop_if_empty(&mut self, rank: Rank) {
        if self.head_of(rank).is_none() {
            self.rings.remove(&rank);
        }
    }

    /// The first lane and its position.
    pub(super) fn head(&self) -> Option<(Rank, u32)> {
        let (&rank, ring) = self.rings.first_key_value()?;
        Some((rank, ring.head()?))
    }

    /// The first lane at one position.
    pub(super) fn head_of(&self, rank: Rank) -> Option<u32> {
        self.rings.get(&rank)?.head()
    }
}

#[cfg(test)]
mod tests {
    use super::super::ring::{Links, Slab};
    use super::*;

    #[test]
    fn the_first_position_is_the_oldest_round_then_the_lowest_class() {
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
