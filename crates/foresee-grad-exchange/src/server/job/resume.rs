// SPDX-License-Identifier: Apache-2.0
//! How a job goes on at a server that knows nothing of it, since the one before was lost: by what its ranks keep.
//!
//! Every rank says under which plan it is and which gradients it keeps. Once all have, the plan holds here, its rounds
//! begin with the oldest that some rank may lack something of, and ranks push again what they keep. A rank that was
//! about to hear of a plan which others have begun is told of it; one that proposed a plan proposes it again.
//!
//! Refuses to go on without a rank, or with two plans: sums would have other bits, or none. And what no rank can have lived
//! to see: whoever says so has not come from a server.

use std::collections::BTreeMap;
use std::sync::Arc;

use foresee_grad_queue::{Members, Plan, Round};
use foresee_units::Rank;
use foresee_wire::{Fault, FaultCode, Message, Resume, Resumed};

use super::{Inner, Job};
use crate::server::session::lock;

/// The last membership and the last round that a rank may come with: what is counted from there on does not overflow, and no
/// job has come half as far.
const GENERATION_MAX: u32 = u32::MAX / 2;
const ROUND_MAX: u64 = u64::MAX / 2;

impl Job {
    /// A rank says what it knows.
    pub(super) fn resume(&self, rank: Rank, known: Resume) -> Result<(), Fault> {
        {
            let mut inner = lock(&self.inner);
            if inner.session.is_some() {
                let text = format!("rank {rank} comes from a lost server to one that has its job");
                return Err(Fault::new(FaultCode::Protocol, text));
            }
            inner.note(self, rank, known)?;
        }
        self.restore()
    }

    /// Once every rank has come, and one of them is under a plan, that plan goes on.
    pub(super) fn restore(&self) -> Result<(), Fault> {
        let mut inner = lock(&self.inner);
        let generation = inner.resumes.values().map(|known| known.generation).max().unwrap_or(0);
        if generation == 0 || inner.resumes.len() < self.expected(&inner) || !self.is_full(&inner) {
            return Ok(());
        }
        let refused = |why: &dyn std::fmt::Display| Fault::new(FaultCode::Plan, why.to_string());
        let mut resumes = std::mem::take(&mut inner.resumes);
        // Whoever is behind has proposed what the others are under: this is the answer.
        let behind: Vec<Rank> = resumes
            .iter()
            .filter(|(_, known)| known.generation < generation)
            .map(|(rank, _)| *rank)
            .collect();
        resumes.retain(|_, known| known.generation == generation);
        for rank in &behind {
            let proposed = inner.proposals.remove(rank).is_some();
            if let Some(seat) = inner.ranks.get_mut(rank) {
                // It may just be proposing it.
                seat.answered = !proposed;
            }
        }
        differs(&resumes).map_or(Ok(()), Err)?;
        let oldest = resumes.values().map(|known| known.oldest).max().unwrap_or(0);
        let body = resumes.into_values().next().expect("one of them has the newest plan").body;
        let plan = Arc::new(Plan::decode(&body).map_err(|why| refused(&why))?);
        self.install(&mut inner, plan, generation, Round(oldest))?;
        inner.resumed = true;
        for (rank, seat) in &inner.ranks {
            let Some(control) = &seat.control else { continue };
            control.tell(if behind.contains(rank) {
                Message::Plan(foresee_wire::Plan { generation, body: body.clone() })
            } else {
                Message::Resumed(Resumed { generation, oldest, knows: false })
            });
        }
        Ok(())
    }
}

impl Inner {
    /// Keeps what a rank knows until all have said so.
    pub(super) fn note(&mut self, job: &Job, rank: Rank, known: Resume) -> Result<(), Fault> {
        check_reach(rank, known.generation, known.oldest)?;
        if !known.live.is_empty() {
            let ranks = crate::members::from_bits(&known.live);
            let members = Members::of(known.generation, job.world, ranks);
            let members = members.map_err(|why| Fault::new(FaultCode::Protocol, why.to_string()))?;
            if !job.survives || !members.contains(rank) {
                let text = format!("rank {rank} comes from a job that others are lost in, or itself");
                return Err(Fault { rank: Some(rank.0), ..Fault::new(FaultCode::Protocol, text) });
            }
            self.members = Some(members);
        }
        self.resumes.insert(rank, known);
        Ok(())
    }
}

/// Refuses numbers behind which nothing could be counted any more.
pub(super) fn check_reach(rank: Rank, generation: u32, oldest: u64) -> Result<(), Fault> {
    if generation <= GENERATION_MAX && oldest <= ROUND_MAX {
        return Ok(());
    }
    let text = format!(
        "rank {rank} speaks of membership {generation} and round {oldest}; there are up to {GENERATION_MAX} and {ROUND_MAX}"
    );
    Err(Fault { rank: Some(rank.0), ..Fault::new(FaultCode::Protocol, text) })
}

/// Why ranks of one generation cannot go on together.
fn differs(resumes: &BTreeMap<Rank, Resume>) -> Option<Fault> {
    let (first, one) = resumes.first_key_value()?;
    let (other, _) = resumes.iter().find(|(_, known)| known.body != one.body)?;
    let text = format!(
        "rank {first} and rank {other} come from a lost server with different plans; start the job again"
    );
    Some(Fault::new(FaultCode::Plan, text))
}
