// SPDX-License-Identifier: Apache-2.0
//! Names of the loading policies.
//!
//! They are separate from the implementations, so that a caller may list them. Names have underscores, as in all
//! files and messages.

use std::fmt;
use std::str::FromStr;

use foresee_units::named_enum;

named_enum! {
    /// A loading policy: published loaders, the runtime's planner, and bounds.
    Policy {
        /// Never waits for a sample: the lower bound of all policies that keep the order.
        Perfect => "perfect",
        /// Fetch, preprocess and compute in sequence, from the origin.
        Naive => "naive",
        /// Double buffering from the origin (`tf.data`, torch's loader).
        StagingBuffer => "staging_buffer",
        /// `DeepIO`, ordered: a shard of the data set in memory, with the order kept.
        DeepioOrdered => "deepio_ordered",
        /// `DeepIO`, optimistic: every rank reads only its own shard.
        DeepioOptimistic => "deepio_optimistic",
        /// Data sharding: every rank reads only its own shard, from all its tiers.
        ParallelStaging => "parallel_staging",
        /// LBANN's data store: the first reader stores a sample in memory.
        LbannDynamic => "lbann_dynamic",
        /// LBANN's data store, loaded before training.
        LbannPreloading => "lbann_preloading",
        /// Locality-aware loading: samples of a global batch go to the ranks that hold them.
        LocalityAware => "locality_aware",
        /// A fixed owner per sample keeps it for all ranks, as in distributed caches.
        HashOwner => "hash_owner",
        /// Each rank reads and caches its own part of the data set, and shuffles only that.
        StaticShare => "static_share",
        /// Clairvoyant prefetching as published: each rank caches the samples that it reads most often.
        Nopfs => "nopfs",
        /// The same, but samples are cached at the first read instead of by separate threads.
        NopfsOnAccess => "nopfs_on_access",
        /// The same, with all caches full from the start, at no cost.
        NopfsPrestaged => "nopfs_prestaged",
        /// The planner that the runtime follows.
        Foresee => "foresee",
        /// A bucket without a cache.
        Direct => "direct",
        /// A complete copy on local disk in advance.
        Disk => "disk",
        /// A bucket behind a FIFO cache.
        Cache => "cache",
        /// A bucket behind a cache that is filled as a whole when its window is consumed.
        FullFetch => "full_fetch",
        /// A bucket behind a cache of which one half is filled while the other is consumed.
        FiftyFifty => "fifty_fifty",
    }
}

impl Policy {
    /// Whether every rank reads the samples of the order, in that order.
    pub const fn keeps_order(self) -> bool {
        !matches!(
            self,
            Self::DeepioOptimistic | Self::ParallelStaging | Self::LocalityAware | Self::StaticShare
        )
    }

    /// Whether it reads a bucket sample by sample, so that its scenario needs a [`Bucket`](super::Bucket).
    pub const fn reads_bucket(self) -> bool {
        matches!(self, Self::Direct | Self::Disk | Self::Cache | Self::FullFetch | Self::FiftyFifty)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An unknown policy name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("policy is {name:?}; it must be one of {}", Policy::ALL.map(Policy::name).join(", "))]
pub struct UnknownPolicy {
    /// As given.
    pub name: String,
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        Self::from_name(name).ok_or_else(|| UnknownPolicy { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_refused_with_the_list() {
        for policy in Policy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        let fault = "nopfs2".parse::<Policy>().unwrap_err().to_string();
        assert!(fault.contains("\"nopfs2\"") && fault.contains("perfect, naive"), "{fault}");
    }
}
