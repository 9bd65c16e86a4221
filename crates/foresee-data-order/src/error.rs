// SPDX-License-Identifier: Apache-2.0
//! What can be wrong with a question about the order: an argument, a generator's state, or the memory for a list.

use foresee_units::{Rank, SampleId};
use thiserror::Error;

/// Why there is no such order.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OrderError {
    /// A world without ranks.
    #[error("world size should be at least 1 (got 0)")]
    NoRanks,
    /// A batch without samples.
    #[error("batch_size should be a positive integer value, but got batch_size=0")]
    EmptyBatch,
    /// A random sampler that has nothing to draw.
    #[error("num_samples should be a positive integer value, but got num_samples=0")]
    NothingToDraw,
    /// Samples are to be drawn from an empty data set.
    #[error("{num_samples} samples cannot be drawn from a data set of 0; add samples or draw none")]
    EmptyDataSet {
        /// How many were asked for.
        num_samples: u64,
    },
    /// A rank outside its world.
    #[error("rank {rank} is not in a world of {size}; ranks go from 0 to world size - 1")]
    NoSuchRank {
        /// The rank as given.
        rank: Rank,
        /// Ranks in the world.
        size: u32,
    },
    /// A sample outside the data set.
    #[error("sample {sample} is not in a data set of {n}; ids go from 0 to n - 1")]
    NoSuchSample {
        /// The sample as given.
        sample: SampleId,
        /// Samples in the data set.
        n: u64,
    },
    /// No sample of the data set is left.
    #[error("all {n} samples are to be avoided; avoid fewer")]
    AvoidsAll {
        /// Samples in the data set.
        n: u64,
    },
    /// A position behind the end of its epoch.
    #[error(
        "position {position} lies behind the end of an epoch of {n} samples; was the state saved for another data set?"
    )]
    PositionBehindEnd {
        /// The position as given, in samples over all ranks.
        position: u64,
        /// Samples in the epoch.
        n: u64,
    },
    /// The list of one epoch does not fit into memory.
    #[error(
        "the order of {n} samples needs {bytes} bytes of memory and did not get them; order=\"keyed\" needs none"
    )]
    NoMemory {
        /// Places of the list.
        n: u64,
        /// Bytes it takes.
        bytes: u64,
    },
    /// Padding an epoch would count past 2^64.
    #[error(
        "{n} samples dealt to {size} ranks in groups of {group} exceed 2^64 positions; use a smaller batch"
    )]
    TooManyPositions {
        /// Samples in the epoch.
        n: u64,
        /// Ranks.
        size: u32,
        /// Consecutive samples that one rank gets.
        group: u64,
    },
    /// A generator's state of the wrong length.
    #[error(
        "a torch CPU generator's state has {expected} bytes (got {got}); pass what generator.get_state() returned"
    )]
    StateLength {
        /// Bytes of a state.
        expected: usize,
        /// Bytes as given.
        got: usize,
    },
    /// A generator's state that torch would refuse as well.
    #[error(
        "not the state of a seeded torch CPU generator: left {left}, seeded {seeded}, next {next}; pass what generator.get_state() returned"
    )]
    StateInvalid {
        /// Words left in the block, plus one.
        left: u32,
        /// Whether the generator was seeded, 0 or 1.
        seeded: u32,
        /// Place of the next word in the block.
        next: u64,
    },
}
