// SPDX-License-Identifier: Apache-2.0
//! How late the thread of an interface wakes, as far as that leaves its link dry while something waits.
//!
//! A window lasts until the thread wakes and writes more. How long that takes is the machine's affair: tens of
//! microseconds where a core is free, milliseconds where many processes share one. It shows when all that was under way
//! has been acknowledged before the thread came to send more. Seldom, that costs nothing; where it costs a noticeable part
//! of the time, the window has to last longer, and no longer than that: what is under way is what an urgent packet
//! waits behind.
//!
//! Refuses to read a clock: times are arguments.

use foresee_units::Nanos;

/// The part of the time in which something waits that a link may be dry: one 500th.
const SHARE: u64 = 500;
/// Of what it was dry beyond that the window lasts a half longer from then on.
const GAIN: u64 = 2;
/// The longest that a window lasts beyond what link and packets ask for. What lasts longer is no thread that wakes late: the link
/// itself stands still, or has lost something, and more under way would make it worse.
const MOST: Nanos = Nanos::from_millis(3);
/// Told in such steps, so that a window changes seldom.
const GRAIN: u64 = 100_000;

/// Of one interface.
#[derive(Debug, Default)]
pub(super) struct Lateness {
    /// What the window has to last longer.
    late: Nanos,
    /// Since when something has waited that was not accounted for.
    since: Option<Nanos>,
}

impl Lateness {
    /// The thread wakes at `now`, and something waits to be sent or not (`waits`). `dry`: for how long nothing was under way
    /// meanwhile, although something waited. How much longer the window has to last: 3 ms at most.
    pub(super) fn handle_wake(&mut self, now: Nanos, waits: bool, dry: Nanos) -> Nanos {
        let waited = self.since.map_or(Nanos::ZERO, |since| now.saturating_sub(since));
        self.since = waits.then_some(now);
        let dry = if dry > MOST { Nanos::ZERO } else { dry };
        let late = (self.late.get() + dry.get() / GAIN).saturating_sub(waited.get() / SHARE / GAIN);
        self.late = Nanos::new(late).min(MOST);
        Nanos::new(self.late.get() / GRAIN * GRAIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = Nanos::from_millis(1);

    fn at(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    #[test]
    fn a_thread_that_wakes_late_again_and_again_gets_a_longer_window_up_to_a_bound() {
        let mut lateness = Lateness::default();
        assert_eq!(lateness.handle_wake(at(0), true, Nanos::ZERO), Nanos::ZERO);
        assert_eq!(lateness.handle_wake(at(10), true, MS), Nanos::new(400_000), "half of it, in whole steps");
        for wake in 2..100 {
            lateness.handle_wake(at(10 * wake), true, MS);
        }
        assert_eq!(lateness.handle_wake(at(1000), true, Nanos::ZERO), Nanos::new(2_900_000));
    }

    #[test]
    fn what_is_seldom_dry_costs_nothing() {
        let mut lateness = Lateness::default();
        for second in 0..20 {
            lateness.handle_wake(at(1000 * second), true, MS);
            assert_eq!(lateness.handle_wake(at(1000 * second + 999), true, Nanos::ZERO), Nanos::ZERO);
        }
    }

    #[test]
    fn a_link_that_stands_still_is_no_late_thread() {
        let mut lateness = Lateness::default();
        for wake in 0..100 {
            assert_eq!(lateness.handle_wake(at(200 * wake), true, at(190)), Nanos::ZERO);
        }
    }

    #[test]
    fn lateness_is_forgotten_while_something_waits_and_kept_while_nothing_does() {
        let mut lateness = Lateness::default();
        lateness.handle_wake(at(0), true, at(2));
        lateness.handle_wake(at(0), true, at(2));
        assert_eq!(lateness.handle_wake(at(1), false, Nanos::ZERO), at(2) - Nanos::new(100_000));
        assert_eq!(lateness.handle_wake(at(60_000), true, Nanos::ZERO), at(2) - Nanos::new(100_000));
        assert_eq!(lateness.handle_wake(at(61_000), true, Nanos::ZERO), Nanos::new(900_000));
        assert_eq!(lateness.handle_wake(at(63_000), true, Nanos::ZERO), Nanos::ZERO);
    }
}
