// SPDX-License-Identifier: Apache-2.0
//! Second attempts (hedging).
//!
//! A span that is slow for its size class and has less slack than that gets a second attempt concurrent with the
//! first; the first answer wins. When the limit is reached, a stalled attempt is replaced by its second one.
//! There is no second attempt after throttling, and none beyond its fraction of all bytes, so hedging never
//! overloads a source further.

use foresee_units::{Bytes, Nanos};

use super::Dispatch;
use crate::float::as_f64;
use crate::request::Action;
use crate::state::Span;

/// Minimum time until a hedge that was not allowed, or not yet measurable, is considered again.
const HEDGE_RETRY: Nanos = Nanos::from_millis(100);

/// At the limit, an attempt counts as stalled after this multiple of the 95th percentile of its size class.
const STALLED_MULTIPLE: u64 = 4;

impl Dispatch {
    /// Set the time at which a span is considered for a hedge.
    pub(super) fn schedule_hedge(&mut self, id: u64, now: Nanos) {
        let Some(span) = self.spans.get(&id) else { return };
        if self.config.hedge_share <= 0.0 || span.hedge.is_some() {
            return;
        }
        let late_after = self.latency.late_after(span.len);
        let due =
            late_after.map_or(now.saturating_add(HEDGE_RETRY), |late_after| hedge_due(span, late_after));
        self.set_hedge_time(id, Some(due));
    }

    /// Return a second attempt, if one is due and allowed.
    pub(super) fn poll_hedge(&mut self, now: Nanos) -> Option<Action> {
        let id = self.due_span(now)?;
        self.set_hedge_time(id, None);
        self.hedge(id, now)
    }

    /// Cancel a stalled attempt at the limit, where there is no slot for a second one; that starts when the first has
    /// ended. Otherwise a source that stalls in every slot would block the consumer.
    pub(super) fn poll_replacement(&mut self, now: Nanos) -> Option<Action> {
        let id = self.due_span(now)?;
        let span = self.spans.get(&id)?;
        if self.stalled_at(span)? > now {
            return None;
        }
        self.count_hedge(span.len);
        for part in self.close_span(id) {
            self.make_ready(part.ticket);
        }
        self.poll_cancel()
    }

    /// When an attempt counts as stalled; `None` if its size class has no statistics.
    pub(super) fn stalled_at(&self, span: &Span) -> Option<Nanos> {
        let stalled = self.latency.p95(span.len)?.get().saturating_mul(STALLED_MULTIPLE);
        Some(span.began.saturating_add(Nanos::new(stalled)))
    }

    /// The span whose second attempt is due and allowed; others are postponed.
    fn due_span(&mut self, now: Nanos) -> Option<u64> {
        while let Some((_, id)) = self.hedge_times.first().copied().filter(|(at, _)| *at <= now) {
            let span = self.spans.get(&id)?;
            let late_after = self.latency.late_after(span.len);
            let due = late_after.map(|late_after| hedge_due(span, late_after));
            if due.is_some_and(|due| due <= now) && self.may_hedge(span.len, now) {
                return Some(id);
            }
            let again = now.saturating_add(late_after.unwrap_or(Nanos::ZERO).max(HEDGE_RETRY));
            self.set_hedge_time(id, Some(due.filter(|due| *due > now).unwrap_or(again)));
        }
        None
    }

    pub(super) fn set_hedge_time(&mut self, id: u64, at: Option<Nanos>) {
        let Some(span) = self.spans.get_mut(&id) else { return };
        if let Some(before) = std::mem::replace(&mut span.hedge_at, at) {
            self.hedge_times.remove(&(before, id));
        }
        if let Some(at) = at {
            self.hedge_times.insert((at, id));
        }
    }

    fn may_hedge(&self, len: u64, now: Nanos) -> bool {
        let hedged = as_f64((self.counters.hedged_bytes + Bytes::new(len)).get());
        let is_affordable = hedged <= as_f64(self.counters.moved.get()) * self.config.hedge_share;
        is_affordable && !self.limiter.is_throttled(now)
    }

    fn count_hedge(&mut self, len: u64) {
        self.counters.hedges += 1;
        self.counters.hedged_bytes += Bytes::new(len);
    }

    fn hedge(&mut self, id: u64, now: Nanos) -> Option<Action> {
        let span = self.spans.get(&id)?;
        let (object, tries, mut parts) = (span.object, span.tries, span.parts.clone());
        // Parts that were withdrawn since the first attempt began are not read again.
        let skipped = parts.first()?.offset_in_span;
        let start = span.start + skipped;
        for part in &mut parts {
            part.offset_in_span -= skipped;
        }
        let len = parts.iter().map(|part| part.offset_in_span + part.len).max()?;
        let attempt = self.launch(id, len, true, now);
        self.limiter.note_hedge(now);
        self.count_hedge(len);
        self.spans.get_mut(&id)?.hedge = Some(attempt);
        Some(Action::Start { attempt, object, start, len, parts, tries, hedge: true })
    }
}

/// The later of two times: when the attempt is slow for its class, and when its slack is no longer than that.
fn hedge_due(span: &Span, late_after: Nanos) -> Nanos {
    let late = span.began.saturating_add(late_after);
    late.max(span.deadline.saturating_sub(late_after)).saturating_add(Nanos::new(1))
}
