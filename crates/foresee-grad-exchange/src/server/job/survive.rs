// SPDX-License-Identifier: Apache-2.0
//! How a job goes on without ranks that are lost, where its ranks want that.
//!
//! ```text
//! a server notices ──> LOST to its ranks ──> LOST to the first server, which decides
//! first server ──> MEMBERS ──> every rank that is left ──> KNOWN ──> first server ──> CHANGE ──> ranks ──> CHANGE ──> every server
//! ```
//!
//! From MEMBERS to CHANGE ranks hear of no round's end, so that what they say they know holds: a server that knows more has
//! told it to nobody, and forgets it. A server changes with the first CHANGE that comes; what a rank says counts from its
//! own on. Whoever is lost meanwhile starts it all over.
//!
//! Refuses where ranks agree on a plan just then, or come from a lost server: such a job ends.

use std::collections::BTreeMap;

use foresee_grad_queue::{Members, Round, TensorSet};
use foresee_units::Rank;
use foresee_wire::{Change, Changed, Fault, FaultCode, Known, Lost, Message, OPEN_ROUNDS_MAX, Used};

use super::resume::check_reach;
use super::{Inner, Job};
use crate::server::session::lock;

/// What the first server has decided. It changes itself later, when a rank passes that on.
#[derive(Debug)]
pub(super) struct Decision {
    members: Members,
    /// What those who are left know, until all have said it.
    known: Option<BTreeMap<Rank, Known>>,
}

impl Decision {
    pub(super) fn is_open(&self) -> bool {
        self.known.is_some()
    }
}

impl Job {
    /// Goes on without whoever is not here any more; false if that is not possible.
    pub(super) fn go_on_without(&self, inner: &mut Inner, rank: Rank, why: &str) -> bool {
        let Some(session) = inner.session.clone() else { return false };
        if !self.survives || !inner.proposals.is_empty() || !inner.resumes.is_empty() {
            return false;
        }
        inner.left = None;
        if self.server.0 > 0 {
            inner.tell(&Message::Lost(Lost { rank: rank.0, why: cut(why) }));
            return true;
        }
        let before = match inner.decision.take() {
            Some(decision) => decision.members,
            None => (*session.members()).clone(),
        };
        let gone: Vec<Rank> = before.iter().filter(|rank| !inner.ranks.contains_key(rank)).collect();
        let Ok(members) = before.without(&gone) else { return true };
        let live = crate::members::to_bits(&members);
        let why = cut(&format!("rank {rank} is lost: {why}"));
        inner.tell(&Message::Members(foresee_wire::Members {
            generation: members.generation(),
            rank: rank.0,
            live,
            why,
        }));
        inner.decision = Some(Decision { members, known: Some(BTreeMap::new()) });
        true
    }

    /// A rank has heard from another server that one is lost.
    pub(super) fn accuse(&self, lost: &Lost) {
        self.lose(Rank(lost.rank), &lost.why);
    }

    /// A rank says what it knows: once all who are left have, it holds for all.
    pub(super) fn know(&self, rank: Rank, known: Known) {
        let mut inner = lock(&self.inner);
        let Some(decision) = &mut inner.decision else { return };
        let members = decision.members.clone();
        let Some(heard) = decision.known.as_mut().filter(|_| known.generation == members.generation()) else {
            return;
        };
        heard.insert(rank, known);
        if !members.iter().all(|rank| heard.contains_key(&rank)) {
            return;
        }
        let Some(known) = decision.known.take() else { return };
        let oldest = known.values().map(|known| known.oldest).max().unwrap_or(0);
        let told = known.into_values().flat_map(|known| known.used).filter(|used| used.round >= oldest);
        let used: BTreeMap<u64, Used> = told.map(|used| (used.round, used)).collect();
        let used = used.into_values().take(OPEN_ROUNDS_MAX).collect();
        let live = crate::members::to_bits(&members);
        inner.tell(&Message::Change(Change { generation: members.generation(), live, oldest, used }));
    }

    /// What everybody goes by from now on, says a rank; the first who does changes this server.
    pub(super) fn change(&self, rank: Rank, change: &Change) -> Result<(), Fault> {
        let refused = |why: &dyn std::fmt::Display| Fault::new(FaultCode::Protocol, why.to_string());
        check_reach(rank, change.generation, change.oldest)?;
        let mut gone = Vec::new();
        {
            let mut inner = lock(&self.inner);
            let generation = change.generation;
            let Some(session) = inner.session.clone() else {
                return Err(refused(&format_args!("rank {rank} tells of members before a plan")));
            };
            if session.members().generation() < generation {
                let ranks = crate::members::from_bits(&change.live);
                let members = Members::of(generation, self.world, ranks).map_err(|why| refused(&why))?;
                let set = |used: &Used| {
                    Ok((Round(used.round), TensorSet::from_bytes(&used.used, session.plan.tensors())?))
                };
                let promised = change.used.iter().map(set).collect::<Result<Vec<_>, _>>();
                let promised = promised.map_err(|why: foresee_grad_queue::QueueError| refused(&why))?;
                let (oldest, told) =
                    session.change(&members, Round(change.oldest), &promised).map_err(|why| refused(&why))?;
                // Once nothing is refused any more: who ends the job has to find them.
                let lost: Vec<Rank> =
                    inner.ranks.keys().copied().filter(|rank| !members.contains(*rank)).collect();
                gone.extend(lost.iter().filter_map(|rank| inner.ranks.remove(rank)));
                inner.generation = generation;
                inner.members = Some(members);
                // Before anything that holds under the new membership, and by the same lock after all of the old one.
                inner.tell(&Message::Changed(Changed { generation, oldest: oldest.0 }));
                inner.announce(told);
            }
            if let Some(seat) = inner.ranks.get_mut(&rank) {
                seat.generation = seat.generation.max(generation);
            }
        }
        for seat in gone {
            seat.close();
        }
        Ok(())
    }
}

/// A text that a message has room for.
pub(super) fn cut(text: &str) -> String {
    Fault::new(FaultCode::Lost, text).text
}
