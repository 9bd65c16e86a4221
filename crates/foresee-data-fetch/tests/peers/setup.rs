// SPDX-License-Identifier: Apache-2.0
//! Settings of a simulated job, drawn from a seed.

use foresee_data_plan::{JobShape, TierCapacity};
use foresee_testkit::Dice;
use foresee_units::{Bytes, BytesPerSecond, Nanos, NodeIndex, SampleId};

/// What goes wrong, once, at a random time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection between two nodes ends, and no new one is made for this time.
    Cut(Nanos),
    /// A node does nothing for this time.
    Freeze(Nanos),
    /// A node and its ranks are gone.
    Crash,
    /// The link of a node is so many times slower from now on.
    SlowLink(u64),
    /// Reads and writes of a node's disk take so long from now on.
    SlowDisk(Nanos),
    /// A node loses a part of its copies.
    Lose,
    /// A node answers that it has no sample, from now on.
    Deny,
    /// A node never sends a sample, from now on.
    Withhold,
    /// A node names a sample that does not exist.
    Invent,
}

/// A job.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) sizes: Vec<u64>,
    pub(crate) nodes: usize,
    pub(crate) ranks_per_node: usize,
    pub(crate) batch: usize,
    pub(crate) epochs: u64,
    pub(crate) horizon: usize,
    /// Batches that a rank requests ahead.
    pub(crate) depth: usize,
    /// By node: capacity of memory and disk.
    pub(crate) memory: u64,
    pub(crate) disk: u64,
    pub(crate) read_ahead: u64,
    /// Time of a step.
    pub(crate) step: Nanos,
    /// Longest read of the origin.
    pub(crate) origin: Nanos,
    pub(crate) link_rate: BytesPerSecond,
    pub(crate) link_latency: Nanos,
    pub(crate) faults: Vec<Fault>,
    /// Seed of the order.
    pub(crate) order: u64,
}

impl Setup {
    /// A job without faults. `capacities`: of all nodes together in data sets, one of which is drawn.
    pub(crate) fn draw(dice: &mut Dice, capacities: &[f64]) -> Self {
        let (nodes, ranks_per_node, batch) = (2 + dice.below(3), 1 + dice.below(2), 1 + dice.below(3));
        let samples = nodes * ranks_per_node * (3 + dice.below(10)) - dice.below(nodes * ranks_per_node);
        let is_equal = dice.one_in(2);
        let sizes = (0..samples).map(|_| 1000 * if is_equal { 2 } else { 1 + dice.below(4) as u64 });
        let mut setup = Self {
            sizes: sizes.collect(),
            nodes,
            ranks_per_node,
            batch,
            epochs: 2 + dice.below(3) as u64,
            horizon: dice.below(4),
            depth: 1 + dice.below(2),
            memory: 0,
            disk: 0,
            read_ahead: dice.pick(&[0, 4000, 16_000]),
            step: Nanos::from_millis(dice.pick(&[1, 20, 200])),
            origin: Nanos::from_millis(dice.pick(&[5, 60])),
            link_rate: BytesPerSecond::new(dice.pick(&[200_000, 1_000_000, 50_000_000])),
            link_latency: Nanos::new(dice.pick(&[50_000, 3_000_000])),
            faults: Vec::new(),
            order: dice.bits(),
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "small counts"
        )]
        let reserved = (setup.data() as f64 * dice.pick(capacities) / nodes as f64) as u64;
        // What is left of a node's capacity is smaller than a sample.
        let reserved = reserved + if reserved * nodes as u64 >= setup.data() { setup.largest() } else { 0 };
        setup.disk = if dice.one_in(2) { reserved / 2 + setup.largest() } else { 0 };
        setup.memory = reserved.saturating_sub(setup.disk.saturating_sub(setup.largest())) + setup.headroom();
        setup
    }

    pub(crate) fn with(mut self, dice: &mut Dice, fault: Fault, times: usize) -> Self {
        for _ in 0..dice.below(times + 1) {
            self.faults.push(fault);
        }
        self
    }

    pub(crate) fn data(&self) -> u64 {
        self.sizes.iter().sum()
    }

    pub(crate) fn largest(&self) -> u64 {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Memory for requests, reads ahead and writes, which is not reserved.
    fn headroom(&self) -> u64 {
        let requested = self.ranks_per_node * (self.depth + 1) * self.batch + 4;
        self.largest() * requested as u64 + 2 * self.read_ahead
    }

    /// What each node reserves for the placement.
    pub(crate) fn reserved(&self) -> TierCapacity {
        let disk = self.disk.saturating_sub(self.largest());
        let capacity = Bytes::new(self.memory - self.headroom() + disk);
        TierCapacity { capacity, align: 1, overhead: Bytes::ZERO }
    }

    pub(crate) fn ranks(&self) -> usize {
        self.nodes * self.ranks_per_node
    }

    /// Accesses of each rank in an epoch.
    pub(crate) fn per_rank(&self) -> usize {
        self.sizes.len().div_ceil(self.ranks())
    }

    pub(crate) fn shape(&self) -> JobShape {
        let node = |rank| node_index(rank / self.ranks_per_node);
        JobShape { nodes: (0..self.ranks()).map(node).collect(), batch: self.batch }
    }

    /// The samples of a rank in an epoch: every so many of a padded permutation.
    pub(crate) fn samples(&self, epoch: u64, rank: usize) -> Vec<u32> {
        let mut dice = Dice::new(self.order.wrapping_add(epoch));
        let count = u32::try_from(self.sizes.len()).unwrap();
        let mut all: Vec<u32> = (0..count).collect();
        for at in (1..all.len()).rev() {
            all.swap(at, dice.below(at + 1));
        }
        let padded = all.iter().cycle().take(self.per_rank() * self.ranks());
        padded.skip(rank).step_by(self.ranks()).copied().collect()
    }

    /// The samples of all ranks in an epoch, by step and rank.
    pub(crate) fn in_order(&self, epoch: u64) -> Vec<SampleId> {
        let lists: Vec<Vec<u32>> = (0..self.ranks()).map(|rank| self.samples(epoch, rank)).collect();
        let mut next = vec![0; self.ranks()];
        let in_order = self.ranks_in_order().into_iter().map(|rank| {
            next[rank] += 1;
            SampleId(lists[rank][next[rank] - 1].into())
        });
        in_order.collect()
    }

    /// The ranks of the accesses of an epoch, in the same order.
    pub(crate) fn ranks_in_order(&self) -> Vec<usize> {
        let steps = (0..self.per_rank()).step_by(self.batch);
        let of_step = |first: usize| {
            let len = self.batch.min(self.per_rank() - first);
            (0..self.ranks()).flat_map(move |rank| std::iter::repeat_n(rank, len))
        };
        steps.flat_map(of_step).collect()
    }
}

pub(crate) fn node_index(node: usize) -> NodeIndex {
    NodeIndex(u16::try_from(node).unwrap())
}
