// SPDX-License-Identifier: Apache-2.0
//! Pauses between tries of a failed request.
//!
//! Pauses double from `first_pause` to `longest_pause`. Jitter, a hash of ticket and fault number, removes up to
//! half of each, so that requests that failed together are not retried together, and a replay has the same times.
//! A request without slack is retried immediately only after its *first* fault, so that a failing source is not
//! overloaded.

use foresee_units::{Nanos, SplitMix64};

use crate::config::RetryConfig;

/// The pause after the `fault`-th fault in a row, `fault` from 1.
///
/// A pause that would exceed the slack is shortened to it; without slack the first is omitted. From the second
/// fault on a pause is at least that of the previous fault, because an immediate third request does not help a
/// source that failed twice.
pub(crate) fn pause(config: &RetryConfig, ticket: u64, fault: u32, slack: Nanos) -> Nanos {
    let polite = backoff(config, ticket, fault);
    let floor = if fault <= 1 { Nanos::ZERO } else { backoff(config, ticket, fault - 1) };
    polite.min(slack.max(floor))
}

/// `first_pause * 2^(fault - 1)`, at most `longest_pause`, minus up to half.
fn backoff(config: &RetryConfig, ticket: u64, fault: u32) -> Nanos {
    let doublings = fault.saturating_sub(1).min(63);
    let full = config.first_pause.get().saturating_mul(1 << doublings).min(config.longest_pause.get());
    let jitter = SplitMix64::new(ticket ^ u64::from(fault).rotate_left(48)).next() >> 33;
    let cut = (u128::from(full / 2) * u128::from(jitter)) >> 31;
    Nanos::new(full.saturating_sub(u64::try_from(cut).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: RetryConfig = RetryConfig {
        max_tries: 10,
        patience: Nanos::from_secs(180),
        first_pause: Nanos::from_millis(100),
        longest_pause: Nanos::from_secs(15),
    };

    #[test]
    fn pauses_double_up_to_the_longest_and_jitter_takes_at_most_half() {
        for ticket in 0..200 {
            for fault in 1..=80 {
                let full = 100_000_000u64.saturating_mul(1 << (fault - 1).min(40)).min(15_000_000_000);
                let got = pause(&CONFIG, ticket, fault, Nanos::MAX).get();
                assert!(got <= full && got >= full / 2, "ticket {ticket}, fault {fault}: {got} of {full}");
            }
        }
    }

    #[test]
    fn jitter_is_the_same_each_time_and_differs_between_tickets() {
        let first: Vec<Nanos> = (0..50).map(|ticket| pause(&CONFIG, ticket, 4, Nanos::MAX)).collect();
        let again: Vec<Nanos> = (0..50).map(|ticket| pause(&CONFIG, ticket, 4, Nanos::MAX)).collect();
        assert_eq!(first, again);
        let mut distinct = first;
        distinct.sort_unstable();
        distinct.dedup();
        assert!(distinct.len() >= 49);
    }

    #[test]
    fn without_slack_the_first_retry_is_at_once_and_later_ones_still_pause() {
        assert_eq!(pause(&CONFIG, 7, 1, Nanos::ZERO), Nanos::ZERO);
        assert!(pause(&CONFIG, 7, 2, Nanos::ZERO) >= Nanos::from_millis(50));
        assert!(pause(&CONFIG, 7, 6, Nanos::ZERO) >= Nanos::from_millis(800));
        assert_eq!(pause(&CONFIG, 7, 1, Nanos::new(5)), Nanos::new(5));
    }

    #[test]
    fn without_slack_a_pause_is_that_of_the_fault_before() {
        for (ticket, fault) in (0..50).flat_map(|ticket| (2..12).map(move |fault| (ticket, fault))) {
            let before = pause(&CONFIG, ticket, fault - 1, Nanos::MAX);
            let own = pause(&CONFIG, ticket, fault, Nanos::MAX);
            assert_eq!(
                pause(&CONFIG, ticket, fault, Nanos::ZERO),
                before.min(own),
                "ticket {ticket}, fault {fault}"
            );
        }
    }
}
