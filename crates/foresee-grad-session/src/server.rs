// SPDX-License-Identifier: Apache-2.0
//! One job on one server: its ranks, their connections, and their progress.
//!
//! A rank has a control connection and a data connection. Once all ranks are connected they agree on a plan (`plan`).
//! When a connection breaks, the rank may reconnect within a grace period (`reconnect`); then it is lost (`loss`), and
//! the job ends or continues without it (`membership`). A job whose server was lost resumes here from the state of its
//! ranks (`resume`). Long waits are reported to the ranks that wait (`waits`).

mod action;
mod admit;
mod connection;
mod loss;
mod membership;
mod plan;
mod reconnect;
mod resume;
mod waits;

use std::collections::{BTreeMap, VecDeque};

use foresee_grad_queue::{Members, QueueError, Round, RoundAction, Sender, ServerId, TensorSet};
use foresee_units::{Nanos, Rank};

use crate::{RankMessage, Refusal, Resume, ServerMessage, Used};
pub use action::{EndTicket, Installation, JobAction, MissingTicket, Peer, Role};
pub use admit::RankHello;
use connection::RankConnection;
use loss::Departure;
use membership::Decision;
use plan::ActivePlan;
use waits::WaitSnapshot;

/// Settings of a job on a server.
#[derive(Clone, Debug)]
pub struct JobSettings {
    /// The job's name.
    pub name: String,
    /// The server's index in every rank's list.
    pub server: ServerId,
    /// Ranks of the job, 1 to 65535.
    pub world: u32,
    /// Ranks of each node that exchange as one; a divisor of `world`.
    pub node_ranks: u32,
    /// Whether the job continues without lost ranks.
    pub continues_after_loss: bool,
    /// How long a control connection may take to report why the data connection of the same rank broke.
    pub heartbeat: Nanos,
    /// How long a rank has to reconnect.
    pub grace_period: Nanos,
    /// Time between two checks for waiting ranks; every second check reports a wait.
    pub wait_check_interval: Nanos,
}

/// A job on a server.
///
/// The driver reports facts by `handle_*` and then performs every action of [`poll_action`](Self::poll_action), in
/// order and before the next fact. It calls [`handle_timeout`](Self::handle_timeout) at
/// [`poll_timeout`](Self::poll_timeout).
#[derive(Debug)]
pub struct ServerJob {
    settings: JobSettings,
    ranks: BTreeMap<Rank, RankConnection>,
    /// Proposed plans, until every rank has proposed one.
    proposals: BTreeMap<Rank, Vec<u8>>,
    /// State of ranks whose server was lost, until every rank has sent its own.
    resumes: BTreeMap<Rank, Resume>,
    plan: Option<ActivePlan>,
    /// Whether the plan came from another server: ranks do not repeat which rounds they have ended.
    is_resumed: bool,
    /// Plans and memberships so far.
    generation: u32,
    /// The members, if a rank was lost.
    members: Option<Members>,
    /// The membership that this server has proposed under this plan.
    decision: Option<Decision>,
    /// Of the ranks that said goodbye, the one with the fewest rounds.
    departure: Option<Departure>,
    /// The first round that no rank has ended.
    first_unended: Round,
    waits: Option<WaitSnapshot>,
    next_wait_check: Nanos,
    next_start_check: Nanos,
    /// Pairs of connections so far.
    pairs: u32,
    has_started: bool,
    is_over: bool,
    actions: VecDeque<JobAction>,
}

impl ServerJob {
    /// A job without ranks, at the time `now`.
    pub fn new(settings: JobSettings, now: Nanos) -> Self {
        Self {
            next_wait_check: now.saturating_add(settings.wait_check_interval),
            next_start_check: now,
            settings,
            ranks: BTreeMap::new(),
            proposals: BTreeMap::new(),
            resumes: BTreeMap::new(),
            plan: None,
            is_resumed: false,
            generation: 0,
            members: None,
            decision: None,
            departure: None,
            first_unended: Round(0),
            waits: None,
            pairs: 0,
            has_started: false,
            is_over: false,
            actions: VecDeque::new(),
        }
    }

    /// Whether the job has ended, or all of its ranks have gone.
    pub fn is_over(&self) -> bool {
        self.is_over || self.has_started && self.ranks.is_empty()
    }

    /// Number of ranks that are connected, or may reconnect.
    pub fn ranks(&self) -> u32 {
        u32::try_from(self.ranks.len()).unwrap_or(u32::MAX)
    }

    /// The next action. The driver performs actions in this order.
    pub fn poll_action(&mut self) -> Option<JobAction> {
        self.actions.pop_front()
    }

    /// The time of the next call of [`handle_timeout`](Self::handle_timeout); `None` once the job is over.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        if self.is_over() {
            return None;
        }
        let times = self.ranks.values().filter_map(RankConnection::timeout);
        let start_check = self.is_starting().then_some(self.next_start_check);
        Some(times.chain(start_check).fold(self.next_wait_check, Nanos::min))
    }

    /// Give up connections whose rank did not report or reconnect in time, and report waits.
    pub fn handle_timeout(&mut self, now: Nanos) {
        self.expire_suspicions(now);
        self.expire_absences(now);
        self.check_waits(now);
        self.check_start(now);
    }

    /// Handle a message of a rank. Messages of a replaced pair are ignored: the rank repeats what matters.
    pub fn handle_message(&mut self, peer: Peer, message: RankMessage) {
        if !self.is_current(peer) {
            return;
        }
        if let Err(refusal) = self.receive(peer, message) {
            self.end(&refusal);
        }
    }

    fn receive(&mut self, peer: Peer, message: RankMessage) -> Result<(), Refusal> {
        let rank = peer.rank;
        match message {
            RankMessage::Plan(body) => {
                self.receive_plan(rank, body)?;
                self.check_departure();
            }
            RankMessage::RoundEnd { round, absent } => self.receive_round_end(peer, round, &absent)?,
            RankMessage::Got(round) => self.receive_got(peer, round)?,
            RankMessage::Resume(state) => {
                self.receive_resume(rank, state)?;
                self.check_departure();
            }
            _ if !self.settings.continues_after_loss => {
                let text =
                    format!("rank {rank} changes the membership of a job that ends when a rank is lost");
                return Err(Refusal::protocol(rank, text));
            }
            RankMessage::Lost(lost) => self.declare_lost(lost.rank, &lost.why),
            RankMessage::Known(known) => self.receive_known(rank, known),
            RankMessage::Change(change) => self.receive_change(rank, &change)?,
        }
        Ok(())
    }

    /// End the job: a rank violated the protocol in a way that only the driver can detect.
    pub fn handle_violation(&mut self, peer: Peer, why: &str) {
        if self.is_current(peer) {
            self.end(&Refusal::protocol(peer.rank, why));
        }
    }

    /// Whether this is the current pair of connections of its rank.
    pub fn is_current(&self, peer: Peer) -> bool {
        self.ranks.get(&peer.rank).is_some_and(|connection| connection.pair == peer.pair)
    }

    /// The connections of a rank, if this pair is current.
    fn current_mut(&mut self, peer: Peer) -> Option<&mut RankConnection> {
        self.ranks.get_mut(&peer.rank).filter(|connection| connection.pair == peer.pair)
    }

    /// Handle a rank's end of a round: the slots must handle the skipped tensors first.
    fn receive_round_end(&mut self, peer: Peer, round: Round, absent: &[u8]) -> Result<(), Refusal> {
        let rank = peer.rank;
        let sender = self.sender(rank, round)?;
        let Some(plan) = &self.plan else { return Ok(()) };
        let skipped = TensorSet::from_bytes(absent, plan.plan.tensors()).map_err(|why| {
            Refusal::protocol(
                rank,
                format!("rank {rank} ends round {round} with a set of another plan: {why}"),
            )
        })?;
        let promised = plan.rounds.used(round).cloned();
        let ticket = EndTicket { peer, plan: plan.first_generation, sender, skipped, promised };
        self.actions.push_back(JobAction::Skip(ticket));
        Ok(())
    }

    /// The slots have handled the tensors that a rank skipped in a round.
    pub fn handle_skipped(&mut self, ticket: &EndTicket) {
        if let Err(refusal) = self.end_round(ticket) {
            self.end(&refusal);
        }
    }

    fn end_round(&mut self, ticket: &EndTicket) -> Result<(), Refusal> {
        let Sender { rank, round, .. } = ticket.sender;
        let Some(plan) = self.plan.as_mut().filter(|plan| plan.first_generation == ticket.plan) else {
            return Ok(());
        };
        plan.rounds.handle_end(ticket.sender, &ticket.skipped).map_err(violation(rank))?;
        self.announce();
        if let Some(connection) = self.current_mut(ticket.peer) {
            connection.next = connection.next.max(round.next());
            self.first_unended = self.first_unended.max(round.next());
        }
        self.check_in_step()?;
        self.check_departure();
        Ok(())
    }

    fn receive_got(&mut self, peer: Peer, round: Round) -> Result<(), Refusal> {
        let sender = self.sender(peer.rank, round)?;
        if let Some(connection) = self.ranks.get_mut(&peer.rank) {
            // Sums reach the rank over its data connection.
            connection.silences = 0;
        }
        let Some(plan) = &mut self.plan else { return Ok(()) };
        plan.rounds.handle_got(sender).map_err(violation(peer.rank))?;
        self.announce();
        Ok(())
    }

    /// The sender of a message about a round, with its membership.
    fn sender(&self, rank: Rank, round: Round) -> Result<Sender, Refusal> {
        let generation = self.ranks.get(&rank).map_or(0, |connection| connection.generation);
        if self.plan.is_none() {
            return Err(Refusal::protocol(rank, format!("rank {rank} names rounds before a plan")));
        }
        Ok(Sender { rank, generation, round })
    }

    /// Send all ranks the progress of rounds, after the slots learn which rounds are done.
    fn announce(&mut self) {
        let Some(plan) = &mut self.plan else { return };
        let found: Vec<RoundAction> = std::iter::from_fn(|| plan.rounds.poll_action()).collect();
        self.actions.extend(plan.advance());
        for action in found {
            let message = match action {
                RoundAction::Used(round, used) => ServerMessage::Used(Used { round, used: used.to_bytes() }),
                RoundAction::Done(round) => ServerMessage::RoundDone(round),
            };
            self.broadcast(&message);
        }
    }

    /// Send a message to every connected rank.
    fn broadcast(&mut self, message: &ServerMessage) {
        let peers: Vec<Peer> = self.connected().collect();
        for peer in peers {
            self.send(peer, message.clone());
        }
    }

    fn send(&mut self, peer: Peer, message: ServerMessage) {
        self.actions.push_back(JobAction::Send { peer, message });
    }

    /// Ranks with a control connection.
    fn connected(&self) -> impl Iterator<Item = Peer> + '_ {
        let connected = self.ranks.iter().filter(|(_, connection)| connection.has_control);
        connected.map(|(rank, connection)| connection.peer(*rank))
    }
}

/// The refusal of a message that the plan or the rounds do not allow.
fn violation(rank: Rank) -> impl Fn(QueueError) -> Refusal {
    move |why| Refusal::protocol(rank, why)
}
