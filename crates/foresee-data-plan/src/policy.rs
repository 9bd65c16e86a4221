// SPDX-License-Identifier: Apache-2.0
//! The rules by which copies make room in a tier, and the settings that name them.

/// The rule by which copies make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Keep what is used sooner; whatever is used later may leave for it. Belady's MIN with bypass.
    NextUse,
    /// Keep what came first; only what is never used again may leave (`MinIO`: Mohan et al., VLDB 2021).
    Pin,
}

/// Which [`Policy`] a planner follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyChoice {
    /// Whichever reads fewer bytes from the origin in a trial over the announced window, pin if it is about as good. Tried once, when
    /// room first runs out: until then the two do the same.
    #[default]
    Auto,
    /// Always [`Policy::NextUse`].
    NextUse,
    /// Always [`Policy::Pin`].
    Pin,
}

impl PolicyChoice {
    /// The policy, if it needs no trial.
    pub(crate) fn fixed(self) -> Option<Policy> {
        match self {
            Self::Auto => None,
            Self::NextUse => Some(Policy::NextUse),
            Self::Pin => Some(Policy::Pin),
        }
    }
}
