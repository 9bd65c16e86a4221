// SPDX-License-Identifier: Apache-2.0
//! One rank's side of the protocol: its servers, the plan, and what may have to be sent again.
//!
//! A rank has a control connection and a data connection to each server. It proposes a plan, and hears what all agreed on
//! (`agree`). A connection that breaks is made again, to the same server or to one that took its place (`reconnect`); then
//! the rank reports its state and repeats what may be missing (`resume`, `replay`). When another rank is lost it follows
//! the first server to a new membership (`membership`). `Collector` decides about rounds, tensors and packets (`rounds`).

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
use replay::Replay;
use used::UsedReports;

/// Settings of a rank.
#[derive(Clone, Debug)]
pub struct RankSettings {
    /// The rank.
    pub rank: Rank,
    /// Ranks of the job.
    pub world: u32,
    /// Ranks of its node that exchange as one.
    pub local: u32,
    /// The addresses of the servers, as messages name them.
    pub servers: Vec<String>,
    /// The first of them, which are lost with the ranks that they are beside.
    pub beside: u16,
    /// Whether connections that break are made again, and another server may take the place of a lost one.
    pub recover: bool,
    /// Whether the job goes on without ranks that are lost.
    pub survives: bool,
    /// How long a server is looked for.
    pub timeout: Nanos,
    /// How long a control connection has to report why the data connection beside it broke.
    pub heartbeat: Nanos,
    /// The longest attempt to connect.
    pub handshake: Nanos,
    /// How long a server waits for this rank to reconnect.
    pub reconnect: Nanos,
}

impl RankSettings {
    /// Whether another server may take the place of this one.
    fn may_be_replaced(&self, server: ServerId) -> bool {
        self.recover && server.0 >= self.beside
    }

    /// Whether gradients are retained until every rank has everything of their round.
    fn retains(&self) -> bool {
        self.recover || self.survives
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
    done_later: Vec<(ServerId, Round)>,
    membership: Membership,
    notices: Vec<String>,
    replaced: u64,
    reconnected: u64,
    is_over: bool,
    actions: VecDeque<RankAction>,
}

/// The plan, and how far this rank is in its rounds.
#[derive(Debug)]
struct RankPlan {
    plan: Arc<Plan>,
    collect: Collector,
    /// What the last rounds used, oldest first.
    used: VecDeque<(Round, TensorSet)>,
    reports: UsedReports,
    replay: Replay,
    /// Sums of rounds up to this one may have been sent under the membership before the last change.
    changed_in: Option<Round>,
    /// Sums of rounds up to this one may have been sent by a server that was replaced.
    replaced_in: Option<Round>,
}

impl RankSession {
    /// A rank that is connected to every server: to these processes of them.
    pub fn new(settings: RankSettings, processes: &[u64]) -> Self {
        Self {
            agreement: Agreement::new(processes.len()),
            membership: Membership::new(processes.len()),
            servers: processes.iter().copied().map(ServerConnection::new).collect(),
            settings,
            plan: None,
            resuming: Vec::new(),
            done_later: Vec::new(),
            notices: Vec::new(),
            replaced: 0,
            reconnected: 0,
            is_over: false,
            actions: VecDeque::new(),
        }
    }

    /// The next action. The driver performs actions in this order.
    pub fn poll_action(&mut self) -> Option<RankAction> {
        self.actions.pop_front()
    }

    /// The time at which [`handle_timeout`](Self::handle_timeout) has something to do.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        if self.is_over {
            return self.servers.iter().filter_map(ServerConnection::suspicion_timeout).min();
        }
        let waits = self.ids().filter_map(|server| self.server_timeout(server));
        waits.chain(self.agreement.timeout()).min()
    }

    /// Time has passed: connections are ended whose server did not report why another one broke, and lost servers are
    /// dialled or given up.
    pub fn handle_timeout(&mut self, now: Nanos) {
        self.act_on_suspicions(now);
        if !self.is_over {
            self.act_on_reconnects(now);
            self.extend_agreement(now);
        }
    }

    /// Nothing goes on any more, for a reason of the driver.
    pub fn handle_stopped(&mut self) {
        self.is_over = true;
    }

    /// Whether nothing goes on any more.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Nothing goes on any more, for this reason unless there was one before.
    fn fail(&mut self, failure: RankFailure) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.actions.push_back(RankAction::Fail(failure));
        }
    }

    /// A message of a server, over the pair of connections with this number. A message that comes back is to be reported
    /// again once something has changed: what it depends on comes from another server.
    ///
    /// # Errors
    /// What the server may not send; nothing goes on then.
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
        let received = self.receive(server, message, now).map_err(|failure| accuse(server, failure));
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
        let survives = self.settings.survives;
        if let Some(connection) = self.servers.get_mut(usize::from(server.0)) {
            connection.waiting = match &message {
                ServerMessage::Waiting(text) => Some(text.clone()),
                _ => None,
            };
        }
        match message {
            ServerMessage::Waiting(_) => {}
            // Of rounds under a membership that does not count any more: repeated, or found anew.
            ServerMessage::Used(_) | ServerMessage::RoundDone(_) if self.membership.ignores(server) => {}
            ServerMessage::Lost(lost) if survives => {
                if server != membership::FIRST {
                    self.send(membership::FIRST, RankMessage::Lost(lost));
                }
            }
            ServerMessage::Members(members) if survives => self.receive_members(server, members)?,
            ServerMessage::Change(change) if survives => self.receive_change(server, change)?,
            ServerMessage::Changed(changed) if survives => {
                let is_handled = self.receive_changed(server, changed)?;
                return Ok((!is_handled).then_some(ServerMessage::Changed(changed)));
            }
            ServerMessage::Plan { generation, body } => self.receive_plan(server, generation, body, now)?,
            ServerMessage::Used(used) => self.receive_used(server, used.round, &used.used)?,
            ServerMessage::RoundDone(round) => self.receive_done(server, round)?,
            ServerMessage::Resumed(resumed) => self.receive_resumed(server, resumed, now)?,
            other => {
                let why = format!("it sends {}, which is not for this rank", other.kind());
                let missing = "it may be of another version".into();
                return Err(RankFailure::ServerLost { server, why, missing });
            }
        }
        Ok(None)
    }

    /// Sends a message to a server that knows the job.
    fn send(&mut self, server: ServerId, message: RankMessage) {
        if let Some(connection) = self.servers.get(usize::from(server.0)).filter(|own| own.is_open()) {
            self.actions.push_back(RankAction::Send { server, pair: connection.pair, message });
        }
    }

    fn plan_mut(&mut self) -> Result<&mut RankPlan, RankFailure> {
        self.plan.as_mut().ok_or(RankFailure::NoPlan)
    }

    fn ids(&self) -> impl Iterator<Item = ServerId> + use<> {
        (0..self.servers.len()).map(|at| ServerId(u16::try_from(at).expect("there are up to 4096")))
    }

    fn is_current(&self, server: ServerId, pair: u32) -> bool {
        self.servers.get(usize::from(server.0)).is_some_and(|connection| connection.pair == pair)
    }

    fn are_open(&self) -> bool {
        self.servers.iter().all(ServerConnection::is_open)
    }
}

/// The failure of a rank for which something that a server sent is the cause.
fn accuse(server: ServerId, failure: RankFailure) -> RankFailure {
    match failure {
        RankFailure::NoPlan => RankFailure::strange(server, "speaks of rounds before a plan"),
        // A rank may have told servers different things, and no server is to blame.
        RankFailure::Queue(why @ QueueError::UsedDiffers { .. }) => RankFailure::Disagree(why.to_string()),
        RankFailure::Queue(why) => {
            RankFailure::strange(server, &format!("sends what the plan does not allow ({why})"))
        }
        other => other,
    }
}

impl From<QueueError> for RankFailure {
    fn from(why: QueueError) -> Self {
        Self::Queue(why)
    }
}
