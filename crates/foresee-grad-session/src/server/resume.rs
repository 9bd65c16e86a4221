// SPDX-License-Identifier: Apache-2.0
//! Resumption at a server that has no state of a job, since the one before was lost.
//!
//! Every rank reports its plan and the oldest round of which it retains gradients. Once all have, the plan holds here, its
//! rounds begin with the latest of those, and ranks push again what they retain. A rank that proposed a plan which others
//! are already under gets it as the answer. Ranks with different plans cannot go on: sums would have other bits, or none.

use std::collections::BTreeMap;
use std::sync::Arc;

use foresee_grad_queue::{Members, Plan, Round};
use foresee_units::Rank;

use super::ServerJob;
use crate::{Refusal, RefusalCode, Resume, Resumed, ServerMessage, members};

/// The last membership and the last round that a rank may report: what is counted from there on does not overflow, and no
/// job has come half as far.
const GENERATION_MAX: u32 = u32::MAX / 2;
const ROUND_MAX: Round = Round(u64::MAX / 2);

impl ServerJob {
    /// A rank that comes from a lost server reports its state.
    pub(super) fn resume(&mut self, rank: Rank, known: Resume) -> Result<(), Refusal> {
        if self.plan.is_some() {
            let text = format!("rank {rank} comes from a lost server to one that has its job");
            return Err(Refusal::new(RefusalCode::Protocol, text).about(rank));
        }
        self.note(rank, known)?;
        self.restore()
    }

    /// Once every rank has come, and one of them has a plan, that plan goes on.
    pub(super) fn restore(&mut self) -> Result<(), Refusal> {
        let generation = self.resumes.values().map(|known| known.generation).max().unwrap_or(0);
        if generation == 0 || self.resumes.len() < self.expected() || !self.is_full() {
            return Ok(());
        }
        let mut resumes = std::mem::take(&mut self.resumes);
        // A rank that is behind has proposed the plan of the others: this is the answer.
        let is_behind = |known: &Resume| known.generation < generation;
        let behind: Vec<Rank> =
            resumes.iter().filter(|(_, known)| is_behind(known)).map(|(rank, _)| *rank).collect();
        resumes.retain(|_, known| !is_behind(known));
        for rank in &behind {
            let has_proposed = self.proposals.remove(rank).is_some();
            if let Some(connection) = self.ranks.get_mut(rank) {
                // It may just be proposing it.
                connection.is_answered = !has_proposed;
            }
        }
        difference(&resumes).map_or(Ok(()), Err)?;
        let oldest = resumes.values().map(|known| known.oldest).max().unwrap_or_default();
        let (rank, known) = resumes.pop_first().expect("one of them has the newest plan");
        let body = known.body;
        let plan = Plan::decode(&body).map_err(|why| {
            let text = format!("rank {rank} comes from a lost server with a plan that cannot be read: {why}");
            Refusal::new(RefusalCode::Plan, text).about(rank)
        })?;
        self.install(Arc::new(plan), generation, oldest)?;
        self.is_resumed = true;
        let peers: Vec<_> = self.connected().collect();
        for peer in peers {
            let message = if behind.contains(&peer.rank) {
                ServerMessage::Plan { generation, body: body.clone() }
            } else {
                ServerMessage::Resumed(Resumed { generation, oldest, knows: false })
            };
            self.send(peer, message);
        }
        Ok(())
    }

    /// Retains the state of a rank until all ranks have reported theirs.
    pub(super) fn note(&mut self, rank: Rank, known: Resume) -> Result<(), Refusal> {
        check_reach(rank, known.generation, known.oldest)?;
        if !known.live.is_empty() {
            let ranks = members::from_bits(&known.live);
            let members = Members::new(known.generation, self.settings.world, ranks).map_err(|why| {
                let text = format!("rank {rank} comes with members that cannot be: {why}");
                Refusal::new(RefusalCode::Protocol, text).about(rank)
            })?;
            if !self.settings.survives || !members.contains(rank) {
                let text = format!("rank {rank} comes from a job that others are lost in, or itself");
                return Err(Refusal::new(RefusalCode::Protocol, text).about(rank));
            }
            self.members = Some(members);
        }
        self.resumes.insert(rank, known);
        Ok(())
    }
}

/// Check that generations and rounds can still be counted from these numbers on.
pub(super) fn check_reach(rank: Rank, generation: u32, oldest: Round) -> Result<(), Refusal> {
    if generation <= GENERATION_MAX && oldest <= ROUND_MAX {
        return Ok(());
    }
    let text = format!(
        "rank {rank} speaks of membership {generation} and round {oldest}; there are up to {GENERATION_MAX} and {ROUND_MAX}"
    );
    Err(Refusal::new(RefusalCode::Protocol, text).about(rank))
}

/// The reason why ranks of one generation cannot go on together.
fn difference(resumes: &BTreeMap<Rank, Resume>) -> Option<Refusal> {
    let (first, one) = resumes.first_key_value()?;
    let (other, _) = resumes.iter().find(|(_, known)| known.body != one.body)?;
    let text = format!(
        "rank {first} and rank {other} come from a lost server with different plans; start the job again"
    );
    Some(Refusal::new(RefusalCode::Plan, text))
}
