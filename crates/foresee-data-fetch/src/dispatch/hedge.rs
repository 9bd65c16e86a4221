// SPDX-License-Identifier: Apache-2.0
//! Second attempts (hedging).
//!
//! A span that is slow for its size class and has less slack than that gets a second attempt concurrent with the
//! first; the first answer wins. When the limit is reached, a stalled attempt is replaced by its second one.
//! There is no second attempt after throttling, and none beyond its fraction of all bytes, so hedging never
//! overloads a source further.

use foresee_units::Nanos;

use super::Dispatch;
use crate::float::as_f64;
use crate::known::Span;
use crate::request::Action;

/// Minimum time until a hedge that was not allowed, or not yet measurable, is considered again.
const HEDGE_AGAIN: Nanos = Nanos::from_millis(100);

/// At the limit, an attempt counts as stalled after this multiple of the 95th percentile of its size class.
const STALLED: u64 = 4;

impl Dispatch {
    /// Set the time at which a span is considered for a hedge.
    pub(super) fn arm(&mut self, id: u64, now: Nanos) {
        let Some(span) = self.spans.get(&id) else { return };
        if self.config.hedge_share <= 0.0 || span.hedge.is_some() {
            return;
        }
        let late_after = self.latency.late_after(span.len);
        let due =
            late_after.map_or(now.saturating_add(HEDGE_AGAIN), |late_after| hedge_due(span, late_after));
        self.set_alarm(id, Some(due));
    }

    /// Return a second attempt, if one is due and allowed.
    pub(super) fn poll_hedge(&mut self, now: Nanos) -> Option<Action> {
        let id = self.due_span(now)?;
        self.set_alarm(id, None);
        self.hedge(id, now)
    }

    /// At the limit there is no slot for a second attempt: a stalled attempt is cancelled, and its second one
    /// starts when it has ended. Otherwise a source that stalls in every slot would block the consumer.
    pub(super) fn poll_renewal(&mut self, now: Nanos) -> Option<Action> {
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
        let stalled = self.latency.p95(span.len)?.get().saturating_mul(STALLED);
        Some(span.began.saturating_add(Nanos::new(stalled)))
    }

    /// The span whose second attempt is due and allowed; others are postponed.
    fn due_span(&mut self, now: Nanos) -> Option<u64> {
        while let Some((_, id)) = self.alarms.first().copied().filter(|(at, _)| *at <= now) {
            let span = self.spans.get(&id)?;
            let late_after = self.latency.late_after(span.len);
            let due = late_after.map(|late_after| hedge_due(span, late_after));
            if due.is_some_and(|due| due <= now) && self.may_hedge(span.len, now) {
                return Some(id);
            }
            let again = now.saturating_add(late_after.unwrap_or(Nanos::ZERO).max(HEDGE_AGAIN));
            self.set_alarm(id, Some(due.filter(|due| *due > now).unwrap_or(again)));
        }
        None
    }

    pub(super) fn set_alarm(&mut self, id: u64, at: Option<Nanos>) {
        let Some(span) = self.spans.get_mut(&id) else { return };
        if let Some(before) = std::mem::replace(&mut span.alarm, at) {
            self.alarms.remove(&(before, id));
        }
        if let Some(at) = at {
            self.alarms.insert((at, id));
        }
    }

    fn may_hedge(&self, len: u64, now: Nanos) -> bool {
        let hedged = as_f64(self.counts.hedged_bytes.saturating_add(len));
        let affordable = hedged <= as_f64(self.counts.moved.get()) * self.config.hedge_share;
        affordable && !self.limiter.is_throttled(now)
    }

    fn count_hedge(&mut self, len: u64) {
        self.counts.hedges += 1;
        self.counts.hedged_bytes = self.counts.hedged_bytes.saturating_add(len);
    }

    fn hedge(&mut self, id: u64, now: Nanos) -> Option<Action> {
        let span = self.spans.get(&id)?;
        let (object, tries, mut parts) = (span.object, span.tries, span.parts.clone());
        // Parts that were withdrawn since the first attempt began are not read again.
        let unwanted = parts.first()?.offset_in_span;
        let start = span.start + unwanted;
        for part in &mut parts {
            part.offset_in_span -= unwanted;
        }
        let len = parts.iter().map(|part| part.offset_in_span + part.len).max()?;
        let attempt = self.launch(id, len, true, now);
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
