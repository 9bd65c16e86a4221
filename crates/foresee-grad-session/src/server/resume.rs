// SPDX-License-Identifier: Apache-2.0
//! Resumption of a job at a replacement server, which has no state of it.
//!
//! Every rank reports its plan and the oldest round of which it retains gradients. Once all have, the plan is installed
//! here. Its rounds begin with the latest reported one, and ranks push again what they retain. A rank that proposed a
//! plan which others already have receives it as the answer. Ranks with different plans cannot continue, because sums
//! would have different bits, or none.

use std::collections::BTreeMap;
use std::sync::Arc;

use foresee_grad_queue::{Members, Plan, Round};
use foresee_units::Rank;

use super::ServerJob;
use crate::{Refusal, RefusalCode, Resume, Resumed, ServerMessage, members};

/// The last membership and the last round that a rank may report, so that later numbers do not overflow. No job comes
/// half as far.
const GENERATION_MAX: u32 = u32::MAX / 2;
const ROUND_MAX: Round = Round(u64::MAX / 2);

impl ServerJob {
    /// Install the plan of a lost server once every rank has reported its state, and one of them has a plan.
    pub(super) fn resume_plan(&mut self) -> Result<(), Refusal> {
        let generation = self.resumes.values().map(|state| state.generation).max().unwrap_or(0);
        if generation == 0 || self.resumes.len() < self.expected() || !self.is_complete() {
            return Ok(());
        }
        let mut resumes = std::mem::take(&mut self.resumes);
        // A rank that is behind has proposed the plan of the others, and is sent it as the answer.
        let is_behind = |state: &Resume| state.generation < generation;
        let behind: Vec<Rank> =
            resumes.iter().filter(|(_, state)| is_behind(state)).map(|(rank, _)| *rank).collect();
        resumes.retain(|_, state| !is_behind(state));
        for rank in &behind {
            let has_proposed = self.proposals.remove(rank).is_some();
            if let Some(connection) = self.ranks.get_mut(rank) {
                // Its proposal may still be in flight.
                connection.is_answered = !has_proposed;
            }
        }
        check_plans(&resumes)?;
        let oldest = resumes.values().map(|state| state.oldest).max().unwrap_or_default();
        let (rank, state) = resumes.pop_first().expect("one of them has the newest plan");
        let body = state.body;
        let plan = Plan::decode(&body).map_err(|why| {
            let text =
                format!("rank {rank} resumes from a lost server with a plan that cannot be decoded: {why}");
            Refusal::new(RefusalCode::Plan, text).about(rank)
        })?;
        self.install(Arc::new(plan), generation, oldest)?;
        self.is_resumed = true;
        let peers: Vec<_> = self.connected().collect();
        for peer in peers {
            let message = if behind.contains(&peer.rank) {
                ServerMessage::Plan { generation, body: body.clone() }
            } else {
                ServerMessage::Resumed(Resumed { generation, oldest, has_sums: false })
            };
            self.send(peer, message);
        }
        Ok(())
    }

    /// Store the state of a rank until all ranks have reported theirs.
    pub(super) fn store_resume(&mut self, rank: Rank, state: Resume) -> Result<(), Refusal> {
        check_range(rank, state.generation, state.oldest)?;
        if !state.live.is_empty() {
            let ranks = members::from_bits(&state.live);
            let members = Members::new(state.generation, self.settings.world, ranks).map_err(|why| {
                Refusal::protocol(rank, format!("rank {rank} reports an invalid membership: {why}"))
            })?;
            if !self.settings.continues_after_loss || !members.contains(rank) {
                let text = format!("rank {rank} resumes with a membership that this job cannot have");
                return Err(Refusal::protocol(rank, text));
            }
            self.members = Some(members);
        }
        self.resumes.insert(rank, state);
        Ok(())
    }
}

/// Check that generations and rounds can be counted on from these numbers.
pub(super) fn check_range(rank: Rank, generation: u32, oldest: Round) -> Result<(), Refusal> {
    if generation <= GENERATION_MAX && oldest <= ROUND_MAX {
        return Ok(());
    }
    let text = format!(
        "rank {rank} names membership {generation} and round {oldest}; the largest are {GENERATION_MAX} and {ROUND_MAX}"
    );
    Err(Refusal::protocol(rank, text))
}

/// Check that ranks of one generation have the same plan.
fn check_plans(resumes: &BTreeMap<Rank, Resume>) -> Result<(), Refusal> {
    let Some((first, one)) = resumes.first_key_value() else { return Ok(()) };
    let other = resumes.iter().find(|(_, state)| state.body != one.body);
    other.map_or(Ok(()), |(other, _)| {
        let text = format!(
            "rank {first} and rank {other} resume from a lost server with different plans; restart the job"
        );
        Err(Refusal::new(RefusalCode::Plan, text))
    })
}
