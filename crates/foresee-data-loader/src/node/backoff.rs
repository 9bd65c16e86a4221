// SPDX-License-Identifier: Apache-2.0
//! When a loader whose host has ended tries to attach again. Pure: the caller passes the time.

use foresee_data_node::{NodeError, RefusalCode};
use foresee_units::Nanos;

/// Time from the loss of a host to the first attempt: a service that is restarted needs about as long.
const INTERVAL_MIN: Nanos = Nanos::from_secs(1);
/// Maximum time between two attempts.
const INTERVAL_MAX: Nanos = Nanos::from_secs(30);
/// An attachment that lasted as long resets the interval. Hosts that end earlier are tried less and less often.
const STABLE: Nanos = Nanos::from_secs(60);

/// Times of the attempts of one loader, over all hosts that it has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttachBackoff {
    /// Time to the next attempt.
    interval: Nanos,
    attached_at: Nanos,
}

impl AttachBackoff {
    /// A loader has attached for the first time at `now`.
    pub(crate) const fn new(now: Nanos) -> Self {
        Self { interval: INTERVAL_MIN, attached_at: now }
    }

    /// The loader has attached again at `now`.
    pub(crate) const fn handle_attached(&mut self, now: Nanos) {
        self.attached_at = now;
    }

    /// The host has ended at `now`; return the time of the first attempt.
    pub(crate) fn handle_loss(&mut self, now: Nanos) -> Nanos {
        if now.saturating_sub(self.attached_at) >= STABLE {
            self.interval = INTERVAL_MIN;
        }
        self.handle_failure(now)
    }

    /// An attempt has failed at `now`; return the time of the next one.
    pub(crate) fn handle_failure(&mut self, now: Nanos) -> Nanos {
        let interval = self.interval;
        self.interval = interval.saturating_add(interval).min(INTERVAL_MAX);
        now.saturating_add(interval)
    }
}

/// Whether no later attempt at the same address can succeed: versions or users do not fit, or the other end breaks the
/// protocol.
pub(crate) const fn is_permanent(error: &NodeError) -> bool {
    match error {
        NodeError::Refused { code, .. } => {
            matches!(code, RefusalCode::Version | RefusalCode::User | RefusalCode::Malformed)
        }
        NodeError::OtherVersion { .. }
        | NodeError::OtherUid { .. }
        | NodeError::OverflowUid
        | NodeError::Malformed { .. }
        | NodeError::NotSealed { .. }
        | NodeError::OutsideSlab { .. }
        | NodeError::Ring(_)
        | NodeError::TooLong { .. }
        | NodeError::Forked => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds from the loss to each of `attempts` attempts that fail at once.
    fn attempts(backoff: &mut AttachBackoff, lost: Nanos, attempts: usize) -> Vec<u64> {
        let mut at = backoff.handle_loss(lost);
        let mut found = Vec::new();
        for _ in 0..attempts {
            found.push(at.saturating_sub(lost).get() / 1_000_000_000);
            at = backoff.handle_failure(at);
        }
        found
    }

    #[test]
    fn attempts_follow_at_intervals_from_one_to_thirty_seconds() {
        let mut backoff = AttachBackoff::new(Nanos::ZERO);
        let found = attempts(&mut backoff, Nanos::from_secs(1000), 8);
        assert_eq!(found, [1, 3, 7, 15, 31, 61, 91, 121]);
    }

    #[test]
    fn a_host_that_ends_again_and_again_is_tried_less_and_less_often() {
        let mut backoff = AttachBackoff::new(Nanos::ZERO);
        let mut now = Nanos::from_secs(100);
        let mut waits = Vec::new();
        for _ in 0..7 {
            let next = backoff.handle_loss(now);
            waits.push(next.saturating_sub(now).get() / 1_000_000_000);
            backoff.handle_attached(next);
            now = next.saturating_add(Nanos::from_secs(2));
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
    }

    #[test]
    fn a_host_that_was_stable_is_tried_after_a_second_again() {
        let mut backoff = AttachBackoff::new(Nanos::ZERO);
        attempts(&mut backoff, Nanos::from_secs(5), 10);
        backoff.handle_attached(Nanos::from_secs(500));
        let mut early = backoff;
        assert_eq!(attempts(&mut early, Nanos::from_secs(559), 1), [30]);
        assert_eq!(attempts(&mut backoff, Nanos::from_secs(560), 2), [1, 3]);
    }

    #[test]
    fn an_attempt_that_takes_long_delays_the_next_one() {
        let mut backoff = AttachBackoff::new(Nanos::ZERO);
        let first = backoff.handle_loss(Nanos::from_secs(100));
        let failed = first.saturating_add(Nanos::from_secs(9));
        assert_eq!(backoff.handle_failure(failed), failed.saturating_add(Nanos::from_secs(2)));
    }

    #[test]
    fn refusals_of_version_and_user_are_permanent_and_a_missing_host_is_not() {
        use RefusalCode::{Closing, DataSet, Malformed, Resources, TooManyConsumers, User, Version};

        let refused = |code| NodeError::Refused { code, text: String::new() };
        for code in [Version, User, Malformed] {
            assert!(is_permanent(&refused(code)), "{code:?}");
        }
        for code in [Closing, DataSet, Resources, TooManyConsumers] {
            assert!(!is_permanent(&refused(code)), "{code:?}");
        }
        assert!(is_permanent(&NodeError::OtherVersion { theirs: 2 }));
        assert!(is_permanent(&NodeError::OtherUid { uid: 1, ours: 2 }));
        let path = std::path::PathBuf::from("/run/node.sock");
        for error in [
            NodeError::NoHost { path: path.clone() },
            NodeError::Stale { path },
            NodeError::Ended,
            NodeError::PeerEnded,
            NodeError::Late { what: "answer" },
        ] {
            assert!(!is_permanent(&error), "{error}");
        }
    }
}
