// SPDX-License-Identifier: Apache-2.0
//! The connection with the first packet of all: a tournament tree over the connections.
//!
//! Each leaf is the first waiting packet of one connection that may send; each node is the smaller of its
//! children. A change replays one path, so it costs log2(connections) comparisons. A connection that may not send
//! is an empty leaf, so its packets are never visited.

use super::pending::Priority;

/// The comparison key of a connection; the smallest wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// The position of round and class, if it counts.
    pub priority: Priority,
    /// The offer's order of arrival.
    pub arrival: u64,
    /// How many shares of the window the connection has in flight, if others share the window.
    pub congestion: u64,
    /// The offer's progress over the connection, if others share the window.
    pub progress: u32,
    /// The connection's bytes in flight, if others share the window.
    pub ahead: u64,
    /// The number of the connection's last grant.
    pub turn: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Tournament {
    /// Their number is a power of two, or 0.
    leaves: Vec<Option<Key>>,
    /// The winner below each node; node 1 is the root, node `leaves.len() + i` is leaf `i`.
    winners: Vec<u32>,
}

impl Tournament {
    /// The winning leaf, if any connection may send.
    pub(super) fn best(&self) -> Option<u32> {
        let &winner = self.winners.get(1)?;
        self.leaves[winner as usize].map(|_| winner)
    }

    pub(super) fn set(&mut self, leaf: u32, key: Option<Key>) {
        if leaf as usize >= self.leaves.len() {
            if key.is_none() {
                return;
            }
            self.grow(leaf as usize + 1);
        }
        if std::mem::replace(&mut self.leaves[leaf as usize], key) == key {
            return;
        }
        let mut node = self.leaves.len() + leaf as usize;
        while node > 1 {
            node /= 2;
            self.replay(node);
        }
    }

    fn grow(&mut self, count: usize) {
        let size = count.next_power_of_two();
        self.leaves.resize(size, None);
        self.winners = vec![0; size];
        self.winners.extend((0_u32..).take(size));
        for node in (1..size).rev() {
            self.replay(node);
        }
    }

    fn replay(&mut self, node: usize) {
        super::effort::step();
        let (left, right) = (self.winners[2 * node], self.winners[2 * node + 1]);
        self.winners[node] = match (self.leaves[left as usize], self.leaves[right as usize]) {
            (Some(one), Some(other)) if other < one => right,
            (None, Some(_)) => right,
            _ => left,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Round;
    use foresee_testkit::property;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(property(256))]

        #[test]
        fn the_root_is_the_smallest_key_after_any_changes(
            changes in prop::collection::vec((0_u32..37, prop::option::of((0_u8..3, 0_u64..4, 0_u64..2, 0_u32..3, 0_u64..3))), 0..120),
        ) {
            let mut tree = Tournament::default();
            let mut naive = vec![None; 37];
            for (turn, (leaf, key)) in (0_u64..).zip(changes) {
                let key = key.map(|(class, arrival, congestion, progress, ahead)| {
                    let priority = Priority::new(Round(0), class);
                    Key { priority, arrival, congestion, progress, ahead, turn }
                });
                tree.set(leaf, key);
                naive[leaf as usize] = key;
                let least = naive.iter().flatten().min().copied();
                prop_assert_eq!(tree.best().and_then(|leaf| naive[leaf as usize]), least);
            }
        }
    }
}
