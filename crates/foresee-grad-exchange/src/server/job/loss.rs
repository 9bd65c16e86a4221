// SPDX-License-Identifier: Apache-2.0
//! How a job ends, and how a rank does: lost, gone in peace, or gone while others go on.
//!
//! Apart from `survive`, which knows how a job goes on without a rank. Refuses to end a job in silence: every rank that is
//! here is told why.

use std::sync::atomic::Ordering;

use foresee_units::Rank;
use foresee_wire::{Fault, FaultCode};

use super::Job;
use super::seat::Seat;
use super::survive::Decision;
use crate::server::session::lock;

impl Job {
    /// Ends the job: every rank is told why.
    pub(in crate::server) fn end(&self, fault: &Fault) {
        self.over.store(true, Ordering::Relaxed);
        let (ranks, session) = {
            let mut inner = lock(&self.inner);
            (std::mem::take(&mut inner.ranks), inner.session.take())
        };
        for seat in ranks.values() {
            seat.dismiss(fault.clone());
        }
        for seat in ranks.into_values() {
            seat.close_within(self.hall.options.timeouts.handshake);
        }
        if let Some(session) = session {
            session.wake();
        }
    }

    /// Ends a job that has no plan: those who are here would wait for ever for a rank that was refused.
    pub(in crate::server) fn end_unplanned(&self, fault: &Fault) {
        let planned = {
            let inner = lock(&self.inner);
            inner.session.is_some() || inner.resumes.values().any(|known| known.generation > 0)
        };
        if !planned {
            self.end(fault);
        }
    }

    /// A rank is not there any more.
    pub(super) fn lose(&self, rank: Rank, why: &str) {
        self.lose_if(rank, why, |_| true);
    }

    /// The same, unless something else has become of it meanwhile.
    pub(super) fn lose_if(&self, rank: Rank, why: &str, still: impl FnOnce(&Seat) -> bool) {
        let seat = {
            let mut inner = lock(&self.inner);
            if self.over.load(Ordering::Relaxed) || !inner.ranks.get(&rank).is_some_and(still) {
                return;
            }
            let seat = inner.ranks.remove(&rank);
            let whole = seat.as_ref().is_some_and(Seat::was_whole);
            if self.go_on_without(&mut inner, rank, why) {
                if inner.ranks.is_empty() {
                    self.over.store(true, Ordering::Relaxed);
                }
            } else if inner.session.is_some() || whole {
                // From here on nobody takes the place of the lost rank, which may be about to come again.
                self.over.store(true, Ordering::Relaxed);
            } else {
                // One that never came with both connections is as if it had not begun to: it may try again.
                inner.proposals.remove(&rank);
                inner.resumes.remove(&rank);
            }
            seat
        };
        let over = self.over.load(Ordering::Relaxed);
        if let Some(seat) = &seat {
            // It may be there, and only one of its connections not.
            let rest = if over { "so the job ends" } else { "the others go on" };
            let text = format!("rank {rank} of job '{}' is taken for lost: {why}; {rest}", self.name);
            seat.dismiss(Fault { rank: Some(rank.0), ..Fault::new(FaultCode::Lost, text) });
        }
        if over {
            let text = format!("rank {rank} of job '{}' is lost: {why}; look at its output", self.name);
            self.end(&Fault { rank: Some(rank.0), ..Fault::new(FaultCode::Lost, text) });
        }
        if let Some(seat) = seat {
            seat.close_within(self.hall.options.timeouts.handshake);
        }
    }

    /// A rank said that it goes. What it has contributed stays; only a round that it has no part in is a fault.
    pub(super) fn leave(&self, rank: Rank, epoch: u32, reason: String) {
        let (seat, last) = {
            let mut inner = lock(&self.inner);
            if inner.ranks.get(&rank).is_none_or(|seat| seat.epoch != epoch) {
                return;
            }
            let seat = inner.ranks.remove(&rank);
            inner.proposals.remove(&rank);
            inner.resumes.remove(&rank);
            if let Some(seat) = &seat {
                if inner.left.as_ref().is_none_or(|(_, _, first)| seat.next < *first) {
                    inner.left = Some((rank, reason, seat.next));
                }
                // What it knows is waited for.
                if inner.decision.as_ref().is_some_and(Decision::is_open) {
                    self.go_on_without(&mut inner, rank, "it has left meanwhile");
                }
            }
            (seat, inner.ranks.is_empty().then(|| inner.session.take()).flatten())
        };
        if let Some(seat) = seat {
            seat.close();
        }
        if let Some(session) = last {
            // A reader may hold what it has no room for, until ranks push that never will.
            self.over.store(true, Ordering::Relaxed);
            session.wake();
        }
        self.check_left();
    }

    /// Ends the job if somebody has begun what a rank that left has no part in.
    pub(super) fn check_left(&self) {
        let (rank, reason) = {
            let mut inner = lock(&self.inner);
            let Some((rank, reason, first)) = inner.left.clone() else { return };
            if inner.front <= first && inner.proposals.is_empty() && inner.resumes.is_empty() {
                return;
            }
            if self.go_on_without(&mut inner, rank, &format!("it has left ({reason})")) {
                return;
            }
            (rank, reason)
        };
        let text = format!(
            "rank {rank} of job '{}' has left ({reason}) while others go on; every rank must take the same number of steps",
            self.name
        );
        let mut fault = Fault::new(FaultCode::Lost, text);
        fault.rank = Some(rank.0);
        self.end(&fault);
    }
}
