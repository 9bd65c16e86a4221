// SPDX-License-Identifier: Apache-2.0
//! One rank's side of the protocol: its servers, the plan, and what may have to be sent again.
//!
//! A rank has a control connection and a data connection to each server. It proposes a plan and receives the one that
//! all ranks agreed on (`agree`). A broken connection is re-established, to the same server or to its replacement
//! (`reconnect`); then the rank reports its state and repeats what may be missing (`resume`, `replay`). After the loss
//! of another rank it follows the first server to a new membership (`membership`). [`Collector`] decides about rounds,
//! tensors and packets (`rounds`).

mod action;
mod agree;
mod connection;
mod membership;
mod reconnect;
mod replay;
mod resume;
mod rounds;
mod status;
mod used;

use std::collections::VecDeque;
use std::sync::Arc;

use foresee_grad_queue::{Collector, Plan, QueueError, Round, ServerId, TensorSet};
use foresee_units::{Nanos, Rank};

use crate::{RankMessage, ServerMessage};
pub use action::{DialFault, RankAction, RankFailure, SumAdmission};
use agree::Agreement;
use connection::ServerConnection;
use membership::Membership;
use replay::ReplayBuffer;
use used::UsedReports;

/// Settings of a rank.
#[derive(Clone, Debug)]
pub struct RankSettings {
    /// The rank.
    pub rank: Rank,
    /// Ranks of the job.
    pub world: u32,
    /// Ranks of its node that exchange as one.
    pub node_ranks: u32,
    /// The addresses of the servers, for messages.
    pub servers: Vec<String>,
    /// How many of them, from the first, are co-located with ranks and are lost with those.
    pub colocated: u16,
    /// Whether broken connections are re-established, and another server may replace a lost one.
    pub recovers: bool,
    /// Whether the job continues without lost ranks.
    pub continues_after_loss: bool,
    /// How long this rank tries to reach a server.
    pub timeout: Nanos,
    /// How long a control connection may take to report why the data connection to the same server broke.
    pub heartbeat: Nanos,
    /// The longest attempt to connect.
    pub handshake: Nanos,
    /// How long a server waits for this rank to reconnect.
    pub grace_period: Nanos,
}

impl RankSettings {
    /// Whether another server may replace this one.
    fn is_replaceable(&self, server: ServerId) -> bool {
        self.recovers && server.0 >= self.colocated
    }

    /// Whether gradients are retained until every rank has all results of their round.
    fn retains(&self) -> bool {
        self.recovers || self.continues_after_loss
    }
}

/// A rank.
///
/// The driver reports facts by `handle_*` and then performs every action of [`poll_action`](Self::poll_action), in
/// order and before the next fact. It calls [`handle_timeout`](Self::handle_timeout) at
/// [`poll_timeout`](Self::poll_timeout).
#[derive(Debug)]
pub struct RankSession {
    settings: RankSettings,
    plan: Option<RankPlan>,
    servers: Vec<ServerConnection>,
    agreement: Agreement,
    /// Servers that were sent this rank's state, until all of them have answered.
    resuming: Vec<ServerId>,
    /// Rounds that other servers report as done; counted once no server is resuming.
    deferred_done: Vec<(ServerId, Round)>,
    membership: Membership,
    notices: Vec<String>,
    replacements: u64,
    reconnects: u64,
    is_over: bool,
    actions: VecDeque<RankAction>,
}

/// The plan, and this rank's progress in its rounds.
#[derive(Debug)]
struct RankPlan {
    plan: Arc<Plan>,
    collector: Collector,
    /// The used tensors of the last rounds, oldest first.
    used: VecDeque<(Round, TensorSet)>,
    reports: UsedReports,
    replay: ReplayBuffer,
    /// Sums of rounds up to this one may have been sent under the membership before the last change.
    changed_round: Option<Round>,
    /// Sums of rounds up to this one may have been sent by a server that was replaced.
    replaced_round: Option<Round>,
}

impl RankSession {
    /// A rank that is connected to these processes of its servers.
    pub fn new(settings: RankSettings, processes: &[u64]) -> Self {
        Self {
            agreement: Agreement::new(processes.len()),
            membership: Membership::new(processes.len()),
            servers: processes.iter().copied().map(ServerConnection::new).collect(),
            settings,
            plan: None,
            resuming: Vec::new(),
            deferred_done: Vec::new(),
            notices: Vec::new(),
            replacements: 0,
            reconnects: 0,
            is_over: false,
            actions: VecDeque::new(),
        }
    }

    /// The next action. The driver performs actions in this order.
    pub fn poll_action(&mut self) -> Option<RankAction> {
        self.actions.pop_front()
    }

    /// The time of the next call of [`handle_timeout`](Self::handle_timeout).
    pub fn poll_timeout(&self) -> Option<Nanos> {
        if self.is_over {
            return self.servers.iter().filter_map(ServerConnection::suspicion_timeout).min();
        }
        let timeouts = self.connections().filter_map(|(server, _)| self.server_timeout(server));
        timeouts.chain(self.agreement.until).min()
    }

    /// Interrupt control connections that did not report why the data connection broke, and dial or give up lost
    /// servers.
    pub fn handle_timeout(&mut self, now: Nanos) {
        self.expire_suspicions(now);
        if !self.is_over {
            self.advance_reconnects(now);
            self.extend_agreement(now);
        }
    }

    /// Stop, for a reason of the driver.
    pub fn handle_stopped(&mut self) {
        self.is_over = true;
    }

    /// Whether the session has ended.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// End the session for this reason, unless it has ended before.
    fn fail(&mut self, failure: RankFailure) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.actions.push_back(RankAction::Fail(failure));
        }
    }

    /// Handle a message of a server, over the pair of connections with this number. A returned message depends on
    /// another server's message: report it again after the next change.
    ///
    /// # Errors
    /// A message that the server may not send; the session ends.
    pub fn handle_message(
        &mut self,
        server: ServerId,
        pair: u32,
        message: ServerMessage,
        now: Nanos,
    ) -> Result<Option<ServerMessage>, RankFailure> {
        if !self.is_current(server, pair) {
            return Ok(None);
        }
        let received = self.receive(server, message, now).map_err(|failure| blame(server, failure));
        if let Err(failure) = &received {
            self.fail(failure.clone());
        }
        received
    }

    fn receive(
        &mut self,
        server: ServerId,
        message: ServerMessage,
        now: Nanos,
    ) -> Result<Option<ServerMessage>, RankFailure> {
        let continues_after_loss = self.settings.continues_after_loss;
        if let Some(connection) = self.connection_mut(server) {
            connection.waiting = match &message {
                ServerMessage::Waiting(text) => Some(text.clone()),
                _ => None,
            };
        }
        match message {
            ServerMessage::Waiting(_) => {}
            // Of an earlier membership: the server repeats or recomputes it under the new one.
            ServerMessage::Used(_) | ServerMessage::RoundDone(_) if self.membership.is_outdated(server) => {}
            ServerMessage::Plan { generation, body } => self.receive_plan(server, generation, body, now)?,
            ServerMessage::Used(used) => self.receive_used(server, used.round, &used.used)?,
            ServerMessage::RoundDone(round) => self.receive_done(server, round)?,
            ServerMessage::Resumed(resumed) => self.receive_resumed(server, resumed, now)?,
            _ if !continues_after_loss => {
                let what = "changes the membership of a job that ends when a rank is lost";
                return Err(RankFailure::unexpected(server, what));
            }
            ServerMessage::Lost(lost) => {
                if server != membership::FIRST {
                    self.send(membership::FIRST, RankMessage::Lost(lost));
                }
            }
            ServerMessage::Members(members) => self.receive_members(server, members)?,
            ServerMessage::Change(change) => self.receive_change(server, change)?,
            ServerMessage::Changed(changed) => {
                let is_handled = self.receive_changed(server, changed)?;
                return Ok((!is_handled).then_some(ServerMessage::Changed(changed)));
            }
        }
        Ok(None)
    }

    /// Send a message to a server that knows the job.
    fn send(&mut self, server: ServerId, message: RankMessage) {
        if let Some(connection) = self.connection(server).filter(|connection| connection.is_open()) {
            let pair = connection.pair;
            self.actions.push_back(RankAction::Send { server, pair, message });
        }
    }

    fn plan_mut(&mut self) -> Result<&mut RankPlan, RankFailure> {
        self.plan.as_mut().ok_or(RankFailure::NoPlan)
    }

    /// All servers, with their connections.
    fn connections(&self) -> impl Iterator<Item = (ServerId, &ServerConnection)> {
        (0..).map(ServerId).zip(&self.servers)
    }

    fn ids(&self) -> impl Iterator<Item = ServerId> + use<> {
        (0..).map(ServerId).take(self.servers.len())
    }

    fn connection(&self, server: ServerId) -> Option<&ServerConnection> {
        self.servers.get(usize::from(server.0))
    }

    fn connection_mut(&mut self, server: ServerId) -> Option<&mut ServerConnection> {
        self.servers.get_mut(usize::from(server.0))
    }

    fn is_current(&self, server: ServerId, pair: u32) -> bool {
        self.connection(server).is_some_and(|connection| connection.pair == pair)
    }
}

/// Convert a failure whose cause is a message of a server.
fn blame(server: ServerId, failure: RankFailure) -> RankFailure {
    match failure {
        RankFailure::NoPlan => RankFailure::unexpected(server, "names rounds before a plan"),
        // A rank may have reported different sets to the servers, so no server is at fault.
        RankFailure::Queue(why @ QueueError::UsedDiffers { .. }) => RankFailure::Disagree(why.to_string()),
        RankFailure::Queue(why) => {
            RankFailure::unexpected(server, &format!("sends what the plan does not allow ({why})"))
        }
        other => other,
    }
}

impl From<QueueError> for RankFailure {
    fn from(why: QueueError) -> Self {
        Self::Queue(why)
    }
}
