// SPDX-License-Identifier: Apache-2.0
//! A rank: its state machine, its gradients, and its send queues.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foresee_grad_queue::{Collector, PacketId, Plan, Round, ServerId, TensorId};
use foresee_grad_session::{RankFailure, RankSession};
use foresee_units::Nanos;

use crate::setup::Setup;

/// What a rank does in a round: which tensors it uses in its forward pass, and which gradients follow.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) uses: Vec<TensorId>,
    pub(crate) pushes: Vec<TensorId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It has not connected.
    Start,
    Agree,
    Forward(usize),
    Backward(usize),
    /// It has all its results, and others may need it.
    Stay,
    /// It has closed.
    Finished,
}

/// A packet that waits to be sent, with the index of its plan.
pub(crate) type Waiting = (usize, Round, PacketId, u32);

/// A round of a plan, with the index of the plan.
pub(crate) type PlanRound = (usize, Round);

pub(crate) struct RankNode {
    pub(crate) session: RankSession,
    pub(crate) is_alive: bool,
    pub(crate) failure: Option<RankFailure>,
    /// What it does, by plan and round.
    pub(crate) programs: Vec<Vec<Program>>,
    /// The index of its plan.
    pub(crate) plan: usize,
    pub(crate) phase: Phase,
    /// It takes no step before this time.
    pub(crate) paused_until: Nanos,
    /// The process of each server that it connected to at the start.
    pub(crate) known: Vec<Option<u64>>,
    /// When it first dialled a server.
    pub(crate) dials_since: Option<Nanos>,
    /// It closes as soon as no other rank needs it.
    pub(crate) is_leaving: bool,
    /// It closes even without the results of the rounds that it has ended.
    pub(crate) is_impatient: bool,
    /// Packets to be sent, by server; those of a group may not overtake those of the groups before.
    pub(crate) queues: Vec<BTreeMap<Round, Vec<Waiting>>>,
    pub(crate) gradients: BTreeMap<(PlanRound, TensorId), Vec<u8>>,
    pub(crate) retained: BTreeSet<(Round, TensorId)>,
    pub(crate) received: BTreeMap<(PlanRound, TensorId), Vec<u8>>,
    /// Results of rounds before this one were checked.
    pub(crate) compared: Round,
    /// Number of events.
    pub(crate) version: u64,
}

impl RankNode {
    pub(crate) fn new(session: RankSession, servers: usize, programs: Vec<Vec<Program>>) -> Self {
        Self {
            session,
            is_alive: true,
            failure: None,
            programs,
            plan: 0,
            phase: Phase::Start,
            paused_until: Nanos::ZERO,
            known: vec![None; servers],
            dials_since: None,
            is_leaving: false,
            is_impatient: false,
            queues: (0..servers).map(|_| BTreeMap::new()).collect(),
            gradients: BTreeMap::new(),
            retained: BTreeSet::new(),
            received: BTreeMap::new(),
            compared: Round(0),
            version: 0,
        }
    }

    /// Whether it runs.
    pub(crate) fn is_running(&self) -> bool {
        self.is_alive && self.failure.is_none() && self.phase != Phase::Finished
    }

    /// Whether it has connected to all servers, so that its state machine exists.
    pub(crate) fn has_started(&self) -> bool {
        self.is_running() && self.phase != Phase::Start
    }

    pub(crate) fn timeout(&self) -> Option<Nanos> {
        self.session.poll_timeout().filter(|_| self.has_started())
    }

    /// Queue a tensor's packets for a server with those of its round.
    pub(crate) fn offer(
        &mut self,
        plan: &Plan,
        server: ServerId,
        round: Round,
        tensor: TensorId,
        generation: u32,
    ) {
        let packets = (0..plan.packets_at(tensor, server).unwrap_or(0))
            .filter_map(|nth| Some((self.plan, round, plan.nth_packet_at(tensor, server, nth)?, generation)));
        self.queues[usize::from(server.0)].entry(round).or_default().extend(packets);
    }

    /// The packets from which the next one is drawn.
    pub(crate) fn next_group(&mut self, server: usize) -> Option<&mut Vec<Waiting>> {
        let queue = &mut self.queues[server];
        queue.retain(|_, group| !group.is_empty());
        queue.values_mut().next()
    }

    pub(crate) fn has_waiting(&self, server: usize) -> bool {
        self.queues[server].values().any(|group| !group.is_empty())
    }

    /// Whether it may close before it has taken all steps. A driver does not wait long for its own results.
    pub(crate) fn may_leave(&self) -> bool {
        let is_needed = self.session.is_needed() && !(self.is_impatient && self.session.is_waiting());
        self.is_leaving && !is_needed
    }

    /// Whether its next step is possible.
    pub(crate) fn may_step(&self, at: usize, setup: &Setup) -> bool {
        let rounds = setup.rounds;
        match self.phase {
            Phase::Start => return true,
            Phase::Agree => return self.has_agreement(),
            Phase::Finished => return false,
            Phase::Stay => return !self.session.is_needed(),
            Phase::Forward(_) | Phase::Backward(_) if self.may_leave() => return true,
            Phase::Forward(_) | Phase::Backward(_) => {}
        }
        let Some(collect) = self.session.collector() else { return false };
        let round = collect.current();
        if round.0 >= rounds {
            let is_last = self.plan + 1 == self.programs.len();
            return if is_last {
                setup.hasty == Some(at) || collect.is_round_settled(Round(rounds - 1))
            } else {
                self.session.is_quiet()
            };
        }
        let program = &self.programs[self.plan][usize::try_from(round.0).expect("few rounds")];
        match self.phase {
            Phase::Forward(nth) => {
                program.uses.get(nth).is_none_or(|tensor| collect.is_settled(*tensor, round))
            }
            Phase::Backward(nth) => nth < program.pushes.len() || collect.may_end(),
            _ => false,
        }
    }

    /// Whether it has all its results.
    pub(crate) fn has_all(&self, rounds: u64) -> bool {
        let is_last = self.plan + 1 == self.programs.len() && self.phase != Phase::Agree;
        let has = |collect: &Collector| {
            collect.current().0 >= rounds && collect.is_round_settled(Round(rounds - 1))
        };
        is_last && self.session.collector().is_some_and(has)
    }

    fn has_agreement(&self) -> bool {
        let known = self.session.first_answer();
        known.is_some_and(|known| self.session.poll_agreement(&known).is_some())
    }

    pub(crate) fn payload(&self, plan: &Plan, round: PlanRound, packet: PacketId) -> Vec<u8> {
        let (offset, bytes) = plan.range(packet).expect("packets are those of the plan");
        let offset = usize::try_from(offset).expect("it is small");
        self.gradients[&(round, packet.tensor)][offset..offset + bytes as usize].to_vec()
    }

    /// Install the plan that all servers answered.
    pub(crate) fn install(&mut self) {
        let known = self.session.first_answer().expect("it may step");
        match self.session.poll_agreement(&known).expect("it may step") {
            Ok(()) => {
                let plan = Plan::decode(&known.1).expect("it was agreed on");
                self.session.install(Arc::new(plan), known.0);
                self.phase = Phase::Forward(0);
                self.compared = Round(0);
                self.retained.clear();
            }
            Err(failure) => self.failure = Some(failure),
        }
    }
}
