// SPDX-License-Identifier: Apache-2.0
//! The rate of request starts at a source that has throttled.
//!
//! The limit of concurrency alone cannot use a source that refuses requests above a rate: with four in flight at 200
//! requests per second, one more is 25 % too many. So the first refusal also limits the rate at which requests start.

use foresee_units::Nanos;

use crate::answer_rate::AnswerRate;
use crate::float::as_f64;

/// Fraction of the maximum by which the rate is below it after a cut.
const DEPTH: f64 = 0.05;
/// Time after a cut at which the rate is the maximum again.
const RECOVERY: Nanos = Nanos::from_millis(2500);
/// The same while the maximum is a guess, because it was measured at too few or too many in flight.
const RECOVERY_OF_GUESS: Nanos = Nanos::from_millis(500);
/// Time after a cut in which another one counts as its repetition.
const REPETITION: Nanos = Nanos::from_secs(2);
/// Minimum time of answers since the first cut for their rate to count: sources count requests per second or shorter.
const MEASURED_MIN: Nanos = Nanos::from_secs(1);
/// Minimum of the maximum after a cut, as a fraction of the rate before.
const CUT_MIN: f64 = 0.5;
/// Starts that are late by less follow each other faster, so that a driver that wakes up late uses the rate.
const LATENESS: Nanos = Nanos::from_millis(20);

/// The maximum rate of starts at one source; unlimited before the first refusal.
#[derive(Clone, Debug, Default)]
pub(crate) struct StartRate {
    answers: AnswerRate,
    curve: Option<Curve>,
}

/// The rate since the latest cut, which follows the time as the window of TCP CUBIC does (RFC 9438):
/// `maximum * (1 + 0.05 * (t / recovery - 1)^3)`.
///
/// It begins at 0.95 of the maximum, which is the rate at the refusal, stays near it for some seconds, and then grows
/// faster and faster: a source that allows twice as much is found after ten seconds. Only time in which the rate was
/// used up counts, because an unused rate is no evidence that the source allows it.
///
/// A refusal shortly after another one cuts to the rate of the answers since, if that is lower. A source that counts the
/// requests of each second refuses none in the first part of a second, whatever their rate is.
#[derive(Clone, Debug)]
struct Curve {
    /// Starts per nanosecond after `recovery`.
    maximum: f64,
    recovery: Nanos,
    cut_at: Nanos,
    /// Time since the cut in which the rate was used up.
    used: Nanos,
    /// When the next request may start.
    next: Nanos,
    /// Whether the latest start that had to wait waited for the rate, and not for a free slot.
    is_bottleneck: bool,
}

impl StartRate {
    /// Time before which no request may start.
    pub(crate) fn held_until(&self) -> Nanos {
        self.curve.as_ref().map_or(Nanos::ZERO, |curve| curve.next)
    }

    /// Time that so many starts take; zero before the first refusal.
    pub(crate) fn time_for(&self, starts: u64) -> Nanos {
        let interval = self.curve.as_ref().map_or(Nanos::ZERO, Curve::interval);
        Nanos::new(interval.get().saturating_mul(starts))
    }

    /// A request waits for its start: for the rate, or for a free slot.
    pub(crate) fn note_waiting(&mut self, for_rate: bool) {
        if let Some(curve) = &mut self.curve {
            curve.is_bottleneck = for_rate;
        }
    }

    /// Nothing waits and nothing is in flight.
    pub(crate) fn note_idle(&mut self, now: Nanos) {
        self.answers.note_idle(now);
    }

    /// A request was started.
    pub(crate) fn note_start(&mut self, now: Nanos) {
        self.answers.note_start(now);
        if let Some(curve) = &mut self.curve {
            curve.note_start(now);
        }
    }

    /// The source has answered.
    pub(crate) fn handle_answer(&mut self, now: Nanos) {
        self.answers.add(now);
    }

    /// Handle a refusal. Return whether the rate was too high; otherwise too many were in flight.
    ///
    /// Without answers since the last cut the rate stays, because a source that refuses everything shows no rate.
    pub(crate) fn handle_refusal(&mut self, now: Nanos) -> bool {
        let has_answered = self.answers.take_answered();
        let Some(curve) = &mut self.curve else {
            let answered = self.answers.rate(Nanos::ZERO, now);
            self.curve = answered.map(|answered| Curve::guess(answered, now));
            return false;
        };
        if has_answered {
            if now.saturating_sub(curve.cut_at) >= REPETITION {
                self.answers.restart(now);
            }
            curve.cut(self.answers.rate(MEASURED_MIN, now), now);
        }
        curve.is_bottleneck
    }
}

impl Curve {
    /// The rate of the answers before any refusal.
    const fn guess(answered: f64, now: Nanos) -> Self {
        Self {
            maximum: answered,
            recovery: RECOVERY_OF_GUESS,
            cut_at: now,
            used: Nanos::ZERO,
            next: now,
            is_bottleneck: false,
        }
    }

    /// `answered`: the rate of the answers during repeated refusals, if it was measured.
    fn cut(&mut self, answered: Option<f64>, now: Nanos) {
        let before = self.rate();
        if !self.is_bottleneck {
            self.recovery = RECOVERY_OF_GUESS;
        } else if self.used >= self.recovery {
            self.recovery = RECOVERY;
        }
        self.maximum = answered.map_or(before, |answered| answered.clamp(before * CUT_MIN, before));
        self.used = Nanos::ZERO;
        self.cut_at = now;
    }

    /// Starts per nanosecond.
    fn rate(&self) -> f64 {
        let distance = as_f64(self.used.get()) / as_f64(self.recovery.get()) - 1.0;
        self.maximum * (1.0 + DEPTH * distance * distance * distance)
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float saturates, and is not negative"
    )]
    fn interval(&self) -> Nanos {
        Nanos::new((1.0 / self.rate()) as u64)
    }

    fn note_start(&mut self, now: Nanos) {
        let (earliest, interval) = (now.saturating_sub(LATENESS), self.interval());
        if self.next > earliest {
            self.used = self.used.saturating_add(interval);
        }
        self.next = self.next.max(earliest).saturating_add(interval);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATENCY: Nanos = Nanos::from_millis(20);

    /// A source that answers after [`LATENCY`].
    struct Run {
        starts: StartRate,
        now: Nanos,
        answers: Vec<Nanos>,
    }

    impl Run {
        /// Limited near 200 per second.
        fn new() -> Self {
            let mut run = Self { starts: StartRate::default(), now: Nanos::ZERO, answers: Vec::new() };
            run.start_for(Nanos::from_secs(2), |_| Nanos::from_millis(5));
            assert!(!run.starts.handle_refusal(run.now), "there was no limit");
            run.starts.note_waiting(true);
            run
        }

        /// Start requests at the interval, or at the limited rate if that is zero; return their number.
        fn start_for(&mut self, time: Nanos, interval: impl Fn(u64) -> Nanos) -> u64 {
            let (end, mut starts) = (self.now + time, 0);
            while self.now < end {
                self.now = self.now.max(self.starts.held_until());
                self.answers.retain(|&at| {
                    if at <= self.now {
                        self.starts.handle_answer(at);
                    }
                    at > self.now
                });
                self.starts.note_start(self.now);
                self.answers.push(self.now + LATENCY);
                starts += 1;
                self.now += interval(starts);
            }
            starts
        }

        fn start_at_limit(&mut self, time: Nanos) -> u64 {
            self.start_for(time, |_| Nanos::ZERO)
        }

        fn per_second(&self) -> f64 {
            self.starts.curve.as_ref().map_or(f64::INFINITY, |curve| curve.rate() * 1e9)
        }
    }

    fn is_near(actual: f64, expected: f64) -> bool {
        (actual / expected - 1.0).abs() < 0.02
    }

    #[test]
    fn nothing_is_held_back_before_the_first_refusal() {
        let mut rate = StartRate::default();
        for at in 0..1000 {
            rate.note_start(Nanos::new(at));
            rate.handle_answer(Nanos::new(at));
        }
        assert_eq!((rate.held_until(), rate.time_for(1000)), (Nanos::ZERO, Nanos::ZERO));
    }

    #[test]
    fn the_first_rate_is_just_below_the_rate_of_the_answers() {
        let run = Run::new();
        assert!(is_near(run.per_second(), 190.0), "{}", run.per_second());
        assert!(is_near(run.starts.time_for(190).as_secs_f64(), 1.0));
    }

    #[test]
    fn a_few_answers_are_no_rate() {
        let mut rate = StartRate::default();
        rate.note_start(Nanos::ZERO);
        (0..10).for_each(|_| rate.handle_answer(LATENCY));
        assert!(!rate.handle_refusal(LATENCY));
        assert_eq!(rate.held_until(), Nanos::ZERO);
    }

    #[test]
    fn time_without_requests_does_not_lower_the_rate() {
        let mut run = Run { starts: StartRate::default(), now: Nanos::from_secs(100), answers: Vec::new() };
        run.start_for(Nanos::from_millis(500), |_| Nanos::from_millis(5));
        run.starts.note_idle(run.now);
        run.now += Nanos::from_secs(1000);
        run.start_for(Nanos::from_millis(400), |_| Nanos::from_millis(5));
        run.starts.handle_refusal(run.now);
        assert!(run.per_second() > 180.0, "{}", run.per_second());
    }

    #[test]
    fn the_rate_stays_near_the_maximum_and_then_grows_without_bound() {
        let mut run = Run::new();
        run.start_at_limit(REPETITION);
        let before = run.per_second();
        assert!(run.starts.handle_refusal(run.now));
        for (millis, expected) in [(0, 0.95), (2500, 1.0), (2500, 1.05), (4300, 2.0)] {
            run.start_at_limit(Nanos::from_millis(millis));
            assert!(is_near(run.per_second() / before, expected), "{} of {before}", run.per_second());
        }
    }

    #[test]
    fn an_unused_rate_does_not_grow() {
        let mut run = Run::new();
        let before = run.per_second();
        run.start_for(Nanos::from_secs(60), |_| Nanos::from_millis(10));
        assert!(run.per_second() <= before * 1.05, "{} after {before}", run.per_second());
    }

    #[test]
    fn late_starts_are_made_up_for() {
        let mut run = Run::new();
        let rate = run.per_second();
        let mut starts = 0;
        for _ in 0..20 {
            run.now += Nanos::from_millis(15);
            starts += run.start_at_limit(Nanos::from_millis(10));
        }
        assert!(as_f64(starts) >= 0.97 * rate * 0.5, "{starts}");
    }

    #[test]
    fn a_source_that_only_refuses_does_not_lower_the_rate_further() {
        let mut run = Run::new();
        run.start_at_limit(Nanos::from_secs(1));
        assert!(run.starts.handle_refusal(run.now));
        let once = run.per_second();
        for _ in 0..100 {
            assert!(run.starts.handle_refusal(run.now));
        }
        assert_eq!(run.per_second().to_bits(), once.to_bits());
    }

    #[test]
    fn repeated_refusals_cut_to_the_rate_of_the_answers_since() {
        let mut run = Run::new();
        run.start_at_limit(REPETITION);
        run.starts.handle_refusal(run.now);
        let before = run.per_second();
        // The source answers for less than half of the time.
        for _ in 0..2 {
            run.start_at_limit(Nanos::from_millis(400));
            run.now += Nanos::from_millis(500);
        }
        run.starts.handle_refusal(run.now);
        assert!(run.per_second() < before * 0.6, "{} after {before}", run.per_second());
        assert!(run.per_second() >= before * CUT_MIN * (1.0 - DEPTH));
    }

    #[test]
    fn refusals_while_requests_wait_for_slots_are_for_too_many_in_flight() {
        let mut run = Run::new();
        run.starts.note_waiting(false);
        assert!(!run.starts.handle_refusal(run.now));
        run.starts.note_waiting(true);
        assert!(run.starts.handle_refusal(run.now));
    }
}
