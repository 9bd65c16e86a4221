// SPDX-License-Identifier: Apache-2.0
//! The start of a queue: until the first batch has arrived, requests of later ones are held back.
//!
//! Reads that share a full link end together. With 32 objects of 900 KB in flight at 8 MB/s, a first batch of four would take
//! as long as all of them. Whether the link is full is unknown before the first answers. So later batches begin when the
//! first batch is complete, or after twice the time of its first answer, so that one slow answer does not hold them back.
//! Where latency binds, this costs them one round trip.
//!
//! A first batch with as many requests as may be in flight holds nothing back. A fault ends the wait. Ranks that share a source
//! begin with two requests each (see `limit`), and hold nothing back in addition.

use foresee_units::Nanos;

use super::{Dispatch, First};
use crate::request::Class;

/// The later batches begin after the time of the first answer, times this.
const FIRST_ANSWERS: u64 = 2;

/// Whether later batches are held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstBatch {
    /// Nothing was started yet.
    Waiting,
    /// The first batch is being read.
    Reading {
        /// Its turn, if no consumer waited when it began: otherwise it is what consumers wait for.
        turn: Option<u64>,
        began: Nanos,
        answered: Option<Nanos>,
    },
    Complete,
}

impl FirstBatch {
    /// The end of an attempt: its answer, or a fault.
    pub(super) fn handle_end(&mut self, is_answer: bool, now: Nanos) {
        match self {
            Self::Reading { answered, .. } if is_answer => _ = answered.get_or_insert(now),
            Self::Reading { .. } => *self = Self::Complete,
            Self::Waiting | Self::Complete => {}
        }
    }
}

impl Dispatch {
    /// The first request starts: it belongs to the first batch.
    pub(super) fn begin_first_batch(&mut self, ticket: u64, now: Nanos) {
        if self.first_batch != FirstBatch::Waiting {
            return;
        }
        let Some(request) = self.entries.get(&ticket).map(|entry| entry.request) else { return };
        let turn = (request.class != Class::Stalling).then_some(request.turn);
        let limit = self.config.limit;
        let count = self.queue.count_until(request.class, turn, limit.start as usize);
        let is_adaptive = limit.min < limit.max && !self.config.shared;
        let is_held = is_adaptive && count < limit.start as usize;
        self.first_batch = match request.class {
            Class::Stalling | Class::Staging if is_held => {
                FirstBatch::Reading { turn, began: now, answered: None }
            }
            _ => FirstBatch::Complete,
        };
    }

    /// End the wait for the first batch, if it is over.
    pub(super) fn update_first_batch(&mut self, now: Nanos) {
        if !matches!(self.first_batch, FirstBatch::Reading { .. }) {
            return;
        }
        let is_read =
            self.spans.is_empty() && !self.firsts().any(|first| self.held_until(&first) == Nanos::ZERO);
        if is_read || self.released_at() <= now {
            self.first_batch = FirstBatch::Complete;
        }
    }

    /// The time until which the first request of a class waits for the first batch; [`Nanos::MAX`] until that has an answer.
    pub(super) fn held_until(&self, first: &First) -> Nanos {
        let FirstBatch::Reading { turn, .. } = self.first_batch else { return Nanos::ZERO };
        let in_first = match first.class {
            Class::Stalling => true,
            Class::Staging => {
                let own = self.entries.get(&first.ticket).map(|entry| entry.request.turn);
                own.zip(turn).is_some_and(|(own, turn)| own <= turn)
            }
            Class::Fill | Class::Other => false,
        };
        if in_first { Nanos::ZERO } else { self.released_at() }
    }

    fn released_at(&self) -> Nanos {
        match self.first_batch {
            FirstBatch::Reading { began, answered: Some(answered), .. } => {
                let took = answered.saturating_sub(began).get();
                began.saturating_add(Nanos::new(took.saturating_mul(FIRST_ANSWERS)))
            }
            FirstBatch::Reading { answered: None, .. } => Nanos::MAX,
            FirstBatch::Waiting | FirstBatch::Complete => Nanos::ZERO,
        }
    }
}
