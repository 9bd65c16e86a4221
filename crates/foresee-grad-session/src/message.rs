// SPDX-License-Identifier: Apache-2.0
//! Messages between a rank and a server, as the machines exchange them.
//!
//! The driver translates them from and to the frames of `foresee-wire`, which bounds every list and text while it
//! reads. Plans and sets of tensors stay bytes here until the plan that they belong to is known.

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
    /// The rank pushes no more in a round.
    RoundEnd {
        /// The round.
        round: Round,
        /// Tensors that the rank did not push in it, as bytes of a set.
        absent: Vec<u8>,
    },
    /// The rank holds everything of a round.
    Got(Round),
    /// The state of a rank that connects again.
    Resume(Resume),
    /// Another server reported the loss of a rank.
    Lost(LostRank),
    /// The state of a rank after a loss, sent to the first server.
    Known(Known),
    /// The state that all ranks resume from after a loss.
    Change(Change),
}

impl RankMessage {
    /// The kind of frame that carries the message, as errors name it.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Plan(_) => "PLAN",
            Self::RoundEnd { .. } => "ROUND_END",
            Self::Got(_) => "GOT",
            Self::Resume(_) => "RESUME",
            Self::Lost(_) => "LOST",
            Self::Known(_) => "KNOWN",
            Self::Change(_) => "CHANGE",
        }
    }
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
    /// Every rank holds everything of a round.
    RoundDone(Round),
    /// The answer to [`RankMessage::Resume`].
    Resumed(Resumed),
    /// The loss of a rank, for the first server.
    Lost(LostRank),
    /// A new membership that the first server proposes.
    Members(NewMembers),
    /// The state that all ranks resume from after a loss.
    Change(Change),
    /// The server has changed to a new membership.
    Changed(Changed),
    /// The ranks that the server waits for, as a text.
    Waiting(String),
}

impl ServerMessage {
    /// The kind of frame that carries the message, as errors name it.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Plan { .. } => "PLAN",
            Self::Used(_) => "USED",
            Self::RoundDone(_) => "ROUND_DONE",
            Self::Resumed(_) => "RESUMED",
            Self::Lost(_) => "LOST",
            Self::Members(_) => "MEMBERS",
            Self::Change(_) => "CHANGE",
            Self::Changed(_) => "CHANGED",
            Self::Waiting(_) => "WAITING",
        }
    }
}

/// The tensors that a round used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Used {
    /// The round.
    pub round: Round,
    /// The tensors, as bytes of a set.
    pub used: Vec<u8>,
}

/// The state of a rank that connects again.
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
    /// The membership of the plan that goes on.
    pub generation: u32,
    /// Rounds before this one are done.
    pub oldest: Round,
    /// Whether the server still has the sums of the connection that broke.
    pub knows: bool,
}

/// A rank that is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRank {
    /// The rank.
    pub rank: Rank,
    /// The reason, as a text.
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
    /// The reason, as a text.
    pub why: String,
}

/// The state of a rank after a loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The new membership.
    pub generation: u32,
    /// The oldest round of which the rank retains gradients.
    pub oldest: Round,
    /// What later rounds used, as far as the rank was told; up to [`OPEN_ROUNDS_MAX`].
    pub used: Vec<Used>,
}

/// The state that all ranks resume from after a loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The new membership.
    pub generation: u32,
    /// The members, one bit per rank.
    pub live: Vec<u8>,
    /// Rounds before this one are done.
    pub oldest: Round,
    /// What later rounds used, as far as any rank was told; up to [`OPEN_ROUNDS_MAX`].
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
    /// The other end left in peace, for this reason.
    Goodbye(String),
    /// The other end reported what went wrong.
    Refused(Refusal),
    /// The connection broke.
    Broken(String),
    /// The connection broke because nothing was acknowledged for the whole timeout.
    Unacknowledged(String),
    /// Nothing arrived for the whole timeout.
    Silent(String),
}

/// Why a connection is refused, or a job ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The kind, for programs.
    pub code: RefusalCode,
    /// The rank that it is about.
    pub rank: Option<Rank>,
    /// The reason and the remedy, for people.
    pub text: String,
}

/// Kinds of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCode {
    /// A message that is out of turn, or that the plan does not allow.
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
    /// A refusal that is about no rank in particular.
    pub fn new(code: RefusalCode, text: impl fmt::Display) -> Self {
        Self { code, rank: None, text: text.to_string() }
    }

    /// The same, about a rank.
    #[must_use]
    pub fn about(self, rank: Rank) -> Self {
        Self { rank: Some(rank), ..self }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}
