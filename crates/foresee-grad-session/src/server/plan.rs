// SPDX-License-Identifier: Apache-2.0
//! Agreement on a plan: from the proposals of all ranks to the plan that holds.

use std::sync::Arc;

use foresee_grad_queue::{Members, Plan, Round, Rounds, Shard};
use foresee_units::Rank;

use super::ServerJob;
use super::action::{Installation, JobAction};
use super::connection::RankConnection;
use crate::{Refusal, RefusalCode, ServerMessage, proposals};

/// The most packets of a plan at one server. Each costs up to 256 bytes before its first byte has come, and a tensor that
/// is named in a few bytes may have 2^32: 4 GiB are enough for 256 GiB in packets of 16 KiB.
const PACKETS_MAX: u64 = 1 << 24;

/// Rounds that may be open when a server is lost: those that not every rank has all of, and the one that is pushed.
const OPEN_MAX: u64 = 3;

/// The plan that holds, and how far ranks are in its rounds.
#[derive(Debug)]
pub(super) struct ActivePlan {
    pub(super) plan: Arc<Plan>,
    pub(super) rounds: Rounds,
    /// The membership under which the plan was agreed on; later ones have lost ranks.
    pub(super) first_generation: u32,
    /// Rounds before this one may be done before their sums are: some ranks hold what a lost server sent, and others
    /// push it again.
    caught_up: Round,
    /// The oldest round of which the driver knows that it is not done.
    advanced: Round,
}

impl ActivePlan {
    fn new(plan: Arc<Plan>, members: Members, oldest: Round) -> Self {
        let first_generation = members.generation();
        let rounds = Rounds::new(members, plan.tensors(), oldest);
        let caught_up = Round(oldest.0.saturating_add(OPEN_MAX));
        Self { plan, rounds, first_generation, caught_up, advanced: oldest }
    }

    /// What the slots have to know of rounds that are done since the last call.
    pub(super) fn advance(&mut self) -> Option<JobAction> {
        let oldest = self.rounds.oldest();
        if oldest == self.advanced {
            return None;
        }
        let forget = self.advanced < self.caught_up;
        self.advanced = oldest;
        Some(JobAction::Advance { oldest, forget })
    }
}

impl ServerJob {
    /// A rank proposes a plan, or confirms the one that the first server found.
    pub(super) fn propose(&mut self, rank: Rank, body: Vec<u8>) -> Result<(), Refusal> {
        let Some(connection) = self.ranks.get_mut(&rank) else { return Ok(()) };
        if std::mem::take(&mut connection.is_answered) {
            return Ok(());
        }
        if connection.absence.is_some() {
            connection.proposed = Some(body);
            return Ok(());
        }
        self.proposals.insert(rank, body);
        self.check_in_step()?;
        self.agree()
    }

    /// A rank that proposes a plan has no round open, and begins none before the plan is agreed on: a rank in a later
    /// round of the plan before would wait for it, and it for that rank.
    pub(super) fn check_in_step(&self) -> Result<(), Refusal> {
        if self.plan.is_none() || self.is_resumed {
            return Ok(());
        }
        for proposer in self.proposals.keys() {
            let Some(next) = self.ranks.get(proposer).map(|own| own.next) else { continue };
            if let Some((ahead, _)) = self.ranks.iter().find(|(_, other)| other.next > next) {
                let text = proposals::out_of_step(*proposer, *ahead);
                return Err(Refusal::new(RefusalCode::Plan, text));
            }
        }
        Ok(())
    }

    /// Once every rank has proposed, and both connections of each are there, the plan holds.
    pub(super) fn agree(&mut self) -> Result<(), Refusal> {
        if self.proposals.len() < self.expected() || !self.is_full() {
            return Ok(());
        }
        let proposed = std::mem::take(&mut self.proposals);
        let plan = proposals::common(&proposed)?;
        let generation = self.generation.saturating_add(1);
        self.install(Arc::new(plan), generation, Round(0))?;
        let body = proposed.into_values().next().expect("a world has ranks");
        self.broadcast(&ServerMessage::Plan { generation, body });
        Ok(())
    }

    /// Whether both connections of every rank are there, and ranks that were absent have sent their state.
    pub(super) fn is_full(&self) -> bool {
        self.ranks.values().filter(|connection| connection.is_whole()).count() == self.expected()
    }

    /// The ranks that exchange with servers: the first of each node, or those that are left.
    pub(super) fn every(&self) -> Vec<Rank> {
        match &self.members {
            Some(members) => members.iter().collect(),
            None => (0..self.settings.world).step_by(self.settings.local as usize).map(Rank).collect(),
        }
    }

    /// How many ranks exchange with servers.
    pub(super) fn expected(&self) -> usize {
        let all = self.settings.world.div_ceil(self.settings.local);
        self.members.as_ref().map_or(all, Members::count) as usize
    }

    /// A plan holds from now on, for rounds from `oldest` on.
    pub(super) fn install(&mut self, plan: Arc<Plan>, generation: u32, oldest: Round) -> Result<(), Refusal> {
        let server = self.settings.server;
        let packets = Shard::new(&plan, server).packets();
        if packets > PACKETS_MAX {
            let text = format!(
                "server {server} would sum {packets} packets in every round, and {PACKETS_MAX} are possible; take larger packets, or \
                 more servers"
            );
            return Err(Refusal::new(RefusalCode::Plan, text));
        }
        let members = Members::new(generation, self.settings.world, self.every())
            .map_err(|why| Refusal::new(RefusalCode::Plan, why))?;
        self.plan = Some(ActivePlan::new(Arc::clone(&plan), members.clone(), oldest));
        self.actions.push_back(JobAction::Install(Installation { plan, members, oldest }));
        self.is_resumed = false;
        self.generation = generation;
        self.resumes.clear();
        self.decision = None;
        self.front = oldest;
        let begin = |own: &mut RankConnection| (own.next, own.generation) = (oldest, generation);
        self.ranks.values_mut().for_each(begin);
        Ok(())
    }
}
