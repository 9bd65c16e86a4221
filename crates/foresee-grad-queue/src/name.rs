// SPDX-License-Identifier: Apache-2.0
//! Identifiers in frames: round, tensor, packet, server and sender.
//!
//! They are separate from all deciders because the wire's side uses them too. Whether a tensor exists is a
//! question for the plan.

use std::fmt;

use foresee_units::Rank;

/// One exchange of all gradients, which is one optimizer step; counted from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Round(pub u64);

impl Round {
    /// The round after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The low 32 bits, which frames carry. Only neighbouring rounds are legal, so the high bits are redundant.
    #[expect(clippy::cast_possible_truncation, reason = "the low half is meant; `near` finds the rest")]
    pub const fn low(self) -> u32 {
        self.0 as u32
    }

    /// The round with these low bits that is nearest to `around`, never below 0.
    #[must_use]
    #[expect(clippy::cast_possible_wrap, reason = "a difference of 32 bits, taken as signed on purpose")]
    pub const fn near(low: u32, around: Self) -> Self {
        let ahead = low.wrapping_sub(around.low()) as i32;
        match around.0.checked_add_signed(ahead as i64) {
            Some(round) => Self(round),
            // At either end of the range only one neighbour exists.
            None => Self(if ahead < 0 {
                around.0.wrapping_add(low.wrapping_sub(around.low()) as u64)
            } else {
                u64::MAX
            }),
        }
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A tensor, by its index in the plan: the forward pass uses 0 first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorId(pub u32);

/// A server, by its index in the pattern: co-located ones first, by rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId(pub u16);

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A packet: bytes `packet * P` to `min((packet + 1) * P, size)` of a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PacketId {
    /// The tensor.
    pub tensor: TensorId,
    /// Index of the packet in the tensor, from 0.
    pub packet: u32,
}

/// The sender of a message, with its round and membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// The rank that the connection is bound to.
    pub rank: Rank,
    /// The generation in the frame.
    pub generation: u32,
    /// The round in the frame.
    pub round: Round,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_bits_find_their_round_across_the_wrap() {
        for around in [0, 5, u64::from(u32::MAX), 1 << 32, (1 << 40) + 3] {
            for step in 0..3 {
                let round = Round(around + step);
                assert_eq!(Round::near(round.low(), Round(around)), round);
                assert_eq!(Round::near(Round(around).low(), round), Round(around));
            }
        }
        assert_eq!(Round::near(u32::MAX, Round(0)), Round(u64::from(u32::MAX)), "nothing lies below 0");
        assert_eq!(Round::near(7, Round(u64::MAX)), Round(u64::MAX), "nor above the last");
    }
}
