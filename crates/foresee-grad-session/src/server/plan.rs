// SPDX-License-Identifier: Apache-2.0
//! Agreement on a plan: from the proposals of all ranks to the installed plan.

use std::sync::Arc;

use foresee_grad_queue::{Members, Plan, Round, Rounds, Shard};
use foresee_units::Rank;

use super::ServerJob;
use super::action::{Installation, JobAction};
use super::connection::RankConnection;
use crate::{Refusal, RefusalCode, ServerMessage, proposals};

/// The most packets of a plan at one server. Each costs up to 256 bytes before its first byte arrives, and a tensor
/// that is described in a few bytes may have 2^32: 4 GiB suffice for 256 GiB in packets of 16 KiB.
const PACKETS_MAX: u64 = 1 << 24;

/// Rounds that may be open when a server is lost: those that some rank lacks results of, and the one being pushed.
const OPEN_MAX: u64 = 3;

/// The installed plan, and the progress of its rounds.
#[derive(Debug)]
pub(super) struct ActivePlan {
    pub(super) plan: Arc<Plan>,
    pub(super) rounds: Rounds,
    /// The membership under which the plan was agreed on, before any loss.
    pub(super) first_generation: u32,
    /// Rounds before this one may be done before their sums are: some ranks have the results of a lost server, and
    /// others push them again.
    caught_up: Round,
    /// The oldest round of the last [`JobAction::Advance`].
    advanced: Round,
}

impl ActivePlan {
    fn new(plan: Arc<Plan>, members: Members, oldest: Round) -> Self {
        let first_generation = members.generation();
        let rounds = Rounds::new(members, plan.tensors(), oldest);
        let caught_up = Round(oldest.0.saturating_add(OPEN_MAX));
        Self { plan, rounds, first_generation, caught_up, advanced: oldest }
    }

    /// The action for the rounds that became done since the last call.
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
    /// Handle a rank's proposal, or its confirmation of the first server's plan.
    pub(super) fn receive_plan(&mut self, rank: Rank, body: Vec<u8>) -> Result<(), Refusal> {
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

    /// Check that no rank is in a later round than one that proposes a plan. The proposer begins no round before the
    /// plan is agreed on, so each would wait for the other.
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

    /// Install the common plan once every rank has proposed one and has both connections.
    pub(super) fn agree(&mut self) -> Result<(), Refusal> {
        if self.proposals.len() < self.expected() || !self.is_complete() {
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

    /// Whether every rank has both connections, and absent ranks have sent their state.
    pub(super) fn is_complete(&self) -> bool {
        self.ranks.values().filter(|connection| connection.is_complete()).count() == self.expected()
    }

    /// The ranks that exchange with servers: the leader of each node, or the remaining members.
    pub(super) fn exchanging_ranks(&self) -> Vec<Rank> {
        match &self.members {
            Some(members) => members.iter().collect(),
            None => (0..self.settings.world).step_by(self.settings.node_ranks as usize).map(Rank).collect(),
        }
    }

    /// The number of ranks that exchange with servers.
    pub(super) fn expected(&self) -> usize {
        let all = self.settings.world.div_ceil(self.settings.node_ranks);
        self.members.as_ref().map_or(all, Members::count) as usize
    }

    /// Start a plan, with its rounds from `oldest` on.
    pub(super) fn install(&mut self, plan: Arc<Plan>, generation: u32, oldest: Round) -> Result<(), Refusal> {
        let server = self.settings.server;
        let packets = Shard::new(&plan, server).packets();
        if packets > PACKETS_MAX {
            let text = format!(
                "server {server} would sum {packets} packets in every round, and {PACKETS_MAX} are possible; use larger packets, or \
                 more servers"
            );
            return Err(Refusal::new(RefusalCode::Plan, text));
        }
        let members = Members::new(generation, self.settings.world, self.exchanging_ranks())
            .map_err(|why| Refusal::new(RefusalCode::Plan, why))?;
        self.plan = Some(ActivePlan::new(Arc::clone(&plan), members.clone(), oldest));
        self.actions.push_back(JobAction::Install(Installation { plan, members, oldest }));
        self.is_resumed = false;
        self.generation = generation;
        self.resumes.clear();
        self.decision = None;
        self.first_unended = oldest;
        let begin = |own: &mut RankConnection| (own.next, own.generation) = (oldest, generation);
        self.ranks.values_mut().for_each(begin);
        Ok(())
    }
}
