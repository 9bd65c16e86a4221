// SPDX-License-Identifier: Apache-2.0
//! The end of a job, and of a rank in it: lost, gone after a goodbye, or gone while others continue.
//!
//! Every connected rank is sent the reason.

use foresee_grad_queue::Round;
use foresee_units::Rank;

use super::ServerJob;
use super::action::{JobAction, Peer};
use super::connection::RankConnection;
use super::waits::rank_names;
use crate::{Refusal, RefusalCode};

/// A rank that said goodbye.
#[derive(Clone, Debug)]
pub(super) struct Departure {
    rank: Rank,
    reason: String,
    /// The first round to which it contributes nothing.
    first: Round,
}

impl Refusal {
    fn lost(rank: Rank, text: String) -> Self {
        Self::new(RefusalCode::Lost, text).about(rank)
    }
}

impl ServerJob {
    /// End the job; every rank is sent the reason.
    pub fn end(&mut self, reason: &Refusal) {
        self.is_over = true;
        for (rank, connection) in std::mem::take(&mut self.ranks) {
            self.close(rank, &connection, Some(reason.clone()));
        }
        (self.plan, self.decision) = (None, None);
        self.actions.push_back(JobAction::Uninstall);
    }

    /// End a job that has no plan: the connected ranks would wait forever for the refused one.
    pub(super) fn end_without_plan(&mut self, reason: &Refusal) {
        let has_plan = self.plan.is_some() || self.resumes.values().any(|state| state.generation > 0);
        if !has_plan {
            self.end(reason);
        }
    }

    /// Declare a rank lost, for a reason that only the driver can detect.
    pub fn handle_lost(&mut self, peer: Peer, why: &str) {
        if self.is_current(peer) {
            self.declare_lost(peer.rank, why);
        }
    }

    pub(super) fn declare_lost(&mut self, rank: Rank, why: &str) {
        if self.is_over {
            return;
        }
        let Some(connection) = self.ranks.remove(&rank) else { return };
        let continues = self.continue_without(rank, why);
        if continues && self.ranks.is_empty()
            || !continues && (self.plan.is_some() || connection.has_been_complete())
        {
            self.is_over = true;
        } else if !continues {
            // A rank that never had both connections may try again, as if it had never connected.
            self.proposals.remove(&rank);
            self.resumes.remove(&rank);
        }
        let name = &self.settings.name;
        // The rank may be alive, with only one of its connections broken.
        let rest = if self.is_over { "the job ends" } else { "the others continue" };
        let own = format!("rank {rank} of job '{name}' was declared lost: {why}; {rest}");
        let others = format!("rank {rank} of job '{name}' is lost: {why}; check its output");
        self.close(rank, &connection, Some(Refusal::lost(rank, own)));
        if self.is_over {
            self.end(&Refusal::lost(rank, others));
        }
    }

    /// Handle a rank's goodbye. Its contributions remain; only a round without it is a fault.
    pub(super) fn handle_goodbye(&mut self, rank: Rank, reason: String) {
        let Some(connection) = self.ranks.remove(&rank) else { return };
        self.proposals.remove(&rank);
        self.resumes.remove(&rank);
        self.close(rank, &connection, None);
        let first = connection.next;
        if self.departure.as_ref().is_none_or(|other| first < other.first) {
            self.departure = Some(Departure { rank, reason, first });
        }
        if self.is_changing() {
            // Its state is missing.
            self.continue_without(rank, "it left during a membership change");
        } else if self.settings.continues_after_loss && self.has_unconfirmed_end(rank, first) {
            // Its last contributions may still have been in flight.
            self.continue_without(rank, "it left before it had all results of a round that it ended");
        }
        if self.ranks.is_empty() && self.plan.take().is_some() {
            // A reader may hold a payload until other ranks push, and none is left.
            self.is_over = true;
            self.actions.push_back(JobAction::Uninstall);
        }
        self.check_departure();
    }

    /// Whether a rank that left has ended a round before `first` without confirming it.
    fn has_unconfirmed_end(&self, rank: Rank, first: Round) -> bool {
        let last = first.0.checked_sub(1).map(Round);
        let rounds = self.plan.as_ref().map(|plan| &plan.rounds);
        rounds.zip(last).is_some_and(|(rounds, last)| !rounds.has_got(rank, last))
    }

    /// End the job if a rank has begun a round to which a departed rank contributes nothing.
    pub(super) fn check_departure(&mut self) {
        let Some(Departure { rank, reason, first }) = self.departure.clone() else { return };
        if self.first_unended <= first && self.proposals.is_empty() && self.resumes.is_empty() {
            return;
        }
        if self.continue_without(rank, &format!("it left ({reason})")) {
            return;
        }
        let name = &self.settings.name;
        if let Some(missing) = self.missing_at_start(rank) {
            // The departed rank gave up first; the cause is the ranks that it waited for.
            let (ranks, have) = (rank_names(&missing), if missing.len() == 1 { "has" } else { "have" });
            let text = format!(
                "{ranks} of job '{name}' {have} not connected, and rank {rank} gave up ({reason}); check the output of {ranks}, \
                 or pass a larger start_timeout="
            );
            return self.end(&Refusal::lost(missing[0], text));
        }
        let text = format!(
            "rank {rank} of job '{name}' left ({reason}) while others continue; every rank must take the same number of steps"
        );
        self.end(&Refusal::lost(rank, text));
    }

    /// The ranks, except `left`, that have not connected for the first plan; `None` if there are none, or a plan was
    /// agreed on.
    fn missing_at_start(&self, left: Rank) -> Option<Vec<Rank>> {
        let is_missing = |rank: &Rank| *rank != left && !self.ranks.contains_key(rank);
        let missing: Vec<Rank> = self.exchanging_ranks().into_iter().filter(is_missing).collect();
        (self.is_starting() && self.generation == 0 && !missing.is_empty()).then_some(missing)
    }

    /// The refusal of a rank that connects, or is still connected, after the others have continued without it.
    pub(super) fn lost_refusal(&self, rank: Rank) -> Refusal {
        let name = &self.settings.name;
        let text =
            format!("rank {rank} of job '{name}' was declared lost, and the others continue without it");
        Refusal::lost(rank, text)
    }

    /// Close a rank's connections, if any.
    pub(super) fn close(&mut self, rank: Rank, connection: &RankConnection, reason: Option<Refusal>) {
        if connection.has_control || connection.has_data {
            self.actions.push_back(JobAction::Close { peer: connection.peer(rank), reason });
        }
    }
}
