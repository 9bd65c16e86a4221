// SPDX-License-Identifier: Apache-2.0
//! Membership changes, as a rank sees them: report its state, receive the state from which all resume, push again.
//!
//! After the first server proposes members, this rank accepts no round completion until every server has acknowledged
//! the change, so all ranks resume from the state that it reported. Sums under the old membership may arrive meanwhile;
//! they stay valid, at the servers too. The job ends if a plan is being agreed on, or a server is lost in the same
//! rounds, because no rank then knows which sums are exact.

use foresee_grad_queue::{Round, ServerId};

use super::{RankFailure, RankSession};
use crate::{Change, Changed, Known, NewMembers, RankMessage, Used, members};

/// The server that decides on members and plans.
pub(super) const FIRST: ServerId = ServerId(0);

/// Memberships of a job that continues without lost ranks.
#[derive(Debug)]
pub(super) struct Membership {
    /// The newest proposed generation; 0 if none was proposed under this plan.
    proposed: u32,
    /// The reason, for people.
    why: String,
    /// The proposed members, one bit per rank.
    proposed_live: Vec<u8>,
    /// The members, one bit per rank; empty for all.
    pub(super) live: Vec<u8>,
    /// The newest generation that each server has changed to.
    changed: Vec<u32>,
    /// Number of losses.
    pub(super) lost: u64,
}

impl Membership {
    pub(super) fn new(servers: usize) -> Self {
        Self {
            proposed: 0,
            why: String::new(),
            proposed_live: Vec::new(),
            live: Vec::new(),
            changed: vec![0; servers],
            lost: 0,
        }
    }

    /// Whether a rank was lost and some server has not changed yet.
    pub(super) fn is_changing(&self) -> bool {
        self.changed.iter().any(|generation| *generation < self.proposed)
    }

    /// Whether a server's reports about rounds belong to an earlier membership.
    pub(super) fn is_outdated(&self, server: ServerId) -> bool {
        self.changed.get(usize::from(server.0)).is_none_or(|changed| *changed < self.proposed)
    }

    /// Whether a generation was proposed, so that its change is about to arrive.
    pub(super) fn is_proposed(&self, generation: u32) -> bool {
        generation <= self.proposed
    }

    /// Start over: each plan counts generations anew.
    pub(super) fn forget(&mut self) {
        self.proposed = 0;
        self.changed.fill(0);
    }
}

impl RankSession {
    /// Handle the first server's proposal of members.
    pub(super) fn receive_members(
        &mut self,
        server: ServerId,
        proposed: NewMembers,
    ) -> Result<(), RankFailure> {
        let is_agreeing = self.plan.is_none() || self.agreement.is_in_progress();
        let replaced = self.plan.as_ref().filter(|plan| plan.is_open(plan.replaced_round));
        let conflict = if is_agreeing {
            Some("ranks agree on a plan")
        } else if !self.is_connected() || !self.resuming.is_empty() {
            Some("a server is lost, too")
        } else {
            // Some ranks hold sums of the lost server that include the lost rank; others would get them without it.
            replaced.map(|_| "a replacement server repeats sums of a lost one")
        };
        if let Some(conflict) = conflict {
            let why = format!("{}, while {conflict}", proposed.why);
            return Err(RankFailure::RankLost { rank: proposed.rank, why, missing: self.missing() });
        }
        let collector = &self.plan.as_ref().ok_or(RankFailure::NoPlan)?.collector;
        if server != FIRST || proposed.generation <= collector.generation().max(self.membership.proposed) {
            return Err(unannounced(server, "MEMBERS"));
        }
        if !members::from_bits(&proposed.live).any(|rank| rank == self.settings.rank) {
            return Err(RankFailure::unexpected(server, "proposes members without this rank"));
        }
        self.membership.proposed = proposed.generation;
        self.membership.why = proposed.why;
        self.membership.proposed_live = proposed.live;
        let oldest = collector.oldest_retained();
        let rounds = (oldest.0..collector.current().0).map(Round);
        let used = rounds.filter_map(|round| Some(Used { round, used: collector.used(round)?.to_bytes() }));
        let known = Known { generation: proposed.generation, oldest, used: used.collect() };
        self.send(FIRST, RankMessage::Known(known));
        Ok(())
    }

    /// Handle the state from which all ranks resume, and pass it on to every server.
    pub(super) fn receive_change(&mut self, server: ServerId, change: Change) -> Result<(), RankFailure> {
        let is_proposed = server == FIRST && self.membership.proposed > 0;
        if !is_proposed || change.generation != self.membership.proposed {
            return Err(unannounced(server, "CHANGE"));
        }
        if change.live != self.membership.proposed_live {
            return Err(RankFailure::unexpected(server, "changes to other members than it proposed"));
        }
        let plan = self.plan_mut()?;
        let current = plan.collector.current();
        let last = change.oldest.0.checked_sub(1).map(Round);
        // A round is done only after every rank has confirmed it.
        let is_received = |last: Round| last < current && plan.collector.is_round_settled(last);
        if !last.is_none_or(is_received) {
            return Err(RankFailure::unexpected(server, "reports rounds as done that this rank lacks"));
        }
        // Every rank ends a round before any rank learns what it used. Which rank differs is unknown.
        if let Some(Used { round, .. }) = change.used.iter().find(|used| used.round >= current) {
            return Err(RankFailure::Disagree(format!(
                "server {server} reports the used tensors of round {round}, which this rank has not ended; the ranks' views of \
                 the round differ"
            )));
        }
        plan.collector.handle_generation(change.generation);
        plan.reports.clear();
        plan.changed_round = Some(current);
        for server in self.ids() {
            self.send(server, RankMessage::Change(change.clone()));
            self.offer_missing(server);
        }
        let left = members::from_bits(&change.live).count();
        let why = std::mem::take(&mut self.membership.why);
        self.notices.push(format!("{why}; the {left} remaining ranks continue"));
        self.membership.live = change.live;
        self.membership.lost += 1;
        self.advance();
        Ok(())
    }

    /// Handle a server's change to a membership: its later reports count. Returns false while this rank does not know
    /// the membership, which the first server reports.
    pub(super) fn receive_changed(
        &mut self,
        server: ServerId,
        changed: Changed,
    ) -> Result<bool, RankFailure> {
        let known = self.plan_mut()?.collector.generation();
        if self.is_over || changed.generation < self.membership.proposed {
            return Ok(true);
        }
        if known < changed.generation {
            // The first server reports it over the same connection; the others wait for this rank's CHANGE.
            if server == FIRST || !self.membership.is_proposed(changed.generation) {
                return Err(unannounced(server, "CHANGED"));
            }
            return Ok(false);
        }
        if let Some(own) = self.membership.changed.get_mut(usize::from(server.0)) {
            *own = changed.generation;
        }
        if let Some(last) = changed.oldest.0.checked_sub(1) {
            self.receive_done(server, Round(last))?;
        }
        Ok(true)
    }
}

/// A membership message that a server may not send yet.
fn unannounced(server: ServerId, kind: &str) -> RankFailure {
    RankFailure::Disagree(format!(
        "server {server} sends {kind} of a membership that was not announced; it may be of another version"
    ))
}
