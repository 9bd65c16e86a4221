// SPDX-License-Identifier: Apache-2.0
//! Identities of samples, ranks, nodes, epochs and steps. Samples and steps have 64 bits: larger data sets than 2^32 exist.

use std::fmt;

/// A sample of the data set, by its position in the index: 0 to n - 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SampleId(pub u64);

/// A training process, 0 to world - 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u32);

/// A node of a job, 0 to the number of nodes - 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(pub u16);

/// A pass over the data set, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// One batch on every rank, numbered from 0 within its epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Step(pub u64);

macro_rules! display_number {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}
display_number!(SampleId, Rank, NodeIndex, Epoch, Step);

/// A rank and the number of data-parallel ranks: `rank < size`, `size >= 1`, checked by the constructor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct World {
    rank: u32,
    size: u32,
}

/// A rank that is not part of its world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorldError {
    /// The rank as given.
    pub rank: u32,
    /// The world size as given.
    pub size: u32,
}

impl fmt::Display for WorldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, size } = self;
        write!(f, "rank {rank} is not in a world of {size}; ranks go from 0 to world size - 1")
    }
}

impl std::error::Error for WorldError {}

impl World {
    /// A single rank.
    pub const ALONE: Self = Self { rank: 0, size: 1 };

    /// Create rank `rank` of `size`.
    pub const fn new(rank: u32, size: u32) -> Result<Self, WorldError> {
        if rank < size { Ok(Self { rank, size }) } else { Err(WorldError { rank, size }) }
    }

    /// The rank.
    pub const fn rank(self) -> Rank {
        Rank(self.rank)
    }

    /// The number of ranks, at least 1.
    pub const fn size(self) -> u32 {
        self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_outside_its_world_is_refused_with_both_numbers() {
        let error = World::new(4, 4).unwrap_err();
        assert_eq!(error.to_string(), "rank 4 is not in a world of 4; ranks go from 0 to world size - 1");
        assert!(World::new(0, 0).is_err());
    }
}
