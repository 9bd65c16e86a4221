// SPDX-License-Identifier: Apache-2.0
//! Membership changes, as a rank sees them: report its state, hear what all resume from, pass it on, push again.
//!
//! From when the first server proposes members, this rank accepts no end of a round until each server has changed: the
//! state that it has reported is then what all resume from. Sums under the old membership may arrive meanwhile; they stay
//! as they are, at the servers too. Where ranks agree on a plan just then, or a server is lost in the same rounds, no rank
//! knows what is exact, and the job ends.

use foresee_grad_queue::{Round, ServerId};

use super::{RankFailure, RankSession};
use crate::{Change, Changed, Known, NewMembers, RankMessage, Used, members};

/// The server that decides who is left.
pub(super) const FIRST: ServerId = ServerId(0);

/// Memberships, where the job goes on without ranks that are lost.
#[derive(Debug)]
pub(super) struct Membership {
    /// The newest one that was proposed; 0: none under this plan.
    coming: u32,
    /// The reason, for people.
    why: String,
    /// Its members, one bit per rank.
    proposed: Vec<u8>,
    /// The members, one bit per rank; empty: all.
    pub(super) live: Vec<u8>,
    /// The newest one that each server has changed to.
    changed: Vec<u32>,
    /// Ranks that were lost.
    pub(super) lost: u64,
}

impl Membership {
    pub(super) fn new(servers: usize) -> Self {
        Self {
            coming: 0,
            why: String::new(),
            proposed: Vec::new(),
            live: Vec::new(),
            changed: vec![0; servers],
            lost: 0,
        }
    }

    /// Whether a rank was lost and not every server has changed yet.
    pub(super) fn is_changing(&self) -> bool {
        self.changed.iter().any(|generation| *generation < self.coming)
    }

    /// Whether what a server reports of rounds is of a membership that does not count any more.
    pub(super) fn ignores(&self, server: ServerId) -> bool {
        self.changed.get(usize::from(server.0)).is_none_or(|changed| *changed < self.coming)
    }

    /// Whether one was proposed, and what all resume from under it is about to arrive.
    pub(super) fn is_coming(&self, generation: u32) -> bool {
        generation <= self.coming
    }

    /// A plan counts memberships anew.
    pub(super) fn forget(&mut self) {
        self.coming = 0;
        self.changed.fill(0);
    }
}

impl RankSession {
    /// The first server proposes members.
    pub(super) fn receive_members(
        &mut self,
        server: ServerId,
        proposed: NewMembers,
    ) -> Result<(), RankFailure> {
        let is_agreeing = self.plan.is_none() || self.agreement.is_under_way();
        if is_agreeing || !self.are_open() || !self.resuming.is_empty() {
            let during = if is_agreeing { "ranks agree on a plan" } else { "a server is lost, too" };
            let why = format!("{}, while {during}", proposed.why);
            return Err(RankFailure::RankLost { rank: proposed.rank, why, missing: self.missing() });
        }
        let plan = self.plan.as_ref().ok_or(RankFailure::NoPlan)?;
        if plan.is_open(plan.replaced_in) {
            // Some ranks hold sums of the lost server, with the lost rank in them; others would get them without it.
            let why = format!("{}, while a server sums again what a lost one had sent", proposed.why);
            return Err(RankFailure::RankLost { rank: proposed.rank, why, missing: self.missing() });
        }
        let known = plan.collect.generation().max(self.membership.coming);
        if server != FIRST || proposed.generation <= known {
            return Err(unannounced(server, "MEMBERS"));
        }
        if !members::from_bits(&proposed.live).any(|rank| rank == self.settings.rank) {
            return Err(RankFailure::strange(server, "proposes members without this rank"));
        }
        self.membership.coming = proposed.generation;
        self.membership.why = proposed.why;
        self.membership.proposed = proposed.live;
        let oldest = plan.collect.oldest_retained();
        let rounds = (oldest.0..plan.collect.current().0).map(Round);
        let used =
            rounds.filter_map(|round| Some(Used { round, used: plan.collect.used(round)?.to_bytes() }));
        let known = Known { generation: proposed.generation, oldest, used: used.collect() };
        self.send(FIRST, RankMessage::Known(known));
        Ok(())
    }

    /// The first server reports what all ranks resume from.
    pub(super) fn receive_change(&mut self, server: ServerId, change: Change) -> Result<(), RankFailure> {
        let is_proposed = server == FIRST && self.membership.coming > 0;
        if !is_proposed || change.generation != self.membership.coming {
            return Err(unannounced(server, "CHANGE"));
        }
        if change.live != self.membership.proposed {
            return Err(RankFailure::strange(server, "changes to other members than it proposed"));
        }
        let plan = self.plan_mut()?;
        let last = change.oldest.0.checked_sub(1).map(Round);
        // All ranks report that they hold a round before it is done.
        let is_held = |last: Round| last < plan.collect.current() && plan.collect.is_round_settled(last);
        if !last.is_none_or(is_held) {
            return Err(RankFailure::strange(server, "takes rounds for done that this rank does not hold"));
        }
        // Every rank ends a round before any is told what it used; which of them reported otherwise, no rank knows.
        if let Some(Used { round, .. }) = change.used.iter().find(|used| used.round >= plan.collect.current())
        {
            return Err(RankFailure::Disagree(format!(
                "server {server} says what round {round} used, which this rank has not ended; the ranks' views of the round differ"
            )));
        }
        plan.collect.handle_generation(change.generation);
        plan.reports.clear();
        plan.changed_in = Some(plan.collect.current());
        for server in self.ids() {
            self.send(server, RankMessage::Change(change.clone()));
            self.offer_missing(server);
        }
        let left = members::from_bits(&change.live).count();
        let why = std::mem::take(&mut self.membership.why);
        self.notices.push(format!("{why}; the {left} that are left go on"));
        self.membership.live = change.live;
        self.membership.lost += 1;
        self.go_on();
        Ok(())
    }

    /// A server has changed to a membership: what it reports from here on counts. False while this rank does not know of
    /// it, which another server reports.
    pub(super) fn receive_changed(
        &mut self,
        server: ServerId,
        changed: Changed,
    ) -> Result<bool, RankFailure> {
        let known = self.plan_mut()?.collect.generation();
        if self.is_over || changed.generation < self.membership.coming {
            return Ok(true);
        }
        if known < changed.generation {
            // The first server has reported it over the same connection; the others wait for this rank's CHANGE.
            if server == FIRST || !self.membership.is_coming(changed.generation) {
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

/// The refusal of a message that a server may not send yet.
fn unannounced(server: ServerId, kind: &str) -> RankFailure {
    RankFailure::Disagree(format!(
        "server {server} sends {kind} of a membership that was not announced; it may be of another version"
    ))
}
