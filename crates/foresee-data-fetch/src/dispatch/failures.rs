// SPDX-License-Identifier: Apache-2.0
//! Failed attempts: which requests are tried again, when, and which fail.

use std::collections::VecDeque;

use foresee_units::{Nanos, ReadOutcome};

use super::{Dispatch, deadline_of};
use crate::request::Class;
use crate::retry;
use crate::state::{Entry, RequestState};

impl Dispatch {
    /// Handle a permanent fault. If one part may have caused it for all, each is tried once more by itself, except for those
    /// that only fill a cache.
    pub(super) fn fail_span(&mut self, id: u64, outcome: ReadOutcome, now: Nanos) {
        let parts = self.close_span(id);
        let is_shared = parts.len() > 1 && !concerns_object(outcome);
        for part in parts {
            let Some(entry) = self.entries.get_mut(&part.ticket) else { continue };
            if is_shared && entry.request.class != Class::Fill {
                self.counters.retries += 1;
                entry.is_single = true;
                self.make_ready(part.ticket);
            } else {
                Self::fail(entry, &mut self.failures, outcome, now);
            }
        }
    }

    /// Handle a transient fault or throttling: every ticket is retried after a pause, or fails.
    pub(super) fn retry_span(&mut self, id: u64, outcome: ReadOutcome, pause_min: Nanos, now: Nanos) {
        let parts = self.close_span(id);
        // One pause for all, so that parts of one read are retried together.
        let first = parts.first().map_or(id, |part| part.ticket);
        for part in parts {
            let Some(entry) = self.entries.get_mut(&part.ticket) else { continue };
            entry.failures_in_a_row += 1;
            entry.faults += u32::from(!matches!(outcome, ReadOutcome::Throttled { .. }));
            let is_exhausted = entry.faults >= self.config.retry.max_tries.max(1);
            let slack = if entry.request.class == Class::Stalling {
                Nanos::ZERO
            } else {
                deadline_of(&entry.request, self.consumer_rate).saturating_sub(now)
            };
            let pause =
                retry::pause(&self.config.retry, first, entry.failures_in_a_row, slack).max(pause_min);
            let until = now.saturating_add(pause);
            if is_exhausted || until > entry.arrived.saturating_add(self.config.retry.patience) {
                Self::fail(entry, &mut self.failures, outcome, now);
                continue;
            }
            self.counters.retries += 1;
            entry.state = RequestState::Pausing { until, failed: now };
            self.queue.pause(part.ticket, until);
        }
    }

    fn fail(entry: &mut Entry, failures: &mut VecDeque<u64>, outcome: ReadOutcome, now: Nanos) {
        entry.state = RequestState::Failed { outcome, elapsed: now.saturating_sub(entry.arrived) };
        failures.push_back(entry.request.ticket);
    }
}

/// Whether the outcome holds for the whole object, for any range of it.
const fn concerns_object(outcome: ReadOutcome) -> bool {
    matches!(outcome, ReadOutcome::Absent | ReadOutcome::Changed | ReadOutcome::Denied)
}
