// SPDX-License-Identifier: Apache-2.0
//! Hits of a node's cache next to those of Belady's rule, on equal traces. `tests/systems` compares with libCacheSim.

mod belady;
mod replay;

use foresee_testkit::{Dice, seeds};

use crate::belady::belady;
use crate::replay::{Access, Trace};

/// Epochs of which all accesses are announced at once: the planner looks ahead 4 accesses per entry.
const ANNOUNCED: usize = 4;

/// Draw a job of `ranks` ranks with entries of one byte. An epoch has each entry once, or any of them at each access; such a
/// job is announced as a whole, because a next use may be farther than the look-ahead.
fn draw(dice: &mut Dice, ranks: usize) -> Trace {
    let share = 1 + dice.below(15);
    let entries = u32::try_from(ranks * share).expect("it is small");
    let repeats = dice.one_in(2);
    let mut streams = vec![Vec::new(); ranks];
    for _ in 0..=dice.below(if repeats { ANNOUNCED } else { 2 * ANNOUNCED }) {
        let mut epoch: Vec<u32> = (0..entries).collect();
        for index in 0..epoch.len() {
            let other = dice.below(epoch.len());
            if repeats {
                epoch[index] = u32::try_from(other).expect("it is small");
            } else {
                epoch.swap(index, other);
            }
        }
        for (rank, stream) in streams.iter_mut().enumerate() {
            stream.push(epoch.iter().copied().skip(rank).step_by(ranks).collect());
        }
    }
    Trace { sizes: vec![1; entries as usize], batch: 1 + dice.below(share), ranks: streams }
}

fn hits(accesses: &[Access]) -> usize {
    accesses.iter().filter(|access| access.is_hit).count()
}

/// The entries with their places in the order of all ranks.
fn in_order(accesses: &[Access]) -> Vec<(u32, u64)> {
    accesses.iter().map(|access| access.entry).zip(0..).collect()
}

#[test]
fn a_node_hits_as_often_as_belady_that_expects_the_same_times() {
    for seed in seeds(5_000) {
        let mut dice = Dice::new(seed);
        let ranks = 1 + dice.below(4);
        let trace = draw(&mut dice, ranks);
        let capacity = 1 + dice.below(trace.sizes.len());
        let accesses = trace.replay(capacity as u64);
        let expected: Vec<_> = accesses.iter().map(|access| (access.entry, access.number)).collect();
        assert_eq!(hits(&accesses), belady(&expected, capacity, false), "seed {seed}: {trace:?}, {capacity}");
        assert!(hits(&accesses) <= belady(&in_order(&accesses), capacity, true), "seed {seed}");
    }
}

/// An entry is in memory while it is used, so the node needs space for one more than a cache that it bypasses.
#[test]
fn one_rank_hits_no_less_than_belady_with_bypass_and_space_for_one_entry_less() {
    for seed in seeds(5_000) {
        let mut dice = Dice::new(seed);
        let trace = draw(&mut dice, 1);
        let capacity = 1 + dice.below(trace.sizes.len());
        let accesses = trace.replay(capacity as u64);
        let order = in_order(&accesses);
        let bounds = belady(&order, capacity - 1, true)..=belady(&order, capacity, true);
        assert!(bounds.contains(&hits(&accesses)), "seed {seed}: {} not in {bounds:?}", hits(&accesses));
    }
}
