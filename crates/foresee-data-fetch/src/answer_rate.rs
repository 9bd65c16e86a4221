// SPDX-License-Identifier: Apache-2.0
//! The rate at which a source has answered lately, while it had requests.

use foresee_units::Nanos;

use crate::float::as_f64;

/// Minimum of time and answers of an interval.
const INTERVAL_MIN: Nanos = Nanos::from_secs(1);
const ANSWERS_MIN: u64 = 32;

/// Answers of the present interval and the one before.
#[derive(Clone, Debug)]
pub(crate) struct AnswerRate {
    since: Nanos,
    answers: u64,
    before: Interval,
    /// Whether there was an answer since [`take_answered`](Self::take_answered).
    has_answered: bool,
    idle_since: Option<Nanos>,
}

/// An interval that is over.
#[derive(Clone, Copy, Debug, Default)]
struct Interval {
    answers: u64,
    took: Nanos,
}

impl Default for AnswerRate {
    /// Idle until the first request.
    fn default() -> Self {
        Self {
            since: Nanos::ZERO,
            answers: 0,
            before: Interval::default(),
            has_answered: false,
            idle_since: Some(Nanos::ZERO),
        }
    }
}

impl AnswerRate {
    /// There are no requests from now on.
    pub(crate) fn note_idle(&mut self, now: Nanos) {
        self.idle_since.get_or_insert(now);
    }

    /// A request was started.
    pub(crate) fn note_start(&mut self, now: Nanos) {
        if let Some(idle_since) = self.idle_since.take() {
            self.since = self.since.saturating_add(now.saturating_sub(idle_since));
        }
    }

    /// Measure anew.
    pub(crate) fn restart(&mut self, now: Nanos) {
        *self = Self { since: now, idle_since: None, has_answered: self.has_answered, ..Self::default() };
    }

    /// Add an answer.
    pub(crate) fn add(&mut self, now: Nanos) {
        self.has_answered = true;
        let took = now.saturating_sub(self.since);
        if took >= INTERVAL_MIN && self.answers >= ANSWERS_MIN {
            self.before = Interval { answers: self.answers, took };
            (self.since, self.answers) = (now, 0);
        }
        self.answers += 1;
    }

    /// Whether there was an answer since the last call.
    pub(crate) fn take_answered(&mut self) -> bool {
        std::mem::take(&mut self.has_answered)
    }

    /// Answers per nanosecond; `None` with too few of them, and if they were measured for less than `shortest`.
    pub(crate) fn rate(&self, shortest: Nanos, now: Nanos) -> Option<f64> {
        let took = self.before.took.saturating_add(now.saturating_sub(self.since));
        let answers = self.before.answers + self.answers;
        let is_known = answers >= ANSWERS_MIN && took > Nanos::ZERO && took >= shortest;
        is_known.then(|| as_f64(answers) / as_f64(took.get()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    /// Answers once per `interval` milliseconds from `from` to `to`.
    fn answer(rate: &mut AnswerRate, from: u64, to: u64, interval: u64) {
        rate.note_start(at(from));
        (from..to).step_by(usize::try_from(interval).unwrap()).for_each(|time| rate.add(at(time)));
    }

    fn per_second(rate: &AnswerRate, now: u64) -> u64 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
        rate.rate(Nanos::ZERO, at(now)).map_or(0, |rate| (rate * 1e9).round() as u64)
    }

    #[test]
    fn it_is_that_of_the_last_one_to_two_seconds() {
        let mut rate = AnswerRate::default();
        answer(&mut rate, 10_000, 20_000, 1);
        assert_eq!(per_second(&rate, 20_000), 1000);
        answer(&mut rate, 20_000, 22_000, 10);
        assert_eq!(per_second(&rate, 22_000), 100);
    }

    #[test]
    fn few_answers_are_measured_for_longer() {
        let mut rate = AnswerRate::default();
        answer(&mut rate, 0, 1000, 100);
        assert_eq!(rate.rate(Nanos::ZERO, at(1000)), None);
        answer(&mut rate, 1000, 4000, 100);
        assert_eq!(per_second(&rate, 4000), 10);
        assert_eq!(rate.rate(at(5000), at(4000)), None);
    }

    #[test]
    fn time_without_requests_does_not_count() {
        let mut rate = AnswerRate::default();
        answer(&mut rate, 5000, 5500, 5);
        rate.note_idle(at(5500));
        rate.note_idle(at(9000));
        answer(&mut rate, 60_000, 60_300, 5);
        assert_eq!(per_second(&rate, 60_300), 200);
    }

    #[test]
    fn a_restart_drops_the_answers_but_not_that_there_were_any() {
        let mut rate = AnswerRate::default();
        answer(&mut rate, 0, 500, 5);
        rate.restart(at(500));
        assert_eq!(per_second(&rate, 600), 0);
        assert!(rate.take_answered() && !rate.take_answered());
    }
}
