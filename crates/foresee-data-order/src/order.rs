// SPDX-License-Identifier: Apache-2.0
//! The specification of a run's order: a few numbers that determine every epoch.
//!
//! Saved states and a plan's hash contain it, and ranks compare it. An order that depends on anything else (a
//! shared generator, a user's sampler) is known one epoch at a time, as [`EpochOrder::from_list`].

use std::num::NonZeroU64;

use foresee_units::Epoch;

use crate::epoch::List;
use crate::{EpochOrder, Keyed, Mt19937, OrderError, Tail, randperm};

/// The order of all epochs: a function of these fields alone.
///
/// `n` samples; 0 is an empty run. `seed` is torch's, with a negative one as its two's complement
/// (`cast_unsigned`). `drop_last` is the sampler's: it cuts the global list to a multiple of the samples that all
/// ranks take together, instead of padding it from its head. A rank's own short last batch is the loader's
/// responsibility.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// `torch.utils.data.DistributedSampler` with `set_epoch`; at world size 1 too.
    Distributed {
        /// Samples.
        n: u64,
        /// Added to the epoch; only the low 32 bits of the sum matter.
        seed: u64,
        /// If false, every epoch is 0 to n - 1.
        shuffle: bool,
        /// Whether to cut instead of pad.
        drop_last: bool,
    },
    /// `torch.utils.data.SequentialSampler`: 0 to n - 1 in every epoch, distributed to ranks like `Distributed`.
    Sequential {
        /// Samples.
        n: u64,
        /// Whether to cut instead of pad.
        drop_last: bool,
    },
    /// [`Keyed`]: another random order, for data sets of any size, in constant memory.
    Keyed {
        /// Samples.
        n: u64,
        /// All 64 bits matter.
        seed: u64,
        /// Whether to cut instead of pad.
        drop_last: bool,
    },
    /// Accelerate's `SeedableRandomSampler` under `BatchSamplerShard`, which distributes whole batches.
    SeedableShard {
        /// Samples.
        n: u64,
        /// Added to the epoch; only the low 32 bits of the sum matter.
        seed: u64,
        /// Samples per batch of a rank.
        batch_size: NonZeroU64,
        /// Whether to drop rounds in which some rank has no full batch.
        drop_last: bool,
        /// Without `drop_last`: pad to a full round from the first batches, or leave ranks uneven.
        even_batches: bool,
    },
}

impl Order {
    /// The name in states and plans.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Distributed { .. } => "torch.distributed",
            Self::Sequential { .. } => "torch.sequential",
            Self::Keyed { .. } => "keyed-1",
            Self::SeedableShard { .. } => "accelerate.seedable_shard",
        }
    }

    /// Samples per epoch, before padding or cutting.
    pub const fn n(&self) -> u64 {
        match *self {
            Self::Distributed { n, .. }
            | Self::Sequential { n, .. }
            | Self::Keyed { n, .. }
            | Self::SeedableShard { n, .. } => n,
        }
    }

    /// The seed; 0 for an order without one.
    pub const fn seed(&self) -> u64 {
        match *self {
            Self::Sequential { .. } => 0,
            Self::Distributed { seed, .. } | Self::Keyed { seed, .. } | Self::SeedableShard { seed, .. } => {
                seed
            }
        }
    }

    /// The treatment of an epoch that does not divide evenly.
    pub const fn tail(&self) -> Tail {
        match *self {
            Self::Distributed { drop_last: true, .. }
            | Self::Sequential { drop_last: true, .. }
            | Self::Keyed { drop_last: true, .. }
            | Self::SeedableShard { drop_last: true, .. } => Tail::Cut,
            Self::SeedableShard { even_batches: false, .. } => Tail::Uneven,
            _ => Tail::Pad,
        }
    }

    /// The number of consecutive samples of one rank: 1, or a batch.
    pub const fn group(&self) -> NonZeroU64 {
        match *self {
            Self::SeedableShard { batch_size, .. } => batch_size,
            _ => NonZeroU64::MIN,
        }
    }

    /// The order of one epoch. A drawn list is stored, with 4 bytes per sample up to n = 2^32 and 8 beyond.
    ///
    /// # Errors
    /// [`OrderError::NoMemory`] if the list does not fit.
    pub fn epoch(&self, epoch: Epoch) -> Result<EpochOrder, OrderError> {
        let list = match *self {
            Self::Sequential { n, .. } | Self::Distributed { n, shuffle: false, .. } => List::Sequential(n),
            Self::Keyed { n, seed, .. } => List::Keyed(Keyed::new(n, seed, epoch)?),
            Self::Distributed { n, seed, .. } | Self::SeedableShard { n, seed, .. } => {
                List::stored(randperm(n, &mut Mt19937::new(seed.wrapping_add(epoch.0)))?)
            }
        };
        Ok(EpochOrder::new(epoch, self.seed(), list, self.group(), self.tail()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_in_saved_states() {
        let (n, seed, drop_last) = (10, 3, false);
        let batch_size = NonZeroU64::MIN;
        let orders = [
            Order::Distributed { n, seed, shuffle: true, drop_last },
            Order::Sequential { n, drop_last },
            Order::Keyed { n, seed, drop_last },
            Order::SeedableShard { n, seed, batch_size, drop_last, even_batches: true },
        ];
        let names = ["torch.distributed", "torch.sequential", "keyed-1", "accelerate.seedable_shard"];
        assert_eq!(orders.map(|order| order.name()), names);
    }
}
