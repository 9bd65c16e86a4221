// SPDX-License-Identifier: Apache-2.0
//! What a planner refuses to start with.

/// Why no plan can be made. Every variant is a fault of the configuration, found before the run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The tables hold sample ids and positions in 32 bits.
    #[error(
        "a data set of {count} samples is too large to plan sample by sample (at most {most}); \
         index it in shards of several samples each"
    )]
    TooManySamples {
        /// Samples of the data set.
        count: u64,
        /// The most that can be planned.
        most: u64,
    },
    /// A tier is named in one byte.
    #[error("{count} tiers are too many (at most {most}); merge directories of equal speed into one tier")]
    TooManyTiers {
        /// Tiers as configured.
        count: usize,
        /// The most that can be planned.
        most: usize,
    },
}
