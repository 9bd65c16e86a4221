// SPDX-License-Identifier: Apache-2.0
//! The concurrency limit of a source.
//!
//! The search finds the smallest concurrency at which goodput reaches its plateau, because further requests in
//! flight only wait longer. It doubles while that clearly helps, then goes up in steps while goodput grows by 2
//! %. If doubling does not help at all, it halves, then goes down in steps while goodput does not fall. Then it
//! holds, and probes again at growing intervals. A step is an eighth of the limit, at least one: at 64 in flight
//! a step of one could not change goodput by 2 % even on an idle source. A limit that cannot suffice is not
//! tried: even if every answer were as fast as the fastest of all, the plateau needs rate times that time in
//! flight (Little's law).
//!
//! If other ranks use the source too, it begins with two requests until the first has answered. This measures an
//! answer without a queue, which no rank sees once all have begun. While answers queue it does not double,
//! because a doubling takes capacity from other ranks, which looks like growth. Steps up remain, in case the
//! fastest answer was an outlier.
//!
//! Throttling reduces the limit to 0.7 of it, or the rate of starts if that was too high (see `start_rate`), once per
//! round trip: only an attempt begun after the last cut can cause the next. A refusal after a hundred answers is no
//! evidence, because some sources refuse a few requests at any rate. While requests wait for the rate of
//! starts, the limit is not searched. A source without any answers is tried at growing intervals. An idle queue and
//! single answers are never evidence (see `round`).

use foresee_units::Nanos;

use crate::config::LimitConfig;
use crate::float::as_f64;
use crate::min_latency::MinLatency;
use crate::round::{Goodput, Round, Until, Verdict};
use crate::start_rate::StartRate;

/// Growth by a doubling that justifies another one.
const DOUBLING_GAIN: f64 = 1.2;
/// Growth by a step up that justifies the next one.
const STEP_GAIN: f64 = 1.02;
/// Fraction of the goodput that must remain after a step down.
const RETAINED: f64 = 0.99;
/// Concurrency until the first answer if other ranks use the source, and the maximum wait for that answer.
const PROBE: u32 = 2;
const PROBE_LONGEST: Nanos = Nanos::from_millis(250);
/// Below this fraction of the plateau, twice in a row, the source has changed and the search restarts.
const COLLAPSE: f64 = 0.85;
/// The limit after throttling, in tenths of the limit before.
const CUT_TENTHS: u32 = 7;
/// Answers in a row after which a refusal cuts nothing.
const RARE: u32 = 100;
/// Standard error of a round: wide for doublings, narrow where 1 % counts.
const COARSE: f64 = 0.05;
const FINE: f64 = 0.01;
/// Rounds on hold before the first probe up or down, and their maximum.
const HOLD_FIRST: u32 = 4;
const HOLD_LONGEST: u32 = 64;
/// Pause of a source without answers: the first, and the maximum after doublings.
const PAUSE_FIRST: Nanos = Nanos::from_millis(100);
const PAUSE_LONGEST: Nanos = Nanos::from_secs(5);
/// Minimum of faults in a row before a source counts as not answering.
const SILENT_FAULTS: u32 = 4;
/// Time for which a source counts as throttled.
const THROTTLED_FOR: Nanos = Nanos::from_secs(1);

/// The concurrency limit of one source.
#[derive(Clone, Debug)]
pub(crate) struct Limiter {
    bounds: LimitConfig,
    /// Whether other ranks use the source.
    shared: bool,
    limit: u32,
    mode: Mode,
    /// Goodput of the plateau, in work per nanosecond; 0 before the first round.
    plateau: f64,
    /// Work per answer in the last round.
    per_answer: f64,
    min_latency: MinLatency,
    starts: StartRate,
    round: Round,
    /// Attempts begun before this time are no evidence about the current limit.
    cut_at: Option<Nanos>,
    /// Answers since the last refusal.
    answers: u32,
    throttled_until: Nanos,
    paused_until: Nanos,
    faults_in_a_row: u32,
    pauses: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Wait for the first answer, until then at most; `None` before the first request.
    Probe { until: Option<Nanos> },
    /// Measure the current limit, before any search.
    Survey,
    /// Try twice `from`, which may be the result of a doubling.
    Double { from: u32, is_grown: bool },
    /// Try half of `from`.
    Halve { from: u32 },
    /// Try a step above `from`.
    StepUp { from: u32, hold: u32 },
    /// Try a step below `from`.
    StepDown { from: u32, hold: u32 },
    /// Stay, and probe down or up after `rounds` more rounds.
    Hold { rounds: u32, hold: u32, probe_down: bool, is_low: bool },
}

impl Limiter {
    pub(crate) fn new(config: LimitConfig, shared: bool) -> Self {
        let min = config.min.max(1);
        let max = config.max.max(min);
        let start = config.start.clamp(min, max);
        let probes = shared && min < max && start > PROBE;
        let (mode, limit) =
            if probes { (Mode::Probe { until: None }, PROBE.max(min)) } else { (Mode::Survey, start) };
        Self {
            bounds: LimitConfig { start, min, max, ..config },
            shared,
            limit,
            mode,
            plateau: 0.0,
            per_answer: f64::INFINITY,
            min_latency: MinLatency::default(),
            starts: StartRate::default(),
            round: Round::new(Nanos::ZERO, limit),
            cut_at: None,
            answers: 0,
            throttled_until: Nanos::ZERO,
            paused_until: Nanos::ZERO,
            faults_in_a_row: 0,
            pauses: 0,
        }
    }

    /// The maximum of attempts in flight.
    pub(crate) const fn limit(&self) -> u32 {
        self.limit
    }

    /// Answers per nanosecond on the plateau; `None` while it is unknown, and for a fixed limit.
    pub(crate) fn answers_per_nano(&self) -> Option<f64> {
        (self.plateau > 0.0).then_some(self.plateau / self.per_answer)
    }

    pub(crate) const fn min_latency(&self) -> &MinLatency {
        &self.min_latency
    }

    /// Time before which nothing may be started.
    pub(crate) const fn paused_until(&self) -> Nanos {
        self.paused_until
    }

    /// The rate of starts.
    pub(crate) const fn starts(&self) -> &StartRate {
        &self.starts
    }

    /// Whether the source has throttled recently.
    pub(crate) fn is_throttled(&self, now: Nanos) -> bool {
        now < self.throttled_until
    }

    /// There are free slots and no requests; `in_flight` attempts have not ended.
    pub(crate) fn note_idle(&mut self, in_flight: u32, now: Nanos) {
        self.round.note_idle(now);
        if in_flight == 0 {
            self.starts.note_idle(now);
        }
    }

    /// There are free slots, and a request that waits for the rate of starts: the limit is high enough.
    pub(crate) fn note_rate_limited(&mut self, now: Nanos) {
        self.starts.note_waiting(true);
        if self.mode != Mode::Survey {
            self.enter(Mode::Survey, self.limit, now);
        }
        self.round.note_idle(now);
    }

    /// A request waits for a free slot.
    pub(crate) fn note_full(&mut self) {
        self.starts.note_waiting(false);
    }

    /// A request was started.
    pub(crate) fn note_start(&mut self, now: Nanos) {
        self.round.note_start(now);
        self.starts.note_start(now);
        if self.mode == (Mode::Probe { until: None }) {
            self.mode = Mode::Probe { until: Some(now.saturating_add(PROBE_LONGEST)) };
        }
    }

    /// A second attempt was started.
    pub(crate) fn note_hedge(&mut self, now: Nanos) {
        self.starts.note_start(now);
    }

    /// When the wait for the first answer ends.
    pub(crate) const fn probes_until(&self) -> Option<Nanos> {
        match self.mode {
            Mode::Probe { until } => until,
            _ => None,
        }
    }

    /// Handle the passing of time.
    pub(crate) fn handle_time(&mut self, now: Nanos) {
        if self.probes_until().is_some_and(|until| until <= now) {
            self.enter(Mode::Survey, self.bounds.start, now);
        }
    }

    /// Handle an attempt that delivered `bytes`.
    pub(crate) fn handle_success(&mut self, began: Nanos, bytes: u64, now: Nanos) {
        self.handle_answer(now);
        if self.bounds.min == self.bounds.max {
            return;
        }
        self.min_latency.observe(now.saturating_sub(began));
        let until = match self.mode {
            Mode::Probe { .. } => return self.enter(Mode::Survey, self.bounds.start, now),
            Mode::Survey | Mode::Double { .. } => Until { tolerance: COARSE, cutoff: 0.0 },
            Mode::StepUp { .. } | Mode::Hold { .. } => Until { tolerance: FINE, cutoff: 0.0 },
            Mode::Halve { .. } | Mode::StepDown { .. } => {
                Until { tolerance: FINE, cutoff: self.plateau * RETAINED }
            }
        };
        let work = as_f64(bytes.saturating_add(self.bounds.request_cost.get()).max(1));
        match self.round.answer(began, work, until, now) {
            None => {}
            Some(Verdict::Void) => self.handle_void(now),
            Some(Verdict::Goodput(Goodput { rate, per_answer })) => {
                self.per_answer = per_answer;
                self.handle_goodput(rate, now);
            }
        }
    }

    /// Handle an answer without bytes: the source is alive.
    pub(crate) fn handle_answer(&mut self, now: Nanos) {
        self.starts.handle_answer(now);
        self.answers = self.answers.saturating_add(1);
        self.faults_in_a_row = 0;
        self.pauses = 0;
    }

    /// Handle a throttled attempt, with the pause that the source may have requested.
    pub(crate) fn handle_throttled(&mut self, began: Nanos, retry_after: Option<Nanos>, now: Nanos) {
        self.throttled_until = now.saturating_add(retry_after.unwrap_or(THROTTLED_FOR).max(THROTTLED_FOR));
        self.handle_fault(began, now);
        let is_rare = std::mem::take(&mut self.answers) >= RARE;
        if !is_rare && self.cut_at.is_none_or(|cut| began >= cut) {
            self.cut_at = Some(now);
            if !self.starts.handle_refusal(now) {
                let cut = (self.limit * CUT_TENTHS / 10).max(self.bounds.min);
                self.enter(Mode::Survey, cut, now);
            }
        }
        if let Some(wait) = retry_after {
            self.pause_until(now.saturating_add(wait));
        }
    }

    /// Handle a transient fault of an attempt.
    pub(crate) fn handle_fault(&mut self, began: Nanos, now: Nanos) {
        self.faults_in_a_row = self.faults_in_a_row.saturating_add(1);
        let is_silent = self.faults_in_a_row >= self.limit.max(SILENT_FAULTS);
        if is_silent && began >= self.paused_until {
            let pause = PAUSE_FIRST.get() << self.pauses.min(6);
            self.pauses = self.pauses.saturating_add(1);
            self.pause_until(now.saturating_add(Nanos::new(pause).min(PAUSE_LONGEST)));
        }
    }

    fn pause_until(&mut self, until: Nanos) {
        self.paused_until = self.paused_until.max(until);
        self.round = Round::new(self.paused_until, self.limit);
    }

    /// Void the round, because the queue was empty. A trial above the limit returns to it.
    fn handle_void(&mut self, now: Nanos) {
        match self.mode {
            Mode::Probe { .. } | Mode::Survey | Mode::Hold { .. } => self.round = self.round.restart(now),
            Mode::Double { from, .. } => self.enter(Mode::Survey, from, now),
            Mode::Halve { from } => self.hold(from, HOLD_FIRST, false, now),
            Mode::StepUp { from, hold } | Mode::StepDown { from, hold } => self.hold(from, hold, false, now),
        }
    }

    fn handle_goodput(&mut self, goodput: f64, now: Nanos) {
        match self.mode {
            // Half of a limit that resulted from a doubling is known to be too low.
            Mode::Double { from, is_grown: true } if goodput < self.plateau * STEP_GAIN => {
                self.step_down(from, HOLD_FIRST, now);
            }
            Mode::Double { from, is_grown: false } if goodput < self.plateau * STEP_GAIN => {
                self.halve(from, now);
            }
            Mode::Halve { .. } if goodput >= self.plateau * RETAINED => {
                self.plateau = self.plateau.max(goodput);
                self.halve(self.limit, now);
            }
            Mode::Halve { from } => self.step_down(from, HOLD_FIRST, now),
            Mode::Double { .. } if goodput < self.plateau * DOUBLING_GAIN => {
                self.plateau = goodput;
                self.step_up(self.limit, HOLD_FIRST, now);
            }
            Mode::Probe { .. } | Mode::Survey | Mode::Double { .. } => {
                self.plateau = goodput;
                self.grow_limit(self.mode != Mode::Survey, now);
            }
            Mode::StepUp { .. } if goodput >= self.plateau * STEP_GAIN => {
                self.plateau = goodput;
                self.step_up(self.limit, HOLD_FIRST, now);
            }
            Mode::StepUp { from, hold } => self.hold(from, hold, true, now),
            Mode::StepDown { .. } if goodput >= self.plateau * RETAINED => {
                self.plateau = self.plateau.max(goodput);
                self.step_down(self.limit, HOLD_FIRST, now);
            }
            Mode::StepDown { from, hold } => self.hold(from, hold, false, now),
            Mode::Hold { rounds, hold, probe_down, is_low } => {
                let has_fallen = goodput < self.plateau * COLLAPSE;
                if has_fallen && is_low {
                    self.plateau = goodput;
                    self.grow_limit(false, now);
                } else if has_fallen || rounds > 0 {
                    if !has_fallen {
                        self.plateau = 0.9 * self.plateau + 0.1 * goodput;
                    }
                    self.round = self.round.restart(now);
                    self.mode =
                        Mode::Hold { rounds: rounds.saturating_sub(1), hold, probe_down, is_low: has_fallen };
                } else if probe_down {
                    self.step_down(self.limit, hold, now);
                } else {
                    self.step_up(self.limit, hold, now);
                }
            }
        }
    }

    /// Double, or step up if a doubling would take capacity from others.
    fn grow_limit(&mut self, is_grown: bool, now: Nanos) {
        let from = self.limit;
        let doubled = from.saturating_mul(2);
        let is_safe = !(self.shared && self.min_latency.is_queueing());
        if is_safe && doubled <= self.bounds.max {
            self.enter(Mode::Double { from, is_grown }, doubled, now);
        } else {
            self.step_up(from, HOLD_FIRST, now);
        }
    }

    fn halve(&mut self, from: u32, now: Nanos) {
        let half = (from / 2).max(self.bounds.min);
        if half == from {
            self.hold(from, HOLD_FIRST, false, now);
        } else if self.is_too_few(half) {
            self.step_down(from, HOLD_FIRST, now);
        } else {
            self.enter(Mode::Halve { from }, half, now);
        }
    }

    fn step_up(&mut self, from: u32, hold: u32, now: Nanos) {
        let above = (from + step(from)).min(self.bounds.max);
        if above == from {
            self.hold(from, hold, true, now);
        } else {
            self.enter(Mode::StepUp { from, hold }, above, now);
        }
    }

    fn step_down(&mut self, from: u32, hold: u32, now: Nanos) {
        let below = (from - step(from).min(from)).max(self.bounds.min);
        if below == from || self.is_too_few(below) {
            self.hold(from, hold, false, now);
        } else {
            self.enter(Mode::StepDown { from, hold }, below, now);
        }
    }

    /// Whether this concurrency could not reach the plateau even if every answer were as fast as the fastest.
    fn is_too_few(&self, limit: u32) -> bool {
        let answers = self.plateau * RETAINED / self.per_answer;
        f64::from(limit) < answers * as_f64(self.min_latency.overall().get())
    }

    /// Return to `limit` for `hold` rounds; after a failed probe the next one waits twice as long.
    fn hold(&mut self, limit: u32, hold: u32, probe_down: bool, now: Nanos) {
        let next = (hold * 2).min(HOLD_LONGEST);
        self.enter(Mode::Hold { rounds: hold, hold: next, probe_down, is_low: false }, limit, now);
    }

    fn enter(&mut self, mode: Mode, limit: u32, now: Nanos) {
        self.mode = mode;
        self.limit = limit;
        self.round = Round::new(now.max(self.paused_until), limit);
    }
}

/// An eighth of the limit, at least one.
const fn step(limit: u32) -> u32 {
    if limit < 16 { 1 } else { limit / 8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter() -> Limiter {
        Limiter::new(LimitConfig::default(), false)
    }

    #[test]
    fn bounds_are_sorted() {
        let limiter = Limiter::new(LimitConfig { start: 0, min: 0, max: 0, ..LimitConfig::default() }, false);
        assert_eq!(limiter.limit(), 1);
        let limiter =
            Limiter::new(LimitConfig { start: 99, min: 8, max: 4, ..LimitConfig::default() }, false);
        assert_eq!(limiter.limit(), 8);
    }

    #[test]
    fn at_a_shared_source_requests_wait_for_the_first_answer() {
        let limit = LimitConfig { start: 32, ..LimitConfig::default() };
        let mut limiter = Limiter::new(limit, true);
        assert_eq!(limiter.limit(), 2);
        limiter.handle_success(Nanos::ZERO, 1000, Nanos::from_millis(20));
        assert_eq!(limiter.limit(), 32);
        let mut silent = Limiter::new(limit, true);
        silent.note_start(Nanos::from_secs(1));
        silent.handle_time(Nanos::from_millis(1249));
        assert_eq!(silent.limit(), 2);
        silent.handle_time(silent.probes_until().expect("it waits"));
        assert_eq!(silent.limit(), 32);
        assert_eq!(Limiter::new(limit, false).limit(), 32);
        assert_eq!(Limiter::new(LimitConfig { start: 1, ..limit }, true).limit(), 1);
        assert_eq!(Limiter::new(LimitConfig { min: 5, ..limit }, true).limit(), 5);
    }

    #[test]
    fn throttling_in_one_round_trip_cuts_the_limit_once() {
        let mut limiter = limiter();
        for _ in 0..16 {
            limiter.handle_throttled(Nanos::new(0), None, Nanos::from_millis(20));
        }
        assert_eq!(limiter.limit(), 11);
        limiter.handle_throttled(Nanos::from_millis(21), None, Nanos::from_millis(40));
        assert_eq!(limiter.limit(), 7);
    }

    #[test]
    fn a_refusal_after_a_hundred_answers_cuts_nothing_and_the_next_one_does() {
        let mut limiter = limiter();
        for now in 0..u64::from(RARE) {
            limiter.handle_answer(Nanos::from_millis(now));
        }
        let now = Nanos::from_secs(1);
        limiter.handle_throttled(now, None, now);
        assert_eq!(limiter.limit(), 16);
        limiter.handle_throttled(now, None, now);
        assert!(limiter.limit() < 16 && limiter.is_throttled(now));
    }

    #[test]
    fn a_source_that_only_throttles_is_tried_at_growing_intervals_without_end() {
        let mut limiter = limiter();
        let mut now = Nanos::ZERO;
        let mut pauses = Vec::new();
        for _ in 0..200 {
            let began = now.max(limiter.paused_until());
            now = began + Nanos::from_millis(20);
            limiter.handle_throttled(began, None, now);
            assert!(limiter.limit() >= 1);
            pauses.push(limiter.paused_until().saturating_sub(now));
        }
        assert!(pauses.is_sorted());
        assert_eq!(pauses[199], PAUSE_LONGEST);
    }

    #[test]
    fn a_fixed_limit_never_changes() {
        let mut limiter =
            Limiter::new(LimitConfig { start: 4, min: 4, max: 4, ..LimitConfig::default() }, true);
        limiter.handle_throttled(Nanos::ZERO, None, Nanos::new(5));
        for now in 10..10_000 {
            limiter.handle_success(Nanos::new(now), 100, Nanos::new(now + 1));
        }
        assert_eq!(limiter.limit(), 4);
    }

    #[test]
    fn the_pause_that_the_source_requests_is_observed() {
        let mut limiter = limiter();
        limiter.handle_throttled(Nanos::ZERO, Some(Nanos::from_secs(7)), Nanos::from_secs(1));
        assert_eq!(limiter.paused_until(), Nanos::from_secs(8));
        assert!(limiter.is_throttled(Nanos::from_secs(7)));
        assert!(!limiter.is_throttled(Nanos::from_secs(8)));
    }
}
