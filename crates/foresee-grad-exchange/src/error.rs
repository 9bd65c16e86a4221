// SPDX-License-Identifier: Apache-2.0
//! Reasons why an exchange of gradients ended or could not start.
//!
//! Errors of the wire and of the queue are wrapped: this crate knows the rank or server, and the remedy for the user.

use std::net::SocketAddr;
use std::sync::Arc;

use foresee_grad_queue::{Plan, QueueError, Round, TensorId};
use foresee_units::Rank;
use foresee_wire::WireError;

/// The reason why an exchange ended or could not start. Clones are cheap.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// An invalid setting or call.
    #[error("{name} cannot be {found}: {rule}")]
    Setting {
        /// What is set.
        name: &'static str,
        /// Its value.
        found: String,
        /// The rule for its values.
        rule: &'static str,
    },
    /// A server cannot be reached, or there is no socket for it.
    #[error("server {server} at {address}: {why}")]
    Server {
        /// Its place in the list of servers.
        server: u16,
        /// Its address.
        address: SocketAddr,
        /// The cause.
        why: Arc<WireError>,
    },
    /// A connected server was lost.
    #[error("lost server {server} at {address}: {why}; {missing}")]
    ServerLost {
        /// Its place in the list of servers.
        server: u16,
        /// Its address.
        address: SocketAddr,
        /// The observed cause.
        why: String,
        /// What this rank still waited for.
        missing: String,
    },
    /// A rank was lost.
    #[error("lost rank {rank}: {why}; {missing}")]
    RankLost {
        /// The rank.
        rank: Rank,
        /// The cause that a server or the node's leader observed.
        why: String,
        /// What was still waited for.
        missing: String,
    },
    /// The ranks do not train the same model, or are out of step.
    #[error("{0}")]
    Disagree(String),
    /// A server refused a request of this rank.
    #[error("server {server} at {address} refused: {why}")]
    Refused {
        /// Its place in the list of servers.
        server: u16,
        /// Its address.
        address: SocketAddr,
        /// Its message.
        why: String,
    },
    /// A message or a gradient that the plan does not allow.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The system refused a socket, a thread or memory.
    #[error("{0}")]
    System(Arc<WireError>),
    /// The exchange of this rank's node failed; the text is that of its leader.
    #[error("{text}")]
    NodeFailed {
        /// The lost peer.
        lost: LostPeer,
        /// The cause, and what is missing.
        text: String,
    },
    /// This process closed the exchange.
    #[error("the exchange was closed")]
    Closed,
}

impl From<WireError> for ExchangeError {
    fn from(why: WireError) -> Self {
        Self::System(Arc::new(why))
    }
}

impl ExchangeError {
    /// A call that needs a plan came before one was agreed on.
    pub(crate) fn no_plan() -> Self {
        Self::Setting { name: "a round", found: "begun".into(), rule: "ranks agree on a plan first" }
    }

    /// A pushed gradient has a size other than its tensor's.
    pub(crate) fn wrong_size(bytes: usize) -> Self {
        let found = format!("{bytes} bytes");
        Self::Setting { name: "a gradient", found, rule: "it has the bytes of its plan" }
    }

    /// A tensor was pushed twice in a round, or before its last average had arrived.
    pub(crate) fn early_push(name: &str, round: Round) -> Self {
        let found = format!("'{name}' in round {round}");
        let rule = "it is pushed once a round, after its last average has arrived";
        Self::Setting { name: "a push", found, rule }
    }
}

/// Return the plan's id of a tensor that has the id `tensor` in this rank's own list.
pub(crate) fn plan_id(
    plan: &Plan,
    ids: &[TensorId],
    tensor: TensorId,
    rank: Rank,
) -> Result<TensorId, QueueError> {
    let id = ids.get(tensor.0 as usize).copied();
    id.ok_or(QueueError::NoSuchTensor { rank, tensor: tensor.0, tensors: plan.tensors() })
}

/// The peer whose loss ended an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostPeer {
    /// A rank.
    Rank(Rank),
    /// A server.
    Server(SocketAddr),
    /// None, or none in particular.
    Unknown,
}
