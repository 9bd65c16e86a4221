// SPDX-License-Identifier: Apache-2.0
//! The decision when credentials are obtained, from times that the caller gives.
//!
//! Valid credentials are used while newer ones are obtained, so a request waits only for the first ones and for those
//! that replace expired ones.

use std::sync::Arc;

use foresee_units::Nanos;

/// Credentials are renewed this long before they expire, as botocore and the store client do.
const REFRESH_BEFORE: Nanos = Nanos::from_secs(300);
/// Minimum time between two requests for credentials while there are valid ones.
const PAUSE: Nanos = Nanos::from_secs(10);
/// Time for which a failure answers all requests, so that many reads do not each request credentials.
const FAILURE_PAUSE: Nanos = Nanos::from_secs(1);

/// The credentials of one store. Times are those of any monotonic clock.
#[derive(Debug)]
pub(super) struct RefreshState<C> {
    current: Option<Current<C>>,
    is_fetching: bool,
    /// Why the last request for credentials failed, if it did.
    failure: Option<String>,
    /// The earliest time of the next one, while the present credentials are valid or it failed.
    next_fetch: Nanos,
}

#[derive(Debug)]
struct Current<C> {
    credential: Arc<C>,
    recorded: Nanos,
    /// When to request newer ones, and when these expire.
    ends: Option<(Nanos, Nanos)>,
}

/// What a request to the store does.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step<C> {
    Use(Arc<C>),
    /// Use these, and obtain newer ones meanwhile.
    UseAndFetch(Arc<C>),
    /// Obtain credentials, and wait for them.
    Fetch,
    /// Wait for those that are being obtained.
    Wait,
    Fail(String),
}

impl<C> Default for RefreshState<C> {
    fn default() -> Self {
        Self { current: None, is_fetching: false, failure: None, next_fetch: Nanos::ZERO }
    }
}

impl<C> RefreshState<C> {
    /// Decide for a request at `now`. After [`Step::UseAndFetch`] and [`Step::Fetch`] the caller obtains credentials,
    /// and calls [`record`](Self::record).
    pub(super) fn poll(&mut self, now: Nanos) -> Step<C> {
        let is_pausing = now < self.next_fetch;
        let Some(valid) = self.valid(now) else {
            if self.is_fetching {
                return Step::Wait;
            }
            if let Some(failure) = self.failure.as_ref().filter(|_| is_pausing) {
                return Step::Fail(failure.clone());
            }
            self.is_fetching = true;
            return Step::Fetch;
        };
        let credential = Arc::clone(&valid.credential);
        let is_due = valid.ends.is_some_and(|(refresh_at, _)| refresh_at <= now);
        if is_due && !self.is_fetching && !is_pausing {
            self.is_fetching = true;
            return Step::UseAndFetch(credential);
        }
        Step::Use(credential)
    }

    /// Record credentials that are valid for `lifetime` (forever if `None`), or why there are none.
    pub(super) fn record(&mut self, obtained: Result<(C, Option<Nanos>), String>, now: Nanos) {
        self.is_fetching = false;
        let (credential, lifetime) = match obtained {
            Ok((_, Some(Nanos::ZERO))) => return self.fail("they have expired already".to_owned(), now),
            Ok(obtained) => obtained,
            Err(cause) => return self.fail(cause, now),
        };
        let ends = lifetime.map(|lifetime| {
            // Short-lived ones are renewed in the middle of their time.
            let before = REFRESH_BEFORE.min(Nanos::new(lifetime.get() / 2));
            (now + (lifetime - before), now + lifetime)
        });
        self.current = Some(Current { credential: Arc::new(credential), recorded: now, ends });
        self.failure = None;
        self.next_fetch = now + PAUSE;
    }

    /// Note that the store refused the credentials of a request that began at `began`. True if newer ones may be
    /// accepted, and then the next request uses them.
    pub(super) fn refuse(&mut self, began: Nanos, now: Nanos) -> bool {
        let Some(recorded) = self.valid(now).map(|current| current.recorded) else { return true };
        if began < recorded {
            return true;
        }
        // Credentials that are refused right after they came are wrong, and not expired. Later ones may be corrected.
        let end = recorded + PAUSE;
        if let Some(current) = &mut self.current {
            current.ends = Some((end, end));
        }
        end <= now
    }

    fn valid(&self, now: Nanos) -> Option<&Current<C>> {
        self.current.as_ref().filter(|current| current.ends.is_none_or(|(_, expires)| now < expires))
    }

    fn fail(&mut self, cause: String, now: Nanos) {
        self.failure = Some(cause);
        self.next_fetch = now + if self.valid(now).is_some() { PAUSE } else { FAILURE_PAUSE };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Nanos = Nanos::from_secs(3600);

    fn at(seconds: u64) -> Nanos {
        Nanos::from_secs(seconds)
    }

    /// A state with the credential 1, which came at second 0.
    fn filled(lifetime: Option<Nanos>) -> RefreshState<u32> {
        let mut state = RefreshState::default();
        assert_eq!(state.poll(at(0)), Step::Fetch);
        assert_eq!(state.poll(at(0)), Step::Wait, "one request at a time");
        state.record(Ok((1, lifetime)), at(0));
        state
    }

    #[test]
    fn credentials_are_renewed_once_before_they_expire_while_they_are_used() {
        let mut state = filled(Some(HOUR));
        assert_eq!(state.poll(at(3299)), Step::Use(Arc::new(1)));
        assert_eq!(state.poll(at(3300)), Step::UseAndFetch(Arc::new(1)));
        assert_eq!(state.poll(at(3301)), Step::Use(Arc::new(1)));
        state.record(Ok((2, Some(HOUR))), at(3302));
        assert_eq!(state.poll(at(3600)), Step::Use(Arc::new(2)));
    }

    #[test]
    fn short_lived_credentials_are_renewed_in_the_middle_of_their_time() {
        let mut state = filled(Some(at(60)));
        assert_eq!(state.poll(at(29)), Step::Use(Arc::new(1)));
        assert_eq!(state.poll(at(30)), Step::UseAndFetch(Arc::new(1)));
    }

    #[test]
    fn credentials_without_an_end_are_never_requested_again() {
        assert_eq!(filled(None).poll(Nanos::MAX), Step::Use(Arc::new(1)));
    }

    #[test]
    fn a_failed_renewal_is_repeated_and_is_an_error_after_the_end() {
        let mut state = filled(Some(HOUR));
        for second in [3300, 3310, 3320] {
            assert_eq!(state.poll(at(second)), Step::UseAndFetch(Arc::new(1)));
            state.record(Err("log in".to_owned()), at(second));
            assert_eq!(state.poll(at(second + 9)), Step::Use(Arc::new(1)));
        }
        assert_eq!(state.poll(at(3600)), Step::Fetch);
        state.record(Err("log in".to_owned()), at(3601));
        assert_eq!(state.poll(at(3601)), Step::Fail("log in".to_owned()));
        assert_eq!(state.poll(at(3602)), Step::Fetch);
        state.record(Ok((2, None)), at(3603));
        assert_eq!(state.poll(at(3603)), Step::Use(Arc::new(2)));
    }

    #[test]
    fn credentials_that_came_too_late_are_a_failure() {
        let mut state = RefreshState::<u32>::default();
        state.poll(at(0));
        state.record(Ok((1, Some(Nanos::ZERO))), at(0));
        assert_eq!(state.poll(at(0)), Step::Fail("they have expired already".to_owned()));
    }

    #[test]
    fn refused_credentials_are_requested_again_unless_they_just_came() {
        let mut state = filled(None);
        assert!(state.refuse(at(59), at(60)));
        assert!(state.refuse(at(59), at(60)), "the others of the same time are repeated too");
        assert_eq!(state.poll(at(60)), Step::Fetch);
        state.record(Ok((2, None)), at(61));
        assert!(state.refuse(at(60), at(62)), "this request had the old ones");
        assert!(!state.refuse(at(62), at(63)), "these are wrong");
        assert_eq!(state.poll(at(63)), Step::Use(Arc::new(2)));
        assert_eq!(state.poll(at(71)), Step::Fetch, "they may have been corrected");
    }
}
