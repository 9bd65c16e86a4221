// SPDX-License-Identifier: Apache-2.0
//! Reasons why gradients cannot be exchanged any longer.
//!
//! Errors of the wire and of the queue are carried along. Here the rank or server is known, and the remedy for the
//! user.

use std::net::SocketAddr;
use std::sync::Arc;

use foresee_grad_queue::QueueError;
use foresee_units::Rank;
use foresee_wire::WireError;

/// What ended an exchange, or kept it from starting. It stays as it is: clones are cheap.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// A setting that cannot be.
    #[error("{name} cannot be {found}: {rule}")]
    Setting {
        /// Its name.
        name: &'static str,
        /// Its value.
        found: String,
        /// What it may be.
        rule: &'static str,
    },
    /// A server cannot be reached, or a socket cannot be had.
    #[error("server {server} at {address}: {why}")]
    Server {
        /// Which one, in the order of the servers.
        server: u16,
        /// Where it is.
        address: SocketAddr,
        /// What happened.
        why: Arc<WireError>,
    },
    /// A server was there and is no more.
    #[error("lost server {server} at {address}: {why}; {missing}")]
    ServerLost {
        /// Which one.
        server: u16,
        /// Where it was.
        address: SocketAddr,
        /// What was seen of it last.
        why: String,
        /// What was still wanted of it.
        missing: String,
    },
    /// A rank was lost, as a server tells.
    #[error("lost rank {rank}: {why}; {missing}")]
    RankLost {
        /// The rank.
        rank: Rank,
        /// What the server saw.
        why: String,
        /// What was still wanted.
        missing: String,
    },
    /// The ranks do not train the same model, or not together.
    #[error("{0}")]
    Disagree(String),
    /// A server refused something of this rank.
    #[error("server {server} at {address} refused: {why}")]
    Refused {
        /// Which one.
        server: u16,
        /// Where it is.
        address: SocketAddr,
        /// Its words.
        why: String,
    },
    /// A message or a gradient that the plan does not allow.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The system refused something.
    #[error("{0}")]
    System(Arc<WireError>),
    /// What ended the exchange of this rank's machine, in the words of the rank that exchanges for it.
    #[error("{text}")]
    OfMachine {
        /// Who was lost.
        lost: Lost,
        /// What happened, and what is missing.
        text: String,
    },
    /// It was closed here.
    #[error("the exchange was closed")]
    Closed,
}

impl ExchangeError {
    /// Something was asked for that needs a plan.
    pub(crate) fn no_plan() -> Self {
        Self::Setting { name: "a round", found: "begun".into(), rule: "ranks agree on a plan first" }
    }
}

/// Who was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// A rank.
    Rank(Rank),
    /// A server.
    Server(SocketAddr),
    /// Nobody, or nobody in particular.
    Nobody,
}
