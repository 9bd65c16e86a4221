// SPDX-License-Identifier: Apache-2.0
//! The eviction rules of a tier, and the settings that name them.

/// An eviction rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Retain the samples used sooner; any copy used later may be evicted. Belady's MIN with bypass.
    NextUse,
    /// Retain the first samples; only copies that are never used again may be evicted (`MinIO`: Mohan et al.,
    /// VLDB 2021).
    Pin,
}

/// The choice of a planner's [`Policy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyChoice {
    /// The policy that reads fewer bytes from the origin in a dry run over the announced window; pin if both are
    /// about equal. Chosen once, when space first runs out: until then both behave alike.
    #[default]
    Auto,
    /// Always [`Policy::NextUse`].
    NextUse,
    /// Always [`Policy::Pin`].
    Pin,
}

impl PolicyChoice {
    /// The policy, if it needs no dry run.
    pub(crate) fn fixed(self) -> Option<Policy> {
        match self {
            Self::Auto => None,
            Self::NextUse => Some(Policy::NextUse),
            Self::Pin => Some(Policy::Pin),
        }
    }
}
