// SPDX-License-Identifier: Apache-2.0
//! The packets of one flow that wait for one connection: a ring of streams for each round and class.

use std::collections::BTreeMap;

use super::ring::Ring;
use crate::name::Round;

/// A position in the order of a flow: by round, then by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Priority {
    round: Round,
    class: u8,
}

impl Priority {
    /// The position when neither counts.
    pub(super) const ONLY: Self = Self::new(Round(0), 0);

    pub(super) const fn new(round: Round, class: u8) -> Self {
        Self { round, class }
    }
}

/// The streams of one flow over one connection.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingQueue {
    /// No ring is empty.
    rings: BTreeMap<Priority, Ring>,
    /// The number of the last grant from this queue; 0 before the first.
    pub turn: u64,
}

impl PendingQueue {
    /// The ring at a position, for an insertion.
    pub(super) fn ring(&mut self, priority: Priority) -> &mut Ring {
        self.rings.entry(priority).or_default()
    }

    /// Drop the ring at a position if it is empty; call after a removal.
    pub(super) fn drop_if_empty(&mut self, priority: Priority) {
        if self.head_of(priority).is_none() {
            self.rings.remove(&priority);
        }
    }

    /// The first stream and its position.
    pub(super) fn head(&self) -> Option<(Priority, u32)> {
        let (&priority, ring) = self.rings.first_key_value()?;
        Some((priority, ring.head()?))
    }

    /// The first stream at one position.
    pub(super) fn head_of(&self, priority: Priority) -> Option<u32> {
        self.rings.get(&priority)?.head()
    }
}

#[cfg(test)]
mod tests {
    use super::super::ring::{Links, Slab};
    use super::*;

    #[test]
    fn the_first_position_is_the_oldest_round_then_the_lowest_class() {
        let (mut queue, mut links, mut nodes) = (PendingQueue::default(), Links::default(), Slab::new());
        assert_eq!(queue.head(), None);
        let order =
            [(4, 255), (5, 0), (5, 1), (1 << 40, 0)].map(|(round, class)| Priority::new(Round(round), class));
        let streams: Vec<(Priority, u32)> =
            order.iter().rev().map(|&priority| (priority, nodes.insert(()))).collect();
        for &(priority, node) in &streams {
            links.push_back(queue.ring(priority), node);
            assert_eq!(queue.head(), Some((priority, node)));
        }
        for &(priority, node) in streams.iter().rev() {
            assert_eq!(queue.head(), Some((priority, node)));
            links.remove(queue.ring(priority), node);
            queue.drop_if_empty(priority);
        }
        assert_eq!(queue.head(), None);
    }
}
