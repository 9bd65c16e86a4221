// SPDX-License-Identifier: Apache-2.0
//! Messages for the replacement of a server and the loss of a rank.
//!
//! They are separate from the messages of every round.

use serde::{Deserialize, Serialize};

use super::{ListOf, MEMBER_BYTES_MAX, OPEN_ROUNDS_MAX, PLAN_BODY_MAX, TEXT_BYTES_MAX, TextOf, Used};

/// State that a replacement server needs to resume, and that a server needs after a broken connection. It is the
/// first message of a rank that reconnects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// Membership of the current plan; 0 if the rank knows none.
    pub generation: u32,
    /// The oldest round whose gradients the rank retains.
    pub oldest: u64,
    /// As [`Members::live`] after a loss, otherwise empty.
    #[serde(with = "ListOf::<MEMBER_BYTES_MAX>")]
    pub live: Vec<u8>,
    /// The current plan, as [`super::Plan::body`]; up to [`PLAN_BODY_MAX`] bytes.
    #[serde(with = "ListOf::<PLAN_BODY_MAX>")]
    pub body: Vec<u8>,
}

/// The answer to [`Resume`]. A replacement server sends it once every rank has sent its [`Resume`], a reconnected
/// server immediately. The rank then retransmits the gradients that it retains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// Membership of the resumed plan.
    pub generation: u32,
    /// Rounds before this one are done.
    pub oldest: u64,
    /// Whether the server is the one of the broken connection and still has its sums. Then only packets without a
    /// received sum are missing.
    pub knows: bool,
}

/// A rank is lost, and its job goes on. The server that noticed sends it to the ranks, and they forward it to the
/// first server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// The rank.
    pub rank: u32,
    /// Why; up to [`TEXT_BYTES_MAX`] bytes.
    #[serde(with = "TextOf::<TEXT_BYTES_MAX>")]
    pub why: String,
}

/// The new membership, from the first server. After it, a rank accepts no round completion until it receives
/// [`Change`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    /// The new membership.
    pub generation: u32,
    /// The first lost rank.
    pub rank: u32,
    /// The remaining ranks, one bit each; rank 0 is the lowest bit of the first byte; up to [`MEMBER_BYTES_MAX`]
    /// bytes.
    #[serde(with = "ListOf::<MEMBER_BYTES_MAX>")]
    pub live: Vec<u8>,
    /// Which ranks were lost, and why, for users; up to [`TEXT_BYTES_MAX`] bytes.
    #[serde(with = "TextOf::<TEXT_BYTES_MAX>")]
    pub why: String,
}

/// The state that a remaining rank reports to the first server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// The new membership.
    pub generation: u32,
    /// The oldest round whose gradients the rank retains.
    pub oldest: u64,
    /// The tensors used in rounds from there on, as far as the rank knows; up to [`OPEN_ROUNDS_MAX`] rounds.
    #[serde(with = "ListOf::<OPEN_ROUNDS_MAX>")]
    pub used: Vec<Used>,
}

/// The state that all remaining ranks resume from. The first server sends it to the ranks. Each rank sends it to
/// every server as its first message under the new membership.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The new membership.
    pub generation: u32,
    /// As [`Members::live`].
    #[serde(with = "ListOf::<MEMBER_BYTES_MAX>")]
    pub live: Vec<u8>,
    /// Rounds before this one are done.
    pub oldest: u64,
    /// The tensors used in rounds from there on, as far as any remaining rank knows.
    #[serde(with = "ListOf::<OPEN_ROUNDS_MAX>")]
    pub used: Vec<Used>,
}

/// The server has applied the change: its further messages belong to this membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// The membership.
    pub generation: u32,
    /// Rounds before this one are done.
    pub oldest: u64,
}
