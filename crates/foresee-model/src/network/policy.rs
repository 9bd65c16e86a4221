// SPDX-License-Identifier: Apache-2.0
//! Names of the policies, which determine the order on the link.
//!
//! They are separate because closed forms, timelines and interfaces use them; `timeline` implements their rules.

use std::fmt;

/// The reading of the paper where it differs from a physical model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Compat {
    /// A physical model: pulls queue for one downlink.
    #[default]
    Physical,
    /// The literal paper, for a check of its numbers: by equation (7) all pulls travel at once, each at the whole
    /// rate.
    Paper,
}

impl Compat {
    /// Both values, the default first.
    pub const ALL: [Self; 2] = [Self::Physical, Self::Paper];

    /// `physical` or `paper`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Physical => "physical",
            Self::Paper => "paper",
        }
    }

    /// The value of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|compat| compat.name() == name)
    }
}

/// A rule for the order of gradients on the link, or a reference for comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// No network: the lower bound of all policies.
    Oracle,
    /// Packets; the tensor used first goes first, and a newly ready one interrupts. The paper's Algorithm 1.
    Mercury,
    /// The forward pass waits for the last tensor in any order: clipping by the global norm, a gradient scaler, a
    /// communication hook. Packets, by `Mercury` or `FifoPacket`.
    Barrier,
    /// Packets in the order in which tensors become ready; a packet returns once it is summed.
    FifoPacket,
    /// Whole tensors in the order in which they become ready, each pulled after its push: wait-free
    /// backpropagation (WFBP), which a parameter server does without scheduling.
    FifoTensor(Compat),
}

impl Policy {
    /// All policies under one reading; each is at least as fast as the next.
    pub const fn all(compat: Compat) -> [Self; 5] {
        [Self::Oracle, Self::Mercury, Self::Barrier, Self::FifoPacket, Self::FifoTensor(compat)]
    }

    /// `oracle`, `mercury`, `barrier`, `fifo_packet` or `fifo_tensor`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Oracle => "oracle",
            Self::Mercury => "mercury",
            Self::Barrier => "barrier",
            Self::FifoPacket => "fifo_packet",
            Self::FifoTensor(_) => "fifo_tensor",
        }
    }

    /// The policy of that name, in the given reading.
    pub fn named(name: &str, compat: Compat) -> Option<Self> {
        Self::all(compat).into_iter().find(|policy| policy.name() == name)
    }
}

impl fmt::Display for Policy {
    /// As [`name`](Self::name), with a mark for the paper's reading.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FifoTensor(Compat::Paper) => write!(f, "{} (paper)", self.name()),
            other => f.write_str(other.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_policies() {
        for compat in Compat::ALL {
            assert_eq!(Compat::named(compat.name()), Some(compat));
            for policy in Policy::all(compat) {
                assert_eq!(Policy::named(policy.name(), compat), Some(policy));
            }
        }
        assert_eq!(Policy::named("wfbp", Compat::Physical), None);
        assert_eq!(Compat::named(""), None);
        assert_eq!(Policy::FifoTensor(Compat::Paper).to_string(), "fifo_tensor (paper)");
    }
}
