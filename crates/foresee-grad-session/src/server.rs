// SPDX-License-Identifier: Apache-2.0
//! One job on one server: its ranks, their connections, and how far each of them is.
//!
//! A rank has a control connection and a data connection. Once all ranks are connected they agree on a plan (`plan`).
//! When a connection breaks, the rank may reconnect within a grace period (`reconnect`); then it is lost (`loss`), and
//! the job ends or goes on without it (`membership`). A job whose server was lost resumes here from the state of its
//! ranks (`resume`). Ranks that wait for long are told whom they wait for (`waits`).

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

use foresee_grad_queue::{Members, Round, RoundAction, Sender, ServerId, TensorSet};
use foresee_units::{Nanos, Rank};

use crate::{RankMessage, Refusal, RefusalCode, Resume, ServerMessage, Used};
pub use action::{EndTicket, Installation, JobAction, OwedTicket, Peer, Role};
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
    /// The server's place in the list of every rank.
    pub server: ServerId,
    /// Ranks of the job, 1 to 65535.
    pub world: u32,
    /// Ranks of each node that exchange as one; they divide the world.
    pub local: u32,
    /// Whether the job goes on without ranks that are lost.
    pub survives: bool,
    /// How long a control connection has to report why the data connection of the same rank broke.
    pub heartbeat: Nanos,
    /// How long a rank has to reconnect.
    pub reconnect: Nanos,
    /// Time between two looks at who waits; a wait is reported at every second look.
    pub look: Nanos,
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
    /// State of ranks that come from a lost server, until every rank has sent its own.
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
    /// Of the ranks that left in peace, the one with the fewest rounds.
    departure: Option<Departure>,
    /// The first round that no rank has ended.
    front: Round,
    waits: Option<WaitSnapshot>,
    next_look: Nanos,
    next_start_look: Nanos,
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
            next_look: now.saturating_add(settings.look),
            next_start_look: now,
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
            front: Round(0),
            waits: None,
            pairs: 0,
            has_started: false,
            is_over: false,
            actions: VecDeque::new(),
        }
    }

    /// Whether it has ended, or all of its ranks have gone.
    pub fn is_over(&self) -> bool {
        self.is_over || self.has_started && self.ranks.is_empty()
    }

    /// Ranks that are connected, or may reconnect.
    pub fn ranks(&self) -> u32 {
        u32::try_from(self.ranks.len()).unwrap_or(u32::MAX)
    }

    /// The next action. The driver performs actions in this order.
    pub fn poll_action(&mut self) -> Option<JobAction> {
        self.actions.pop_front()
    }

    /// The time at which [`handle_timeout`](Self::handle_timeout) has something to do; `None` once the job is over.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        if self.is_over() {
            return None;
        }
        let times = self.ranks.values().filter_map(RankConnection::timeout);
        Some(times.chain(self.starts().then_some(self.next_start_look)).fold(self.next_look, Nanos::min))
    }

    /// Time has passed: connections are given up whose rank did not report or reconnect, and waits are reported.
    pub fn handle_timeout(&mut self, now: Nanos) {
        self.act_on_suspicions(now);
        self.act_on_absences(now);
        self.look_at_waits(now);
        self.look_at_start(now);
    }

    /// A message of a rank. Messages of a pair that was replaced are ignored: the rank repeats what counts.
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
                self.propose(rank, body)?;
                self.check_departure();
            }
            RankMessage::RoundEnd { round, absent } => self.begin_end(peer, round, &absent)?,
            RankMessage::Got(round) => self.got(peer, round)?,
            RankMessage::Lost(lost) if self.settings.survives => self.lose(lost.rank, &lost.why),
            RankMessage::Known(known) if self.settings.survives => self.know(rank, known),
            RankMessage::Change(change) if self.settings.survives => self.change(rank, &change)?,
            RankMessage::Resume(known) => {
                self.receive_resume(rank, known)?;
                self.check_departure();
            }
            other => {
                let text = format!("rank {rank} sends {}, which is not for servers", other.kind());
                return Err(Refusal::new(RefusalCode::Protocol, text).about(rank));
            }
        }
        Ok(())
    }

    /// A rank broke the protocol in a way that only the driver can see: the job ends.
    pub fn handle_violation(&mut self, peer: Peer, why: &str) {
        if self.is_current(peer) {
            self.end(&Refusal::new(RefusalCode::Protocol, why).about(peer.rank));
        }
    }

    /// Whether the pair of connections is the present one of its rank.
    pub fn is_current(&self, peer: Peer) -> bool {
        self.ranks.get(&peer.rank).is_some_and(|connection| connection.pair == peer.pair)
    }

    /// A rank has ended a round: the slots learn first which tensors it skipped.
    fn begin_end(&mut self, peer: Peer, round: Round, absent: &[u8]) -> Result<(), Refusal> {
        let sender = self.sender(peer.rank, round)?;
        let Some(plan) = &self.plan else { return Ok(()) };
        let skipped = TensorSet::from_bytes(absent, plan.plan.tensors()).map_err(|why| {
            let text =
                format!("rank {} ends round {round} with a set that is not its plan's: {why}", peer.rank);
            Refusal::new(RefusalCode::Protocol, text).about(peer.rank)
        })?;
        let promised = plan.rounds.used(round).cloned();
        let ticket = EndTicket { peer, plan: plan.first_generation, sender, skipped, promised };
        self.actions.push_back(JobAction::Skip(ticket));
        Ok(())
    }

    /// The slots know which tensors a rank skipped in a round that it has ended.
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
        if let Some(connection) = self.ranks.get_mut(&rank).filter(|own| own.pair == ticket.peer.pair) {
            connection.next = connection.next.max(round.next());
            self.front = self.front.max(round.next());
        }
        self.check_in_step()?;
        self.check_departure();
        Ok(())
    }

    fn got(&mut self, peer: Peer, round: Round) -> Result<(), Refusal> {
        let sender = self.sender(peer.rank, round)?;
        if let Some(connection) = self.ranks.get_mut(&peer.rank) {
            // What is sent to it arrives.
            connection.silences = 0;
        }
        let Some(plan) = &mut self.plan else { return Ok(()) };
        plan.rounds.handle_got(sender).map_err(violation(peer.rank))?;
        self.announce();
        Ok(())
    }

    /// The membership under which a rank speaks of a round.
    fn sender(&self, rank: Rank, round: Round) -> Result<Sender, Refusal> {
        let generation = self.ranks.get(&rank).map_or(0, |connection| connection.generation);
        if self.plan.is_none() {
            let text = format!("rank {rank} speaks of rounds before a plan");
            return Err(Refusal::new(RefusalCode::Protocol, text).about(rank));
        }
        Ok(Sender { rank, generation, round })
    }

    /// Sends every rank what was found of rounds, after the slots know which rounds are done.
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

    /// Sends a message to every rank that is connected.
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

/// The refusal of something that the plan or the rounds do not allow a rank.
fn violation(rank: Rank) -> impl Fn(foresee_grad_queue::QueueError) -> Refusal {
    move |why| Refusal::new(RefusalCode::Protocol, why).about(rank)
}
