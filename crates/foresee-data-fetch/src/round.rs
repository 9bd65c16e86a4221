// SPDX-License-Identifier: Apache-2.0
//! One measurement of goodput at one concurrency.
//!
//! `limit` compares measurements; this file makes them comparable. Attempts begun before the round are excluded.
//! The rate is taken block by block, and the round continues until the blocks agree, so a noisy source is
//! measured longer. Only a trial that is significantly worse ends at once, because it costs goodput. A round with
//! an empty queue is void: it measured the demand and not the source.

use foresee_units::Nanos;

use crate::float::as_f64;

/// Minimum number of blocks in a round.
const MIN_BLOCKS: u32 = 4;
/// Number of blocks after which the mean is accepted.
const MAX_BLOCKS: u32 = 32;
/// Minimum of answers in a block; otherwise it has as many as are in flight, since answers may come in waves of
/// that size.
const MIN_BLOCK: u32 = 8;
/// Number of standard errors that count as significant.
const SIGNIFICANCE: f64 = 2.0;
/// Fraction of a round with an empty queue above which it is void.
const IDLE_SHARE: f64 = 0.05;

/// The result of a complete round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// The source was busy.
    Goodput(Goodput),
    /// The source was not busy.
    Void,
}

/// The goodput of a source at one concurrency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Goodput {
    /// Units of work per nanosecond.
    pub(crate) rate: f64,
    /// Units of work per answer, on average.
    pub(crate) per_answer: f64,
}

/// Conditions for the end of a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Until {
    /// The standard error of the rate, relative to it.
    pub(crate) tolerance: f64,
    /// A rate below which the round is useless: it ends when this is significant. 0 for none.
    pub(crate) cutoff: f64,
}

/// A measurement in progress.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    since: Nanos,
    answers_per_block: u32,
    opened: Option<Nanos>,
    work: f64,
    answers: u32,
    block_opened: Nanos,
    block_work: f64,
    block_answers: u32,
    blocks: u32,
    mean: f64,
    squares: f64,
    idle_since: Option<Nanos>,
    idle: Nanos,
}

impl Round {
    /// Measure attempts begun at `since` or later, with `limit` of them in flight.
    pub(crate) fn new(since: Nanos, limit: u32) -> Self {
        Self {
            since,
            answers_per_block: limit.max(MIN_BLOCK),
            opened: None,
            work: 0.0,
            answers: 0,
            block_opened: since,
            block_work: 0.0,
            block_answers: 0,
            blocks: 0,
            mean: 0.0,
            squares: 0.0,
            idle_since: None,
            idle: Nanos::ZERO,
        }
    }

    /// The next round under the same conditions: no attempt in flight is excluded.
    pub(crate) fn restart(&self, now: Nanos) -> Self {
        Self { opened: Some(now), block_opened: now, ..Self::new(self.since, self.answers_per_block) }
    }

    /// There are free slots and no requests.
    pub(crate) fn note_idle(&mut self, now: Nanos) {
        self.idle_since.get_or_insert(now);
    }

    /// A request was started.
    pub(crate) fn note_start(&mut self, now: Nanos) {
        if let Some(since) = self.idle_since.take() {
            let from = since.max(self.opened.unwrap_or(now));
            self.idle += now.saturating_sub(from);
        }
    }

    /// Add an answer; return the result when the round is over.
    pub(crate) fn answer(&mut self, began: Nanos, work: f64, until: Until, now: Nanos) -> Option<Verdict> {
        if began < self.since {
            return None;
        }
        let Some(opened) = self.opened else {
            (self.opened, self.block_opened) = (Some(now), now);
            return None;
        };
        self.block_work += work;
        self.block_answers += 1;
        if self.block_answers < self.answers_per_block || now <= self.block_opened {
            return None;
        }
        self.close_block(now);
        if self.blocks < MIN_BLOCKS || (self.blocks < MAX_BLOCKS && !self.is_clear(until)) {
            return None;
        }
        let took = span(opened, now);
        let since = self.idle_since.map_or(now, |since| since.max(opened));
        if span(since, now) + as_f64(self.idle.get()) > IDLE_SHARE * took {
            return Some(Verdict::Void);
        }
        Some(Verdict::Goodput(Goodput {
            rate: self.work / took,
            per_answer: self.work / f64::from(self.answers),
        }))
    }

    fn is_clear(&self, until: Until) -> bool {
        let error = self.error();
        error <= until.tolerance || self.mean * (1.0 + SIGNIFICANCE * error) < until.cutoff
    }

    fn close_block(&mut self, now: Nanos) {
        let rate = self.block_work / span(self.block_opened, now);
        self.work += self.block_work;
        self.answers += self.block_answers;
        self.blocks += 1;
        let delta = rate - self.mean;
        self.mean += delta / f64::from(self.blocks);
        self.squares += delta * (rate - self.mean);
        (self.block_opened, self.block_work, self.block_answers) = (now, 0.0, 0);
    }

    /// Standard error of the mean over blocks, relative to it.
    fn error(&self) -> f64 {
        let blocks = f64::from(self.blocks);
        (self.squares / (blocks - 1.0) / blocks).sqrt() / self.mean
    }
}

fn span(from: Nanos, to: Nanos) -> f64 {
    as_f64(to.saturating_sub(from).get())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(round: &mut Round, gap: impl Fn(u64) -> u64, tolerance: f64) -> (u64, Verdict) {
        let mut now = 0;
        for answer in 0.. {
            now += gap(answer);
            let now = Nanos::new(now);
            let until = Until { tolerance, cutoff: 0.0 };
            if let Some(verdict) = round.answer(now, 1.0, until, now) {
                return (answer, verdict);
            }
        }
        unreachable!("a round ends after its last block at the latest")
    }

    #[test]
    fn an_even_source_is_measured_in_four_blocks() {
        let (answers, verdict) = run(&mut Round::new(Nanos::ZERO, 8), |_| 100, 0.01);
        assert_eq!(answers, 32);
        assert_eq!(verdict, Verdict::Goodput(Goodput { rate: 0.01, per_answer: 1.0 }));
    }

    #[test]
    fn a_noisy_source_is_measured_longer_but_not_forever() {
        let noisy = |answer: u64| if (answer / 8).is_multiple_of(2) { 50 } else { 200 };
        let (answers, _) = run(&mut Round::new(Nanos::ZERO, 8), noisy, 0.01);
        assert_eq!(answers, 8 * u64::from(MAX_BLOCKS));
    }

    #[test]
    fn a_round_ends_once_it_is_significantly_too_slow() {
        let noisy = |answer: u64| if (answer / 8).is_multiple_of(2) { 90 } else { 110 };
        let answers = |cutoff| {
            let mut round = Round::new(Nanos::ZERO, 8);
            let mut now = 0;
            (0..u64::from(MAX_BLOCKS * 9))
                .find(|&answer| {
                    now += noisy(answer);
                    let until = Until { tolerance: 0.001, cutoff };
                    round.answer(Nanos::new(now), 1.0, until, Nanos::new(now)).is_some()
                })
                .expect("a round ends")
        };
        assert_eq!(answers(0.012), 32);
        assert_eq!(answers(0.009), 8 * u64::from(MAX_BLOCKS));
    }

    #[test]
    fn attempts_begun_before_the_round_are_excluded() {
        let mut round = Round::new(Nanos::new(1000), 8);
        let until = Until { tolerance: 0.01, cutoff: 0.0 };
        for now in 1000..2000 {
            assert_eq!(round.answer(Nanos::new(999), 1.0, until, Nanos::new(now)), None);
        }
    }

    #[test]
    fn an_empty_queue_voids_the_round() {
        let mut round = Round::new(Nanos::ZERO, 8);
        let until = Until { tolerance: 0.01, cutoff: 0.0 };
        assert_eq!(round.answer(Nanos::ZERO, 1.0, until, Nanos::ZERO), None);
        round.note_idle(Nanos::new(0));
        round.note_start(Nanos::new(500));
        let (_, verdict) = run(&mut round, |_| 100, 0.01);
        assert_eq!(verdict, Verdict::Void);
    }
}
