// SPDX-License-Identifier: Apache-2.0
//! Errors of orders: invalid arguments, invalid generator states, and missing memory.

use foresee_units::{Rank, SampleId};
use thiserror::Error;

/// Why an order does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OrderError {
    /// A world without ranks.
    #[error("world size should be at least 1 (got 0)")]
    NoRanks,
    /// A batch without samples.
    #[error("batch_size should be a positive integer value, but got batch_size=0")]
    EmptyBatch,
    /// A random sampler without samples.
    #[error("num_samples should be a positive integer value, but got num_samples=0")]
    NothingToDraw,
    /// A draw from an empty data set.
    #[error("{num_samples} samples cannot be drawn from a data set of 0; add samples or draw none")]
    EmptyDataSet {
        /// The requested number.
        num_samples: u64,
    },
    /// A rank outside its world.
    #[error("rank {rank} is not in a world of {size}; ranks go from 0 to world size - 1")]
    NoSuchRank {
        /// The rank.
        rank: Rank,
        /// Ranks in the world.
        size: u32,
    },
    /// A sample outside the data set.
    #[error("sample {sample} is not in a data set of {n}; ids go from 0 to n - 1")]
    NoSuchSample {
        /// The sample.
        sample: SampleId,
        /// Samples in the data set.
        n: u64,
    },
    /// All samples of the data set are avoided.
    #[error("all {n} samples are to be avoided; avoid fewer")]
    AvoidsAll {
        /// Samples in the data set.
        n: u64,
    },
    /// A position past the end of its epoch.
    #[error(
        "position {position} is past the end of an epoch of {n} samples; was the state saved for another data set?"
    )]
    PositionPastEnd {
        /// The position, in samples over all ranks.
        position: u64,
        /// Samples in the epoch.
        n: u64,
    },
    /// The list of one epoch does not fit into memory.
    #[error(
        "the order of {n} samples needs {bytes} bytes that are not available; order=\"keyed\" needs none"
    )]
    NoMemory {
        /// The length of the list.
        n: u64,
        /// Its size in bytes.
        bytes: u64,
    },
    /// A padded epoch would exceed 2^64 positions.
    #[error("{n} samples for {size} ranks in groups of {group} exceed 2^64 positions; use a smaller batch")]
    TooManyPositions {
        /// Samples in the epoch.
        n: u64,
        /// Ranks.
        size: u32,
        /// Consecutive samples of one rank.
        group: u64,
    },
    /// A generator's state with the wrong length.
    #[error(
        "a torch CPU generator's state has {expected} bytes (got {got}); pass what generator.get_state() returned"
    )]
    StateLength {
        /// The length of a state in bytes.
        expected: usize,
        /// The given length.
        got: usize,
    },
    /// A generator's state that torch rejects too.
    #[error(
        "not the state of a seeded torch CPU generator: left {left}, seeded {seeded}, next {next}; pass what generator.get_state() returned"
    )]
    StateInvalid {
        /// Words left in the block, plus one.
        left: u32,
        /// Whether the generator was seeded, 0 or 1.
        seeded: u32,
        /// Index of the next word in the block.
        next: u64,
    },
}
