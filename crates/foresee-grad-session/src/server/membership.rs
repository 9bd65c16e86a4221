// SPDX-License-Identifier: Apache-2.0
//! Membership changes: how a job goes on without ranks that are lost.
//!
//! ```text
//! a server notices ──> LOST to its ranks ──> LOST to the first server, which decides
//! first server ──> MEMBERS ──> every rank that is left ──> KNOWN ──> first server ──> CHANGE ──> ranks ──> CHANGE ──> every server
//! ```
//!
//! From MEMBERS to CHANGE ranks accept no end of a round, so that the state that they report holds: a server that knows
//! more has told no rank, and forgets it. A server changes with the first CHANGE that arrives; what a rank sends counts
//! from its own CHANGE on. A further loss starts it all over. A job in which ranks agree on a plan just then, or come from
//! a lost server, ends instead.

use std::collections::BTreeMap;

use foresee_grad_queue::{Members, Round, TensorSet};
use foresee_units::Rank;

use super::ServerJob;
use super::action::JobAction;
use super::resume::check_reach;
use crate::{
    Change, Changed, Known, LostRank, NewMembers, OPEN_ROUNDS_MAX, Refusal, RefusalCode, ServerMessage, Used,
    members,
};

/// The membership that the first server has proposed. The server itself changes later, when a rank passes it on.
#[derive(Debug)]
pub(super) struct Decision {
    members: Members,
    /// State of the members, until all have reported it.
    known: Option<BTreeMap<Rank, Known>>,
}

impl ServerJob {
    /// Whether ranks report their state, since one is lost.
    pub(super) fn is_changing(&self) -> bool {
        self.decision.as_ref().is_some_and(|decision| decision.known.is_some())
    }

    /// Goes on without ranks that are not connected any more; false if that is not possible.
    pub(super) fn go_on_without(&mut self, rank: Rank, why: &str) -> bool {
        let Some(plan) = &self.plan else { return false };
        if !self.settings.survives || !self.proposals.is_empty() || !self.resumes.is_empty() {
            return false;
        }
        self.departure = None;
        if self.settings.server.0 > 0 {
            self.broadcast(&ServerMessage::Lost(LostRank { rank, why: why.to_owned() }));
            return true;
        }
        let before = match self.decision.take() {
            Some(decision) => decision.members,
            None => plan.rounds.members().clone(),
        };
        let gone: Vec<Rank> = before.iter().filter(|rank| !self.ranks.contains_key(rank)).collect();
        let Ok(members) = before.without(&gone) else { return true };
        self.broadcast(&ServerMessage::Members(NewMembers {
            generation: members.generation(),
            rank,
            live: members::to_bits(&members),
            why: format!("rank {rank} is lost: {why}"),
        }));
        self.decision = Some(Decision { members, known: Some(BTreeMap::new()) });
        true
    }

    /// A rank reports its state: once all members have, it holds for all.
    pub(super) fn know(&mut self, rank: Rank, known: Known) {
        let Some(Decision { members, known: reported }) = &mut self.decision else { return };
        let Some(all) = reported.as_mut().filter(|_| known.generation == members.generation()) else {
            return;
        };
        all.insert(rank, known);
        if !members.iter().all(|rank| all.contains_key(&rank)) {
            return;
        }
        let (generation, live) = (members.generation(), members::to_bits(members));
        let Some(all) = reported.take() else { return };
        let oldest = all.values().map(|known| known.oldest).max().unwrap_or_default();
        let used = all.into_values().flat_map(|known| known.used).filter(|used| used.round >= oldest);
        let used: BTreeMap<Round, Used> = used.map(|used| (used.round, used)).collect();
        let used = used.into_values().take(OPEN_ROUNDS_MAX).collect();
        self.broadcast(&ServerMessage::Change(Change { generation, live, oldest, used }));
    }

    /// A rank passes on what all ranks resume from; the first that does changes this server.
    pub(super) fn change(&mut self, rank: Rank, change: &Change) -> Result<(), Refusal> {
        let refused = |why: &dyn std::fmt::Display| {
            let text = format!("rank {rank} passes on members that cannot be: {why}");
            Refusal::new(RefusalCode::Protocol, text).about(rank)
        };
        let generation = change.generation;
        check_reach(rank, generation, change.oldest)?;
        let is_first = self.settings.server.0 == 0;
        let proposed = self.decision.as_ref().map_or(0, |decision| decision.members.generation());
        let Some(plan) = &mut self.plan else {
            return Err(refused(&"there is no plan yet"));
        };
        if is_first && generation > proposed && plan.rounds.members().generation() < generation {
            return Err(refused(&"this server has not proposed them"));
        }
        if plan.rounds.members().generation() < generation {
            let ranks = members::from_bits(&change.live);
            let members =
                Members::new(generation, self.settings.world, ranks).map_err(|why| refused(&why))?;
            let tensors = plan.plan.tensors();
            let set = |used: &Used| Ok((used.round, TensorSet::from_bytes(&used.used, tensors)?));
            let promised = change.used.iter().map(set).collect::<Result<Vec<_>, _>>();
            let promised = promised.map_err(|why: foresee_grad_queue::QueueError| refused(&why))?;
            plan.rounds
                .handle_members(members.clone(), change.oldest, &promised)
                .map_err(|why| refused(&why))?;
            let oldest = plan.rounds.oldest();
            self.actions.extend(plan.advance());
            self.actions.push_back(JobAction::Adopt(members.clone()));
            let gone: Vec<Rank> =
                self.ranks.keys().copied().filter(|rank| !members.contains(*rank)).collect();
            for rank in gone {
                let Some(connection) = self.ranks.remove(&rank) else { continue };
                self.close(rank, &connection, Some(self.refuse_lost(rank)));
            }
            self.generation = generation;
            self.members = Some(members);
            // Before anything that holds under the new membership, and after everything of the old one.
            self.broadcast(&ServerMessage::Changed(Changed { generation, oldest }));
            self.announce();
        }
        if let Some(connection) = self.ranks.get_mut(&rank) {
            connection.generation = connection.generation.max(generation);
        }
        Ok(())
    }
}
