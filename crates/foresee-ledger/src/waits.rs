// SPDX-License-Identifier: Apache-2.0
//! Division of one wait of the training loop among its causes.
//!
//! Causes overlap: while a batch is transformed, other samples are being read. By the rule, each instant has one
//! owner: the stage at that instant of the batch which ends the wait.

use foresee_units::Nanos;

use crate::entry::Cause;

/// Divide the wait from `start` to `end` by cause, in the order in which the causes first own an instant. The parts
/// add up exactly to the whole.
///
/// `stages` has each stage of the batch and its start, in order. Time before the first stage belongs to the first,
/// time after the last to the last. A batch without stages was ready: its wait is a [`Cause::Copy`]. A stage that
/// began before `start` owns only the time after it.
///
/// ```
/// use foresee_ledger::{Cause, divide_wait};
/// use foresee_units::Nanos;
///
/// let stages = [(Cause::OriginRead, Nanos::new(5)), (Cause::Transform, Nanos::new(40))];
/// let parts = divide_wait(Nanos::new(10), Nanos::new(100), &stages);
/// assert_eq!(parts, [(Cause::OriginRead, Nanos::new(30)), (Cause::Transform, Nanos::new(60))]);
/// ```
pub fn divide_wait(start: Nanos, end: Nanos, stages: &[(Cause, Nanos)]) -> Vec<(Cause, Nanos)> {
    let mut parts: Vec<(Cause, Nanos)> = Vec::new();
    let mut add = |cause: Cause, time: Nanos| {
        if time == Nanos::ZERO {
            return;
        }
        match parts.iter_mut().find(|(other, _)| *other == cause) {
            Some((_, sum)) => *sum += time,
            None => parts.push((cause, time)),
        }
    };
    let mut owner = stages.first().map_or(Cause::Copy, |&(cause, _)| cause);
    let mut at = start;
    for &(cause, since) in stages {
        let since = since.clamp(at, end.max(at));
        add(owner, since.saturating_sub(at));
        (owner, at) = (cause, since);
    }
    add(owner, end.saturating_sub(at));
    if parts.is_empty() {
        parts.push((owner, Nanos::ZERO));
    }
    parts
}

#[cfg(test)]
mod tests {
    use foresee_units::SplitMix64;

    use super::*;

    const A: Cause = Cause::OriginRead;
    const B: Cause = Cause::Transform;

    fn parts(start: u64, end: u64, stages: &[(Cause, u64)]) -> Vec<(Cause, u64)> {
        let stages: Vec<_> = stages.iter().map(|&(cause, since)| (cause, Nanos::new(since))).collect();
        let parts = divide_wait(Nanos::new(start), Nanos::new(end), &stages);
        parts.into_iter().map(|(cause, time)| (cause, time.get())).collect()
    }

    #[test]
    fn a_batch_that_was_ready_waits_for_copies_only() {
        assert_eq!(parts(5, 9, &[]), [(Cause::Copy, 4)]);
    }

    #[test]
    fn a_repeated_cause_has_one_sum() {
        assert_eq!(parts(0, 10, &[(A, 0), (B, 3), (A, 4), (B, 9)]), [(A, 8), (B, 2)]);
    }

    #[test]
    fn stages_that_ended_before_the_wait_own_nothing() {
        assert_eq!(parts(100, 130, &[(A, 10), (B, 50)]), [(B, 30)]);
    }

    #[test]
    fn a_wait_of_no_time_has_an_owner() {
        assert_eq!(parts(7, 7, &[(A, 2)]), [(A, 0)]);
        assert_eq!(parts(7, 7, &[]), [(Cause::Copy, 0)]);
    }

    #[test]
    fn parts_add_up_to_the_whole_for_any_stages() {
        let mut numbers = SplitMix64::new(1);
        let mut draw = |below: u64| numbers.below(below);
        for _ in 0..2000 {
            let start = draw(50);
            let end = start + draw(50);
            let stages: Vec<_> = (0..draw(8))
                .map(|_| {
                    let cause = usize::try_from(draw(Cause::ALL.len() as u64)).expect("few causes");
                    (Cause::ALL[cause], draw(120))
                })
                .collect();
            let parts = parts(start, end, &stages);
            assert_eq!(parts.iter().map(|&(_, time)| time).sum::<u64>(), end - start, "{stages:?}");
            for (cause, _) in &parts {
                assert_eq!(parts.iter().filter(|(other, _)| other == cause).count(), 1);
            }
        }
    }
}
