// SPDX-License-Identifier: Apache-2.0
//! Messages between ranks and servers.
//!
//! The driver converts them from and to the frames of `foresee-wire`, which bounds every list and text when it reads.
//! Plans and tensor sets stay encoded here until the plan that they belong to is known.

use std::fmt;

use foresee_grad_queue::Round;
use foresee_units::Rank;

/// The most rounds of a [`Known`] or [`Change`] message.
pub const OPEN_ROUNDS_MAX: usize = 4;

/// A message of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RankMessage {
    /// A plan that the rank proposes, encoded.
    Plan(Vec<u8>),
    /// The rank pushes no more tensors in a round.
    RoundEnd {
        /// The round.
        round: Round,
        /// The tensors that the rank did not push in it, as an encoded set.
        absent: Vec<u8>,
    },
    /// The rank has all results of a round.
    Got(Round),
    /// The state of a rank that reconnects.
    Resume(Resume),
    /// Another server reported the loss of a rank.
    Lost(LostRank),
    /// The state of a rank after a loss, for the first server.
    Known(Known),
    /// The state from which all ranks resume after a loss.
    Change(Change),
}

/// A message of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerMessage {
    /// The plan that all ranks agreed on.
    Plan {
        /// The membership under which it holds.
        generation: u32,
        /// The plan, encoded.
        body: Vec<u8>,
    },
    /// The tensors that a round used.
    Used(Used),
    /// Every rank has all results of a round.
    RoundDone(Round),
    /// The answer to [`RankMessage::Resume`].
    Resumed(Resumed),
    /// The loss of a rank, for the first server.
    Lost(LostRank),
    /// A new membership that the first server proposes.
    Members(NewMembers),
    /// The state from which all ranks resume after a loss.
    Change(Change),
    /// The server has changed to a new membership.
    Changed(Changed),
    /// The ranks that the server waits for, as text.
    Waiting(String),
}

/// The tensors that a round used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Used {
    /// The round.
    pub round: Round,
    /// The tensors, as an encoded set.
    pub used: Vec<u8>,
}

/// The state of a rank that reconnects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resume {
    /// The membership of the rank's plan; 0 if it has none.
    pub generation: u32,
    /// The oldest round of which the rank retains gradients.
    pub oldest: Round,
    /// The members after a loss, one bit per rank; empty if no rank was lost.
    pub live: Vec<u8>,
    /// The rank's plan, encoded.
    pub body: Vec<u8>,
}

/// The answer to [`Resume`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// The membership of the server's plan.
    pub generation: u32,
    /// Rounds before this one are done.
    pub oldest: Round,
    /// Whether the server still has the sums that it computed before the connection broke.
    pub has_sums: bool,
}

/// A lost rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRank {
    /// The rank.
    pub rank: Rank,
    /// The reason.
    pub why: String,
}

/// A new membership that the first server proposes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMembers {
    /// Its number.
    pub generation: u32,
    /// The rank that was lost, or the first of them.
    pub rank: Rank,
    /// The members, one bit per rank.
    pub live: Vec<u8>,
    /// The reason.
    pub why: String,
}

/// The state of a rank after a loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The new membership.
    pub generation: u32,
    /// The oldest round of which the rank retains gradients.
    pub oldest: Round,
    /// The used tensors of later rounds that the rank has received; up to [`OPEN_ROUNDS_MAX`].
    pub used: Vec<Used>,
}

/// The state from which all ranks resume after a loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The new membership.
    pub generation: u32,
    /// The members, one bit per rank.
    pub live: Vec<u8>,
    /// Rounds before this one are done.
    pub oldest: Round,
    /// The used tensors of later rounds that any rank has received; up to [`OPEN_ROUNDS_MAX`].
    pub used: Vec<Used>,
}

/// The server has changed to a new membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The membership.
    pub generation: u32,
    /// Rounds before this one are done.
    pub oldest: Round,
}

/// How a control connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The other end said goodbye, for this reason.
    Goodbye(String),
    /// The other end reported a fault.
    Refused(Refusal),
    /// The connection broke.
    Broken(String),
    /// The connection broke because nothing was acknowledged during the timeout.
    Unacknowledged(String),
    /// Nothing arrived during the timeout.
    Silent(String),
}

/// Why a connection is refused, or a job ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The kind, for programs.
    pub code: RefusalCode,
    /// The rank concerned.
    pub rank: Option<Rank>,
    /// The reason and the remedy, for people.
    pub text: String,
}

/// Kinds of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCode {
    /// A message that is out of order, or that the plan does not allow.
    Protocol,
    /// There is no place for the connection now.
    Busy,
    /// Ranks differ in job, world or plan.
    Plan,
    /// A rank or a server is lost.
    Lost,
    /// The other end closes.
    Closing,
    /// Anything else.
    Other,
}

impl Refusal {
    /// A refusal that concerns no particular rank.
    pub fn new(code: RefusalCode, text: impl fmt::Display) -> Self {
        Self { code, rank: None, text: text.to_string() }
    }

    /// The same refusal, about a rank.
    #[must_use]
    pub fn about(self, rank: Rank) -> Self {
        Self { rank: Some(rank), ..self }
    }

    /// The refusal of something that the protocol does not allow a rank.
    pub(crate) fn protocol(rank: Rank, text: impl fmt::Display) -> Self {
        Self::new(RefusalCode::Protocol, text).about(rank)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}
