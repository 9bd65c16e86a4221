// SPDX-License-Identifier: Apache-2.0
//! How much longer a window has to last, because what opens it again comes late.
//!
//! A window lasts until acknowledgments arrive and the sending thread writes more. The link is only a part of that time: a
//! thread waits for a core, and an acknowledgment waits behind what its sender has to send. The link then has nothing to
//! carry although more waits. Where that takes a noticeable part of the time, the window has to last longer, and no longer
//! than that, because an urgent packet waits behind all that is in flight.

use foresee_units::Nanos;

/// The part of the time in which something waits that a link may be dry: one 50th. For what it was dry beyond that the window
/// lasts longer from then on.
const SHARE: u64 = 50;
/// The longest that a window lasts beyond what link and packets ask for.
const MOST: Nanos = Nanos::from_millis(6);
/// Reported in such steps, so that a window changes seldom.
const GRAIN: u64 = 100_000;

/// Of one interface.
#[derive(Debug, Default)]
pub(super) struct Lateness {
    /// What the window has to last longer.
    late: Nanos,
}

impl Lateness {
    /// Something has waited for the window, for so long (`waited`), and for so much of that (`dry`) the link had nothing to
    /// carry. How much longer the window has to last: 6 ms at most.
    pub(super) fn handle_wait(&mut self, waited: Nanos, dry: Nanos) -> Nanos {
        let late = self.late.saturating_add(dry).saturating_sub(Nanos::new(waited.get() / SHARE));
        self.late = late.min(MOST);
        Nanos::new(self.late.get() / GRAIN * GRAIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    #[test]
    fn a_window_that_is_late_again_and_again_lasts_longer_up_to_a_bound() {
        let mut lateness = Lateness::default();
        assert_eq!(lateness.handle_wait(ms(10), Nanos::ZERO), Nanos::ZERO);
        assert_eq!(lateness.handle_wait(ms(10), ms(1)), Nanos::new(800_000), "less a 50th of the time");
        for _ in 0..100 {
            lateness.handle_wait(ms(10), ms(1));
        }
        assert_eq!(lateness.handle_wait(Nanos::ZERO, Nanos::ZERO), ms(6));
        assert_eq!(lateness.handle_wait(ms(500), ms(500)), ms(6), "nor does one long stop exceed it");
    }

    #[test]
    fn what_is_seldom_dry_costs_nothing_for_long() {
        let mut lateness = Lateness::default();
        for _ in 0..20 {
            lateness.handle_wait(ms(1), ms(1));
            assert_eq!(lateness.handle_wait(ms(99), Nanos::ZERO), Nanos::ZERO);
        }
    }

    #[test]
    fn lateness_is_forgotten_while_something_waits_and_kept_while_nothing_does() {
        let mut lateness = Lateness::default();
        lateness.handle_wait(Nanos::ZERO, ms(4));
        assert_eq!(lateness.handle_wait(Nanos::ZERO, Nanos::ZERO), ms(4));
        assert_eq!(lateness.handle_wait(ms(100), Nanos::ZERO), ms(2));
        assert_eq!(lateness.handle_wait(ms(100), Nanos::ZERO), Nanos::ZERO);
    }
}
