// SPDX-License-Identifier: Apache-2.0
//! Membership changes: how a job continues without lost ranks.
//!
//! ```text
//! a server detects a loss ──> LOST to its ranks ──> LOST to the first server, which decides
//! first server ──> MEMBERS ──> every remaining rank ──> KNOWN ──> first server ──> CHANGE ──> ranks ──> CHANGE ──> every server
//! ```
//!
//! Between MEMBERS and CHANGE ranks accept no round completion, so the state that they report stays valid: a server
//! with newer state has reported it to no rank, and drops it. A server changes with the first CHANGE that arrives; a
//! rank's messages count after its own CHANGE. Another loss starts the change again. The job ends instead if a plan is
//! being agreed on, or ranks resume from a lost server.

use std::collections::BTreeMap;
use std::fmt::Display;

use foresee_grad_queue::{Members, QueueError, Round, TensorSet};
use foresee_units::Rank;

use super::ServerJob;
use super::action::JobAction;
use super::resume::check_range;
use crate::{
    Change, Changed, Known, LostRank, NewMembers, OPEN_ROUNDS_MAX, Refusal, ServerMessage, Used, members,
};

/// The membership that the first server has proposed. The server itself changes later, when a rank passes it on.
#[derive(Debug)]
pub(super) struct Decision {
    members: Members,
    /// State of the members, until all have reported it.
    known: Option<BTreeMap<Rank, Known>>,
}

impl ServerJob {
    /// Whether ranks are reporting their state after a loss.
    pub(super) fn is_changing(&self) -> bool {
        self.decision.as_ref().is_some_and(|decision| decision.known.is_some())
    }

    /// Continue without the ranks that are no longer connected; return false if that is not possible.
    pub(super) fn continue_without(&mut self, rank: Rank, why: &str) -> bool {
        let Some(plan) = &self.plan else { return false };
        if !self.settings.continues_after_loss || !self.proposals.is_empty() || !self.resumes.is_empty() {
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

    /// Handle a rank's state. Once all members have reported theirs, announce the state from which all resume.
    pub(super) fn receive_known(&mut self, rank: Rank, known: Known) {
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

    /// Handle the state from which all ranks resume; the first rank that passes it on changes this server.
    pub(super) fn receive_change(&mut self, rank: Rank, change: &Change) -> Result<(), Refusal> {
        let refused = |why: &dyn Display| {
            Refusal::protocol(rank, format!("rank {rank} passes on an invalid membership: {why}"))
        };
        let invalid = |why: QueueError| refused(&why);
        let generation = change.generation;
        check_range(rank, generation, change.oldest)?;
        let is_first = self.settings.server.0 == 0;
        let proposed = self.decision.as_ref().map_or(0, |decision| decision.members.generation());
        let Some(plan) = &mut self.plan else {
            return Err(refused(&"there is no plan yet"));
        };
        if plan.rounds.members().generation() < generation {
            if is_first && generation > proposed {
                return Err(refused(&"this server has not proposed it"));
            }
            let ranks = members::from_bits(&change.live);
            let members = Members::new(generation, self.settings.world, ranks).map_err(invalid)?;
            let tensors = plan.plan.tensors();
            let set = |used: &Used| Ok((used.round, TensorSet::from_bytes(&used.used, tensors)?));
            let promised = change.used.iter().map(set).collect::<Result<Vec<_>, _>>().map_err(invalid)?;
            plan.rounds.handle_members(members.clone(), change.oldest, &promised).map_err(invalid)?;
            let oldest = plan.rounds.oldest();
            self.actions.extend(plan.advance());
            self.actions.push_back(JobAction::Adopt(members.clone()));
            let gone: Vec<Rank> =
                self.ranks.keys().copied().filter(|rank| !members.contains(*rank)).collect();
            for rank in gone {
                let Some(connection) = self.ranks.remove(&rank) else { continue };
                self.close(rank, &connection, Some(self.lost_refusal(rank)));
            }
            self.generation = generation;
            self.members = Some(members);
            // After all messages of the old membership, and before any of the new one.
            self.broadcast(&ServerMessage::Changed(Changed { generation, oldest }));
            self.announce();
        }
        if let Some(connection) = self.ranks.get_mut(&rank) {
            connection.generation = connection.generation.max(generation);
        }
        Ok(())
    }
}
