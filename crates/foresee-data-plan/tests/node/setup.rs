// SPDX-License-Identifier: Apache-2.0
//! The setup of a run.

use foresee_testkit::Dice;
use foresee_units::{Bytes, Nanos};

pub(crate) const PIN_TIMEOUT: Nanos = Nanos::from_secs(10);
pub(crate) const STALL_GRACE: Nanos = Nanos::from_secs(5);

/// The order of a consumer, and how it reads.
#[derive(Clone, Debug)]
pub(crate) struct ConsumerSetup {
    /// The data set: entries `first..first + count`.
    pub(crate) first: u32,
    pub(crate) count: u32,
    /// Equal for the ranks of a job.
    pub(crate) seed: u64,
    pub(crate) world: u32,
    pub(crate) rank: u32,
    pub(crate) epochs: u64,
    pub(crate) batch: u64,
    /// Batches requested ahead.
    pub(crate) depth: u64,
    /// Accesses announced at a time; an epoch if `None`.
    pub(crate) window: Option<usize>,
    /// Time per access.
    pub(crate) interval: Nanos,
    /// Whether it reports its interval.
    pub(crate) reports_interval: bool,
    /// Whether it releases whole batches.
    pub(crate) releases_batches: bool,
    pub(crate) attach_at: Nanos,
}

/// A fault of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A consumer stops for a while, or for good.
    Stop { forever: bool },
    /// A consumer is gone.
    Vanish,
    /// A consumer is gone, and another one takes its number.
    Replace,
    /// A consumer continues at another epoch.
    Restart,
    /// A consumer becomes faster or slower.
    ChangeRate,
    /// A copy is lost.
    Lose,
    /// A tier changes its capacity.
    Resize,
}

/// The setup of a run.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) sizes: Vec<u64>,
    pub(crate) memory: u64,
    pub(crate) disk: u64,
    pub(crate) align: u64,
    pub(crate) stalled_bytes_max: u64,
    pub(crate) table_budget: u64,
    /// Announced bytes that are read before they are requested.
    pub(crate) read_ahead: u64,
    /// Whether consumers report that they wait.
    pub(crate) hurries: bool,
    /// Reads in flight from which on nothing is read ahead.
    pub(crate) reads_max: usize,
    /// Whether consumers copy what was answered once without a request.
    pub(crate) finds: bool,
    pub(crate) consumers: Vec<ConsumerSetup>,
    /// Of so many reads of the origin, reads of the disk and writes one fails; none if 0.
    pub(crate) failures: usize,
    pub(crate) faults: Vec<Fault>,
}

impl Setup {
    /// Draw a node without faults.
    pub(crate) fn draw(dice: &mut Dice) -> Self {
        let entries = 1 + dice.below(40);
        let largest = dice.pick(&[1, 1, 8]);
        let sizes: Vec<u64> = (0..entries).map(|_| 1 + dice.below(largest) as u64).collect();
        let data: u64 = sizes.iter().sum();
        let consumers = (0..=dice.below(5)).map(|_| ConsumerSetup::draw(dice, sizes.len())).collect();
        Self {
            memory: dice.pick(&[1, largest as u64, data / 8, data / 2, data, 2 * data]),
            disk: dice.pick(&[0, 0, data / 4, data / 2, data]),
            align: dice.pick(&[1, 1, 4]),
            stalled_bytes_max: dice.pick(&[0, data / 8, u64::MAX]),
            table_budget: dice.pick(&[0, 12 * 50, 1 << 20]),
            read_ahead: dice.pick(&[0, 1, data / 8, data]),
            hurries: dice.one_in(2),
            reads_max: dice.pick(&[1, 4, usize::MAX]),
            sizes,
            consumers,
            failures: dice.pick(&[0, 0, 3, 20]),
            finds: dice.one_in(2),
            faults: Vec::new(),
        }
    }

    /// A node with one job whose ranks share an order, without failures.
    pub(crate) fn one_job(dice: &mut Dice, entries: u32, world: u32) -> Self {
        let draw = Self::draw(dice);
        let sample = ConsumerSetup::draw(dice, entries as usize);
        let rank =
            |rank| ConsumerSetup { first: 0, count: entries, world, rank, epochs: 4, ..sample.clone() };
        Self {
            sizes: vec![1; entries as usize],
            align: 1,
            consumers: (0..world).map(rank).collect(),
            failures: 0,
            ..draw
        }
    }

    /// Add up to `most` faults of a kind.
    pub(crate) fn with(mut self, dice: &mut Dice, fault: Fault, most: usize) -> Self {
        for _ in 0..dice.below(most + 1) {
            let at = dice.below(self.faults.len() + 1);
            self.faults.insert(at, fault);
        }
        self
    }

    /// Bytes of all entries in memory.
    pub(crate) fn data(&self) -> Bytes {
        self.sizes.iter().map(|&size| Bytes::new(size).round_up(self.align)).sum()
    }
}

impl ConsumerSetup {
    pub(crate) fn draw(dice: &mut Dice, entries: usize) -> Self {
        let first = dice.pick(&[0, 0, dice.clone().below(entries)]);
        let world = 1 + dice.below(3);
        let narrow = |value: usize| u32::try_from(value).expect("it is small");
        Self {
            first: narrow(first),
            count: narrow(1 + dice.below(entries - first)),
            seed: dice.below(2) as u64,
            world: narrow(world),
            rank: narrow(dice.below(world)),
            epochs: 1 + dice.below(4) as u64,
            batch: 1 + dice.below(5) as u64,
            depth: 1 + dice.below(3) as u64,
            window: dice.pick(&[None, None, Some(3)]),
            interval: Nanos::from_millis(dice.pick(&[0, 1, 10, 10, 100])),
            reports_interval: dice.one_in(3),
            releases_batches: dice.one_in(2),
            attach_at: Nanos::from_millis(dice.pick(&[0, 0, 100, 3_000])),
        }
    }

    /// The consumer's accesses in an epoch.
    pub(crate) fn epoch(&self, epoch: u64) -> Vec<u32> {
        let mut dice = Dice::new(self.seed << 32 | epoch);
        let mut left: Vec<u32> = (self.first..self.first + self.count).collect();
        let mut order = Vec::new();
        while !left.is_empty() {
            order.push(left.swap_remove(dice.below(left.len())));
        }
        order.into_iter().skip(self.rank as usize).step_by(self.world as usize).collect()
    }
}
