// SPDX-License-Identifier: Apache-2.0
//! Errors of a planner's configuration.

/// Why no plan can be made. Every variant is a configuration error that is found before the run.
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
        /// Maximum number of samples.
        most: u64,
    },
    /// A tier index has one byte.
    #[error("{count} tiers are too many (at most {most}); merge directories of equal speed into one tier")]
    TooManyTiers {
        /// Tiers as configured.
        count: usize,
        /// Maximum number of tiers.
        most: usize,
    },
    /// A node index has two bytes.
    #[error("{count} nodes are too many (at most {most})")]
    TooManyNodes {
        /// Nodes of the job.
        count: usize,
        /// Maximum number of nodes.
        most: usize,
    },
}
