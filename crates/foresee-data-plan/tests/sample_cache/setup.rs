// SPDX-License-Identifier: Apache-2.0
//! The setup of a run.

use foresee_testkit::Dice;

/// A consumer's order and loader.
#[derive(Clone, Debug)]
pub(crate) struct ConsumerSetup {
    pub(crate) epochs: Vec<Vec<u32>>,
    /// Accesses announced at a time, and announced accesses left at which the next ones are announced.
    pub(crate) fetch_size: usize,
    pub(crate) threshold: usize,
    /// Accesses handed out before the loader waits for the first of them.
    pub(crate) depth: usize,
    /// How far from their order requests may come; at most `depth`.
    pub(crate) reorder: usize,
    /// Whether it says which accesses it expects, and whether they are right.
    pub(crate) expects: Option<bool>,
    /// Of so many accesses that are handed out, one is never requested; 0: all are.
    pub(crate) left_out: usize,
    /// Events for which it stops after its first epoch.
    pub(crate) pause: u32,
}

/// Which samples are read together.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Grouping {
    Single,
    InOrder,
    /// All samples are neighbours in one object.
    Neighbours {
        has_peers: bool,
    },
}

/// The setup of a run.
#[derive(Clone, Debug)]
pub(crate) struct CacheSetup {
    pub(crate) sizes: Vec<u64>,
    pub(crate) capacity: u64,
    pub(crate) readers: usize,
    pub(crate) grouping: Grouping,
    /// Whether consumers claim samples before they request them.
    pub(crate) claims: bool,
    pub(crate) consumers: Vec<ConsumerSetup>,
    /// Of so many reads one fails, and of so many one is ended with its reader; 0: none.
    pub(crate) failures: usize,
    pub(crate) lost_readers: usize,
}

impl CacheSetup {
    pub(crate) fn draw(dice: &mut Dice) -> Self {
        let count = 1 + dice.below(40);
        let largest = dice.pick(&[1, 1, 8]);
        let sizes: Vec<u64> = (0..count).map(|_| 1 + dice.below(largest) as u64).collect();
        let data: u64 = sizes.iter().sum();
        let consumers = (0..=dice.below(3)).map(|_| ConsumerSetup::draw(dice, count)).collect();
        Self {
            capacity: dice.pick(&[0, 1, data / 8, data / 2, data, 2 * data]),
            readers: 1 + dice.below(4),
            sizes,
            grouping: Grouping::Single,
            claims: false,
            consumers,
            failures: 0,
            lost_readers: 0,
        }
    }

    /// Samples are read in groups.
    pub(crate) fn grouped(dice: &mut Dice) -> Self {
        let setup = Self::draw(dice);
        let neighbours = Grouping::Neighbours { has_peers: dice.one_in(2) };
        Self { grouping: dice.pick(&[Grouping::InOrder, neighbours]), claims: dice.one_in(2), ..setup }
    }

    /// One consumer that requests in order, up to two announced accesses, one reader, and samples of one byte.
    pub(crate) fn alone(dice: &mut Dice) -> Self {
        let mut setup = Self::draw(dice);
        setup.sizes.fill(1);
        setup.readers = 1;
        setup.capacity = dice.below(setup.sizes.len() + 2) as u64;
        setup.consumers.truncate(1);
        let one = &mut setup.consumers[0];
        (one.reorder, one.threshold, one.fetch_size, one.depth) = (0, 0, 1, 1);
        setup
    }
}

impl ConsumerSetup {
    fn draw(dice: &mut Dice, count: usize) -> Self {
        let draws_again = dice.one_in(4);
        let epoch = |dice: &mut Dice| -> Vec<u32> {
            let mut ids: Vec<u32> = (0..u32::try_from(count).expect("it is small")).collect();
            for at in 0..count {
                let other = at + dice.below(count - at);
                ids.swap(at, other);
            }
            if draws_again {
                for id in &mut ids {
                    *id = u32::try_from(dice.below(count)).expect("it is small");
                }
            }
            ids
        };
        let depth = 1 + dice.below(8);
        let epochs = (0..=dice.below(4)).map(|_| epoch(dice)).collect();
        Self {
            epochs,
            fetch_size: 1 + dice.below(12),
            threshold: dice.below(12),
            depth,
            reorder: dice.below(depth),
            expects: dice.pick(&[None, Some(true), Some(true), Some(false)]),
            left_out: 0,
            pause: 0,
        }
    }
}
