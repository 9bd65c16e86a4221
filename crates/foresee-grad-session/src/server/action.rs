// SPDX-License-Identifier: Apache-2.0
//! Actions of a job for its driver, and the tickets in them.

use std::sync::Arc;

use foresee_grad_queue::{Members, Plan, Round, Sender, TensorId, TensorSet};
use foresee_units::Rank;

use super::waits::WaitReason;
use crate::{Refusal, ServerMessage};

/// One pair of connections of a rank: control and data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    /// The rank.
    pub rank: Rank,
    /// The number of the pair in the job.
    pub pair: u32,
}

/// The role of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Messages.
    Control,
    /// Contributions and sums.
    Data,
}

/// An action for the driver.
#[derive(Clone, Debug)]
pub enum JobAction {
    /// Send a message over a control connection.
    Send {
        /// The receiver.
        peer: Peer,
        /// The message.
        message: ServerMessage,
    },
    /// Close both connections of a pair: at once, or after the rank was sent the reason.
    Close {
        /// The pair.
        peer: Peer,
        /// The reason for the rank.
        reason: Option<Refusal>,
    },
    /// End a control connection, so that its reader reports the reason.
    Interrupt(Peer),
    /// Create the slots of a plan, in place of those of the last plan.
    Install(Installation),
    /// Send this rank's results over this pair from now on.
    Route(Peer),
    /// Drop unfinished sums: contributions of other members count from now on.
    Adopt(Members),
    /// Rounds before this one are done.
    Advance {
        /// The oldest round that is not done.
        oldest: Round,
        /// Whether slots may contain unfinished sums of done rounds.
        forget: bool,
    },
    /// Let the slots handle the tensors that a rank skipped, then report
    /// [`handle_skipped`](super::ServerJob::handle_skipped).
    Skip(EndTicket),
    /// Search the slots for the missing contributions of the awaited ranks, then report
    /// [`handle_missing`](super::ServerJob::handle_missing).
    FindMissing(MissingTicket),
    /// Drop the slots: the job has ended.
    Uninstall,
}

/// A plan that starts.
#[derive(Clone, Debug)]
pub struct Installation {
    /// The plan.
    pub plan: Arc<Plan>,
    /// The ranks that exchange.
    pub members: Members,
    /// The first round.
    pub oldest: Round,
}

/// One rank's end of a round that the slots have not handled yet.
#[derive(Clone, Debug)]
pub struct EndTicket {
    /// The pair of connections over which the rank reported it.
    pub peer: Peer,
    /// The rank, its membership and the round.
    pub sender: Sender,
    /// The tensors that the rank did not push.
    pub skipped: TensorSet,
    /// The membership under which the plan was agreed on.
    pub(super) plan: u32,
    pub(super) promised: Option<TensorSet>,
}

impl EndTicket {
    /// Whether the server has reported to ranks that the round used this tensor.
    pub fn is_promised(&self, tensor: TensorId) -> bool {
        self.promised.as_ref().is_some_and(|promised| promised.contains(tensor))
    }
}

/// A wait for a round, whose cause is searched in the slots.
#[derive(Clone, Debug)]
pub struct MissingTicket {
    /// The round.
    pub round: Round,
    /// The ranks that others wait for.
    pub awaited: Members,
    pub(super) reason: WaitReason,
}
