// SPDX-License-Identifier: Apache-2.0
//! Actions of a rank for its driver, and reasons of failure.

use foresee_grad_queue::{Claim, QueueError, Round, ServerId, TensorId};
use foresee_units::{Nanos, Rank};

use crate::RankMessage;

/// An action for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RankAction {
    /// Send a message over the control connection of a pair.
    Send {
        /// The receiver.
        server: ServerId,
        /// The pair of connections.
        pair: u32,
        /// The message.
        message: RankMessage,
    },
    /// Close both connections to a server.
    Close(ServerId),
    /// End the control connection to a server, so that its reader reports the reason.
    Interrupt(ServerId),
    /// The set of open servers has changed.
    Route,
    /// Offer a gradient to one server.
    Offer {
        /// The server.
        server: ServerId,
        /// The gradient's round.
        round: Round,
        /// The tensor.
        tensor: TensorId,
        /// The membership under which it is sent.
        generation: u32,
    },
    /// Gradients of rounds before this one need no longer be retained.
    Forget(Round),
    /// Dial both connections to a server, once; then report [`begin_pair`](super::RankSession::begin_pair) and
    /// [`handle_connected`](super::RankSession::handle_connected), or
    /// [`handle_not_connected`](super::RankSession::handle_not_connected).
    Dial {
        /// The server.
        server: ServerId,
        /// The longest attempt.
        within: Nanos,
        /// The latest end of the attempt.
        until: Nanos,
    },
    /// The session has ended.
    Fail(RankFailure),
}

/// Why a session ends, or a call is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RankFailure {
    /// A server is lost.
    ServerLost {
        /// The server.
        server: ServerId,
        /// The reason.
        why: String,
        /// The results that are missing.
        missing: String,
    },
    /// A rank is lost, as a server reports.
    RankLost {
        /// The rank.
        rank: Rank,
        /// The reason.
        why: String,
        /// The results that are missing.
        missing: String,
    },
    /// Ranks train different models, or are not in step.
    Disagree(String),
    /// A server refused a message of this rank.
    Refused {
        /// The server.
        server: ServerId,
        /// The text of the refusal.
        why: String,
    },
    /// A message or call that the plan does not allow.
    Queue(QueueError),
    /// There is no plan yet.
    NoPlan,
    /// A tensor may not be pushed.
    Push {
        /// Its name.
        name: String,
        /// The round.
        round: Round,
    },
}

impl RankFailure {
    /// A server sent what no server of this version sends.
    pub(super) fn unexpected(server: ServerId, what: &str) -> Self {
        let why = format!("it {what}; it may be of another version");
        Self::ServerLost { server, why, missing: "this is a defect of one of the two".into() }
    }
}

/// Why a server could not be connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialFault {
    /// A later attempt would fail in the same way.
    Permanent,
    /// No program listens at the address.
    NotListening,
    /// A later attempt may succeed.
    Temporary,
}

/// What the driver does with a sum that a server is about to send.
#[derive(Debug)]
pub enum SumAdmission {
    /// Read it, of this round, and report [`handle_received`](super::RankSession::handle_received) or
    /// [`handle_interrupted`](super::RankSession::handle_interrupted).
    Read(Claim, Round),
    /// Read and discard it.
    Discard,
    /// Read and discard it: its bytes are present, and only its receipt counts.
    Confirmed,
    /// Ask again after the next change.
    Retry,
}
