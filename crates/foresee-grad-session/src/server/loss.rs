// SPDX-License-Identifier: Apache-2.0
//! The end of a job, and of a rank in it: lost, gone in peace, or gone while others go on.
//!
//! Every rank that is connected is told why.

use foresee_grad_queue::Round;
use foresee_units::Rank;

use super::ServerJob;
use super::action::{JobAction, Peer};
use super::connection::RankConnection;
use super::waits::names;
use crate::{Refusal, RefusalCode};

/// A rank that left in peace.
#[derive(Clone, Debug)]
pub(super) struct Departure {
    rank: Rank,
    reason: String,
    /// The first round that it has no part in.
    first: Round,
}

impl Refusal {
    /// Whether a rank that ends for this reason is not the one to blame.
    pub(super) fn is_about_others(&self) -> bool {
        matches!(self.code, RefusalCode::Lost | RefusalCode::Plan)
    }
}

impl ServerJob {
    /// Ends the job; every rank is told the reason.
    pub fn end(&mut self, reason: &Refusal) {
        self.is_over = true;
        for (rank, connection) in std::mem::take(&mut self.ranks) {
            self.close(rank, &connection, Some(reason.clone()));
        }
        (self.plan, self.decision) = (None, None);
        self.actions.push_back(JobAction::Uninstall);
    }

    /// Ends a job that has no plan: the ranks that are connected would wait forever for one that was refused.
    pub(super) fn end_without_plan(&mut self, reason: &Refusal) {
        let has_plan = self.plan.is_some() || self.resumes.values().any(|known| known.generation > 0);
        if !has_plan {
            self.end(reason);
        }
    }

    /// A rank cannot be served any longer, as only the driver can see.
    pub fn handle_lost(&mut self, peer: Peer, why: &str) {
        if self.is_current(peer) {
            self.lose(peer.rank, why);
        }
    }

    /// A rank is lost.
    pub(super) fn lose(&mut self, rank: Rank, why: &str) {
        if self.is_over {
            return;
        }
        let Some(connection) = self.ranks.remove(&rank) else { return };
        let goes_on = self.go_on_without(rank, why);
        if goes_on && self.ranks.is_empty() || !goes_on && (self.plan.is_some() || connection.was_whole()) {
            self.is_over = true;
        } else if !goes_on {
            // A rank that never had both connections is as if it had not begun to connect: it may try again.
            self.proposals.remove(&rank);
            self.resumes.remove(&rank);
        }
        let name = &self.settings.name;
        // The rank may be there, and only one of its connections not.
        let rest = if self.is_over { "so the job ends" } else { "the others go on" };
        let own = format!("rank {rank} of job '{name}' is taken for lost: {why}; {rest}");
        let others = format!("rank {rank} of job '{name}' is lost: {why}; look at its output");
        let lost = |text: String| Refusal::new(RefusalCode::Lost, text).about(rank);
        self.close(rank, &connection, Some(lost(own)));
        if self.is_over {
            self.end(&lost(others));
        }
    }

    /// A rank leaves in peace. What it has contributed stays; only a round that it has no part in is a fault.
    pub(super) fn leave(&mut self, rank: Rank, reason: String) {
        let Some(connection) = self.ranks.remove(&rank) else { return };
        self.proposals.remove(&rank);
        self.resumes.remove(&rank);
        self.close(rank, &connection, None);
        let first = connection.next;
        if self.departure.as_ref().is_none_or(|other| first < other.first) {
            self.departure = Some(Departure { rank, reason, first });
        }
        if self.is_changing() {
            // Its state is waited for.
            self.go_on_without(rank, "it has left meanwhile");
        } else if self.settings.survives && self.has_ended_without_all(rank, first) {
            // What it contributed last may have been on its way.
            self.go_on_without(rank, "it has left before it had all of a round that it ended");
        }
        if self.ranks.is_empty() && self.plan.take().is_some() {
            // A reader may hold what it has no memory for until ranks push that never will.
            self.is_over = true;
            self.actions.push_back(JobAction::Uninstall);
        }
        self.check_departure();
    }

    /// Whether a rank that left has ended a round before `first`, and has not reported that it holds all of it.
    fn has_ended_without_all(&self, rank: Rank, first: Round) -> bool {
        let last = first.0.checked_sub(1).map(Round);
        let rounds = self.plan.as_ref().map(|plan| &plan.rounds);
        rounds.zip(last).is_some_and(|(rounds, last)| !rounds.has_got(rank, last))
    }

    /// Ends the job if another rank has begun a round that a rank which left has no part in.
    pub(super) fn check_departure(&mut self) {
        let Some(Departure { rank, reason, first }) = self.departure.clone() else { return };
        if self.front <= first && self.proposals.is_empty() && self.resumes.is_empty() {
            return;
        }
        if self.go_on_without(rank, &format!("it has left ({reason})")) {
            return;
        }
        let name = &self.settings.name;
        if let Some(missing) = self.never_came(rank) {
            // Where a rank gives up the start first, the others are told whom it waited for.
            let (whom, have) = (names(&missing), if missing.len() == 1 { "has" } else { "have" });
            let text = format!(
                "{whom} of job '{name}' {have} not come, and rank {rank} gave up ({reason}); look at the output of {whom}, \
                 or pass a larger start_timeout="
            );
            return self.end(&Refusal::new(RefusalCode::Lost, text).about(missing[0]));
        }
        let text = format!(
            "rank {rank} of job '{name}' has left ({reason}) while others go on; every rank must take the same number of steps"
        );
        self.end(&Refusal::new(RefusalCode::Lost, text).about(rank));
    }

    /// The ranks that a first plan lacks besides `left`; `None` where there is none, or a plan was agreed on.
    fn never_came(&self, left: Rank) -> Option<Vec<Rank>> {
        let is_missing = |rank: &Rank| *rank != left && !self.ranks.contains_key(rank);
        let missing: Vec<Rank> = self.every().into_iter().filter(is_missing).collect();
        (self.starts() && self.generation == 0 && !missing.is_empty()).then_some(missing)
    }

    /// The reason for a rank that comes, or is still here, after the others have gone on.
    pub(super) fn refuse_lost(&self, rank: Rank) -> Refusal {
        let name = &self.settings.name;
        let text = format!("rank {rank} of job '{name}' was taken for lost, and the others go on without it");
        Refusal::new(RefusalCode::Lost, text).about(rank)
    }

    /// Closes what there is of a rank's connections.
    pub(super) fn close(&mut self, rank: Rank, connection: &RankConnection, reason: Option<Refusal>) {
        if connection.has_control || connection.has_data {
            self.actions.push_back(JobAction::Close { peer: connection.peer(rank), reason });
        }
    }
}
