// SPDX-License-Identifier: Apache-2.0
//! Names of the loading policies.
//!
//! They are separate from the implementations, so that a caller may list them. Names have underscores, as in all
//! files and messages.

use std::fmt;
use std::str::FromStr;

/// A loading policy: published loaders, the runtime's planner, and bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Policy {
    /// Never waits for a sample: the lower bound of all policies that keep the order.
    Perfect,
    /// Fetch, preprocess and compute in sequence, from the origin.
    Naive,
    /// Double buffering from the origin (`tf.data`, torch's loader).
    StagingBuffer,
    /// `DeepIO`, ordered: a shard of the data set in memory, with the order kept.
    DeepioOrdered,
    /// `DeepIO`, optimistic: every rank reads only its own shard.
    DeepioOptimistic,
    /// Data sharding: every rank reads only its own shard, from all its tiers.
    ParallelStaging,
    /// LBANN's data store: the first reader stores a sample in memory.
    LbannDynamic,
    /// LBANN's data store, loaded before training.
    LbannPreloading,
    /// Locality-aware loading: samples of a global batch go to the ranks that hold them.
    LocalityAware,
    /// Clairvoyant prefetching as published: each rank caches the samples that it reads most often.
    Nopfs,
    /// The same, but samples are cached at the first read instead of by separate threads.
    NopfsOnAccess,
    /// The same, with all caches full from the start, at no cost.
    NopfsPrestaged,
    /// The planner that the runtime follows.
    Foresee,
    /// A bucket without a cache.
    Direct,
    /// A complete copy on local disk in advance.
    Disk,
    /// A bucket behind a FIFO cache.
    Cache,
    /// A bucket behind a cache that is filled as a whole when its window is consumed.
    FullFetch,
    /// A bucket behind a cache of which one half is filled while the other is consumed.
    FiftyFifty,
}

impl Policy {
    /// All policies, in display order.
    pub const ALL: [Self; 18] = [
        Self::Perfect,
        Self::Naive,
        Self::StagingBuffer,
        Self::DeepioOrdered,
        Self::DeepioOptimistic,
        Self::ParallelStaging,
        Self::LbannDynamic,
        Self::LbannPreloading,
        Self::LocalityAware,
        Self::Nopfs,
        Self::NopfsOnAccess,
        Self::NopfsPrestaged,
        Self::Foresee,
        Self::Direct,
        Self::Disk,
        Self::Cache,
        Self::FullFetch,
        Self::FiftyFifty,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Perfect => "perfect",
            Self::Naive => "naive",
            Self::StagingBuffer => "staging_buffer",
            Self::DeepioOrdered => "deepio_ordered",
            Self::DeepioOptimistic => "deepio_optimistic",
            Self::ParallelStaging => "parallel_staging",
            Self::LbannDynamic => "lbann_dynamic",
            Self::LbannPreloading => "lbann_preloading",
            Self::LocalityAware => "locality_aware",
            Self::Nopfs => "nopfs",
            Self::NopfsOnAccess => "nopfs_on_access",
            Self::NopfsPrestaged => "nopfs_prestaged",
            Self::Foresee => "foresee",
            Self::Direct => "direct",
            Self::Disk => "disk",
            Self::Cache => "cache",
            Self::FullFetch => "full_fetch",
            Self::FiftyFifty => "fifty_fifty",
        }
    }

    /// Whether every rank reads the samples of the order, in that order.
    pub const fn keeps_order(self) -> bool {
        !matches!(self, Self::DeepioOptimistic | Self::ParallelStaging | Self::LocalityAware)
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy {
    /// As given.
    pub name: String,
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "policy is {:?}; it must be one of ", self.name)?;
        for (number, policy) in Policy::ALL.into_iter().enumerate() {
            write!(f, "{}{policy}", if number == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl std::error::Error for UnknownPolicy {}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == name);
        found.ok_or_else(|| UnknownPolicy { name: name.to_owned() })
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
