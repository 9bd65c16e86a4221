// SPDX-License-Identifier: Apache-2.0
//! What a rank's machine asks of its driver, and why it fails.

use foresee_grad_queue::{Claim, QueueError, Round, ServerId, TensorId};
use foresee_units::{Nanos, Rank};

use crate::RankMessage;

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RankAction {
    /// Send a message over the control connection of a pair.
    Send {
        /// To whom.
        server: ServerId,
        /// Which pair of connections.
        pair: u32,
        /// The message.
        message: RankMessage,
    },
    /// Close both connections to a server.
    Close(ServerId),
    /// End the control connection to a server, so that its reader reports why.
    Interrupt(ServerId),
    /// Other servers are open than before.
    Route,
    /// Offer a gradient to one server, under this membership.
    Offer {
        /// To whom.
        server: ServerId,
        /// Of which round.
        round: Round,
        /// The tensor.
        tensor: TensorId,
        /// The membership.
        generation: u32,
    },
    /// Gradients of rounds before this one need not be retained.
    Forget(Round),
    /// Dial both connections to a server, once; then report [`begin_pair`](super::RankSession::begin_pair) and
    /// [`handle_connected`](super::RankSession::handle_connected), or
    /// [`handle_not_connected`](super::RankSession::handle_not_connected).
    Dial {
        /// To whom.
        server: ServerId,
        /// The longest attempt.
        within: Nanos,
        /// When it ends at the latest.
        until: Nanos,
    },
    /// Nothing goes on any more.
    Fail(RankFailure),
}

/// Why a rank cannot go on, or may not do something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RankFailure {
    /// A server is lost.
    ServerLost {
        /// Which.
        server: ServerId,
        /// What was seen of it last.
        why: String,
        /// What was still wanted of it.
        missing: String,
    },
    /// A rank is lost, as a server reports.
    RankLost {
        /// Which.
        rank: Rank,
        /// What the server saw.
        why: String,
        /// What was still wanted.
        missing: String,
    },
    /// Ranks do not train the same model, or not together.
    Disagree(String),
    /// A server refused something of this rank.
    Refused {
        /// Which.
        server: ServerId,
        /// Its words.
        why: String,
    },
    /// Something that the plan does not allow.
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
    /// A server did what none of this version does.
    pub(super) fn strange(server: ServerId, what: &str) -> Self {
        let why = format!("it {what}; it may be of another version");
        Self::ServerLost { server, why, missing: "this is a defect of one of the two".into() }
    }
}

/// Why a server could not be connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialFault {
    /// A later attempt would end alike.
    Permanent,
    /// No program listens there.
    NobodyThere,
    /// A later attempt may succeed.
    Temporary,
}

/// What becomes of a sum that a server is about to send.
#[derive(Debug)]
pub enum SumAdmission {
    /// Read it, of this round, and report [`handle_arrived`](super::RankSession::handle_arrived) or
    /// [`handle_cut`](super::RankSession::handle_cut).
    Read(Claim, Round),
    /// Read it to nowhere.
    Discard,
    /// The same: it was there already, and counts once more.
    Confirmed,
    /// Ask again once something has changed.
    Later,
}
