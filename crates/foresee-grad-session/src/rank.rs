// SPDX-License-Identifier: Apache-2.0
//! One rank's side of the protocol: its servers, the plan, and what may have to be sent again.
//!
//! A rank has a control connection and a data connection to each server. It proposes a plan, and hears what all agreed on
//! (`agree`). A connection that breaks is made again, to the same server or to one that took its place (`reconnect`); then
//! the rank reports its state and repeats what may be missing (`resume`, `replay`). When another rank is lost it follows
//! the first server to a new membership (`membership`). `Collect` decides about rounds, tensors and packets.

mod action;
mod agree;
mod connection;
mod membership;
mod reconnect;
mod replay;
mod resume;

use std::collections::VecDeque;
use std::sync::Arc;

use foresee_grad_queue::{
    Arrival, Claim, Collect, CollectAction, Landed, PacketId, Plan, QueueError, Round, ServerId, SumHeader,
    TensorId, TensorSet,
};
use foresee_units::{Nanos, Rank};

use crate::{RankMessage, ServerMessage};
pub use action::{DialFault, RankAction, RankFailure, SumAdmission};
use agree::Agreement;
use connection::{Breaks, ConnectionState, ServerConnection};
use membership::Membership;
use replay::Replay;

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
    collect: Collect,
    /// What the last rounds used, oldest first.
    used: VecDeque<(Round, TensorSet)>,
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
        let received = self.receive(server, message, now);
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

    /// A server reports what a round used.
    fn receive_used(&mut self, server: ServerId, round: Round, set: &[u8]) -> Result<(), RankFailure> {
        let plan = self.plan_mut()?;
        let used = TensorSet::from_bytes(set, plan.plan.tensors())?;
        plan.collect.handle_used(server, round, &used)?;
        if plan.used.back().is_none_or(|(last, _)| *last < round) {
            plan.used.push_back((round, used));
            if plan.used.len() > 2 {
                plan.used.pop_front();
            }
        }
        self.go_on();
        Ok(())
    }

    /// A server reports that a round is done.
    fn receive_done(&mut self, server: ServerId, round: Round) -> Result<(), RankFailure> {
        let is_resuming = !self.resuming.is_empty();
        let plan = self.plan_mut()?;
        if is_resuming {
            self.done_later.push((server, round));
        } else {
            plan.collect.handle_done(server, round)?;
            self.go_on();
        }
        Ok(())
    }

    /// Does what has become possible: reports ends of rounds, offers what was held, forgets what need not be retained.
    fn go_on(&mut self) {
        let Some(plan) = &mut self.plan else { return };
        let mut messages = Vec::new();
        while let Some(action) = plan.collect.poll_action() {
            messages.push(match action {
                CollectAction::End(server, round) => {
                    let skipped =
                        plan.collect.skipped(round).expect("a round that ended has skipped something or not");
                    (server, RankMessage::RoundEnd { round, absent: skipped.to_bytes() })
                }
                CollectAction::Got(server, round) => (server, RankMessage::Got(round)),
            });
        }
        for (server, message) in messages {
            self.send(server, message);
        }
        self.release();
        if let Some(plan) = &mut self.plan
            && let Some(oldest) = plan.replay.forget_before(plan.collect.oldest_kept())
        {
            self.actions.push_back(RankAction::Forget(oldest));
        }
    }

    /// Sends a message to a server that knows the job.
    fn send(&mut self, server: ServerId, message: RankMessage) {
        if let Some(connection) = self.servers.get(usize::from(server.0)).filter(|own| own.is_open()) {
            self.actions.push_back(RankAction::Send { server, pair: connection.pair, message });
        }
    }

    /// This rank hands a tensor of its current round over. Returns the servers to which it may not be sent yet: it is
    /// offered to them by actions.
    ///
    /// # Errors
    /// It was pushed in this round, or its last average has not arrived.
    pub fn handle_push(&mut self, tensor: TensorId) -> Result<(Round, Vec<ServerId>), RankFailure> {
        let retains = self.settings.retains();
        let plan = self.plan_mut()?;
        let round = plan.collect.current();
        let is_pushed = plan.collect.kept(round).is_some_and(|pushed| pushed.contains(tensor));
        if !plan.collect.may_push(tensor) || is_pushed {
            let name = plan.plan.name(tensor);
            return Err(RankFailure::Push { name, round });
        }
        plan.collect.handle_push(tensor);
        if retains {
            plan.replay.retain(round, tensor);
        }
        Ok((round, self.hold(round, tensor)))
    }

    /// This rank ends its current round. Returns it; `None` while the last one has not arrived, or servers do not know of
    /// its end.
    ///
    /// # Errors
    /// There is no plan.
    pub fn handle_end(&mut self) -> Result<Option<Round>, RankFailure> {
        let plan = self.plan_mut()?;
        if !plan.collect.may_end() {
            return Ok(None);
        }
        let round = plan.collect.current();
        plan.collect.handle_end();
        self.go_on();
        Ok(Some(round))
    }

    /// A server is about to send a sum: whether it is wanted.
    ///
    /// # Errors
    /// What the plan does not allow.
    pub fn handle_sum(
        &mut self,
        server: ServerId,
        generation: u32,
        round: u32,
        packet: PacketId,
        bytes: u64,
    ) -> Result<SumAdmission, RankFailure> {
        let is_over = self.is_over;
        let is_coming = self.membership.is_coming(generation);
        match self.servers.get(usize::from(server.0)).map(|connection| connection.state) {
            Some(ConnectionState::Lost) => return Ok(SumAdmission::Discard),
            // What it goes on with comes over the other connection.
            Some(ConnectionState::Resuming(_)) if !is_over => return Ok(SumAdmission::Later),
            _ => {}
        }
        let Some(plan) = &mut self.plan else {
            return Err(RankFailure::strange(server, "sends sums before a plan"));
        };
        let round = Round::near(round, plan.collect.current());
        let claim = match plan.collect.arrive(SumHeader { server, generation, round, packet, bytes })? {
            Arrival::Read(claim) => claim,
            Arrival::Discard(_) => return Ok(SumAdmission::Discard),
            Arrival::Hold if is_over => return Ok(SumAdmission::Discard),
            Arrival::Hold if is_coming => return Ok(SumAdmission::Later),
            // A newer plan is reported before its first sum is sent.
            Arrival::Hold => {
                let what = "sends sums of a membership that it has not told of";
                return Err(RankFailure::strange(server, what));
            }
        };
        if claim.offset().is_none() {
            // It was there already, and counts once more.
            plan.collect.land(claim);
            self.go_on();
            return Ok(SumAdmission::Confirmed);
        }
        Ok(SumAdmission::Read(claim, round))
    }

    /// A sum has arrived; `None` without a plan.
    pub fn handle_arrived(&mut self, server: ServerId, claim: Claim) -> Option<Landed> {
        let landed = self.plan.as_mut()?.collect.land(claim);
        if let Some(connection) = self.servers.get_mut(usize::from(server.0)) {
            connection.breaks = Breaks::default();
        }
        self.go_on();
        Some(landed)
    }

    /// A sum broke off. It may come again, over another connection.
    pub fn handle_cut(&mut self, claim: Claim) {
        if let Some(plan) = &mut self.plan {
            plan.collect.abandon(claim);
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

/// What the driver and its callers may ask.
impl RankSession {
    /// What `Collect` knows of the plan's rounds.
    pub fn collect(&self) -> Option<&Collect> {
        self.plan.as_ref().map(|plan| &plan.collect)
    }

    /// The plan.
    pub fn plan(&self) -> Option<&Arc<Plan>> {
        self.plan.as_ref().map(|plan| &plan.plan)
    }

    /// Whether a server is connected and knows the job.
    pub fn is_open(&self, server: ServerId) -> bool {
        self.servers.get(usize::from(server.0)).is_some_and(ServerConnection::is_open)
    }

    /// The number of the present pair of connections to a server.
    pub fn pair(&self, server: ServerId) -> u32 {
        self.servers.get(usize::from(server.0)).map_or(0, |connection| connection.pair)
    }

    /// Whether gradients are retained until every rank has everything of their round.
    pub fn retains(&self) -> bool {
        self.settings.retains()
    }

    /// Whether the connections to a server broke, and none was made again.
    pub fn is_lost(&self, server: ServerId) -> bool {
        self.servers.get(usize::from(server.0)).is_some_and(|own| own.state == ConnectionState::Lost)
    }

    /// Servers that took the place of lost ones.
    pub fn replaced(&self) -> u64 {
        self.replaced
    }

    /// Connections that broke and were made again to the same server.
    pub fn reconnected(&self) -> u64 {
        self.reconnected
    }

    /// Losses of ranks after which the others went on.
    pub fn ranks_lost(&self) -> u64 {
        self.membership.lost
    }

    /// The first rank that is left.
    pub fn first(&self) -> Rank {
        crate::members::from_bits(&self.membership.live).next().unwrap_or_default()
    }

    /// Lines for a log that were not taken before.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// The last round that ended: its averages are waited for.
    pub fn last_round(&self) -> Option<Round> {
        self.plan.as_ref()?.last_round()
    }

    /// Whether any rank pushed `tensor` in the last round that ended; `None` while that is not known.
    pub fn was_used(&self, tensor: TensorId) -> Option<bool> {
        let plan = self.plan.as_ref()?;
        let last = plan.last_round()?;
        let told = plan.used.iter().find(|(round, _)| *round == last).map(|(_, set)| set.contains(tensor));
        told.or_else(|| plan.collect.is_used(last, tensor))
    }

    /// What a round used, as servers reported it.
    pub fn used(&self, round: Round) -> Option<&TensorSet> {
        self.plan.as_ref()?.used.iter().find(|(of, _)| *of == round).map(|(_, set)| set)
    }

    /// Whether nothing of the rounds that ended is in flight, to or from any server: only such a plan may give way to
    /// another, whose rounds have the same numbers.
    pub fn is_quiet(&self) -> bool {
        self.plan.as_ref().is_none_or(RankPlan::is_quiet)
    }

    /// Whether another rank may lack something that this one has to push again, or a server the end of the last round.
    pub fn is_needed(&self) -> bool {
        let Some(plan) = self.plan.as_ref().filter(|plan| !plan.is_waiting()) else { return false };
        let last = plan.last_round();
        let is_done = self.done_later.iter().any(|(_, round)| Some(*round) >= last);
        let others = self.settings.retains() && self.settings.world > self.settings.local;
        !self.is_over && (!plan.has_reported() || others && !plan.is_quiet() && !is_done)
    }

    /// Whether every server is connected and knows the job.
    pub fn is_connected(&self) -> bool {
        self.are_open()
    }

    /// What is still wanted, in words.
    pub fn missing(&self) -> String {
        let missing = self.plan.as_ref().map_or_else(|| "no plan was agreed on".into(), RankPlan::missing);
        self.waits().into_iter().fold(missing, |text, waits| format!("{text}; {waits}"))
    }

    /// Whom servers wait for, each in words, as far as they have reported it.
    pub fn waits(&self) -> Vec<String> {
        let waits =
            self.ids().zip(&self.servers).filter_map(|(server, own)| Some((server, own.waiting.as_ref()?)));
        waits.map(|(server, whom)| format!("server {server} waits for {whom}")).collect()
    }
}

impl RankPlan {
    /// Whether a round up to this one may not be done everywhere.
    fn is_open(&self, last: Option<Round>) -> bool {
        last.is_some_and(|last| self.collect.oldest_kept() <= last)
    }

    fn last_round(&self) -> Option<Round> {
        self.collect.current().0.checked_sub(1).map(Round)
    }

    fn is_quiet(&self) -> bool {
        // A round is forgotten when all ranks have all of it, and every server knows that this one has.
        self.last_round().is_none_or(|last| self.collect.skipped(last).is_none())
    }

    /// Whether packets of the last round are missing here.
    fn is_waiting(&self) -> bool {
        self.last_round().is_some_and(|last| self.collect.waiting(last).next().is_some())
    }

    /// Whether every server was sent the end of the last round.
    fn has_reported(&self) -> bool {
        self.last_round().is_none_or(|last| self.collect.has_told_end(last))
    }

    fn missing(&self) -> String {
        let Some(last) = self.last_round() else { return "no round has ended yet".into() };
        let waiting: Vec<_> = self.collect.waiting(last).collect();
        let packets: u64 = waiting.iter().map(|(_, missing)| u64::from(*missing)).sum();
        match waiting.first() {
            None => format!("nothing of round {last} was missing"),
            Some((tensor, missing)) => format!(
                "{packets} packets of {} tensors of round {last} were missing, {missing} of them of '{}'",
                waiting.len(),
                self.plan.name(*tensor),
            ),
        }
    }
}

impl From<QueueError> for RankFailure {
    fn from(why: QueueError) -> Self {
        Self::Queue(why)
    }
}
