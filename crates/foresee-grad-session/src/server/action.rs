// SPDX-License-Identifier: Apache-2.0
//! What a job asks of its driver, and the tickets in which both speak.

use std::sync::Arc;

use foresee_grad_queue::{Members, Plan, Round, Sender, TensorSet};
use foresee_units::Rank;

use super::waits::Wanted;
use crate::{Refusal, ServerMessage};

/// One pair of connections of a rank: control and data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    /// The rank.
    pub rank: Rank,
    /// The pair, by its number in the job.
    pub pair: u32,
}

/// Which of the two connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Messages.
    Control,
    /// Contributions and sums.
    Data,
}

/// What the driver is to do.
#[derive(Clone, Debug)]
pub enum JobAction {
    /// Send a message over a control connection.
    Send {
        /// To whom.
        peer: Peer,
        /// The message.
        message: ServerMessage,
    },
    /// Close both connections of a pair: at once, or after the rank was told the reason.
    Close {
        /// Which.
        peer: Peer,
        /// The reason that the rank is told.
        reason: Option<Refusal>,
    },
    /// End a control connection, so that its reader reports why.
    Interrupt(Peer),
    /// Make slots for a plan, in place of those of the plan before.
    Install(Installation),
    /// Send results for this rank over this pair from now on.
    Route(Peer),
    /// Forget what is being summed: other members count from now on.
    Adopt(Members),
    /// Rounds before this one are done.
    Advance {
        /// The oldest round that is not.
        oldest: Round,
        /// Whether slots may still hold parts of rounds that are done.
        forget: bool,
    },
    /// Tell the slots which tensors a rank skipped, then report [`handle_skipped`](super::ServerJob::handle_skipped).
    Skip(EndTicket),
    /// Search the slots for what the ranks that are waited for owe to a round, then report
    /// [`handle_owed`](super::ServerJob::handle_owed).
    FindOwed(OwedTicket),
    /// Drop the slots: the job has ended.
    Uninstall,
}

/// A plan that holds from now on.
#[derive(Clone, Debug)]
pub struct Installation {
    /// The plan.
    pub plan: Arc<Plan>,
    /// The ranks that exchange.
    pub members: Members,
    /// The first round.
    pub oldest: Round,
}

/// The end of a round of one rank, until the slots know of it.
#[derive(Clone, Debug)]
pub struct EndTicket {
    pub(super) peer: Peer,
    /// The membership under which the plan was agreed on.
    pub(super) plan: u32,
    pub(super) sender: Sender,
    pub(super) skipped: TensorSet,
    pub(super) promised: Option<TensorSet>,
}

impl EndTicket {
    /// The rank, its membership and the round.
    pub fn sender(&self) -> Sender {
        self.sender
    }

    /// The pair of connections over which the rank reported it.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// The tensors that the rank did not push.
    pub fn skipped(&self) -> &TensorSet {
        &self.skipped
    }

    /// Whether ranks were told that the round used this tensor.
    pub fn is_promised(&self, tensor: foresee_grad_queue::TensorId) -> bool {
        self.promised.as_ref().is_some_and(|promised| promised.contains(tensor))
    }
}

/// A wait of ranks for the end of a round, until the slots were searched for its cause.
#[derive(Clone, Debug)]
pub struct OwedTicket {
    pub(super) round: Round,
    pub(super) wanted: Wanted,
    pub(super) waited_for: Members,
}

impl OwedTicket {
    /// The round.
    pub fn round(&self) -> Round {
        self.round
    }

    /// The ranks that are waited for.
    pub fn waited_for(&self) -> &Members {
        &self.waited_for
    }
}
