// SPDX-License-Identifier: Apache-2.0
//! Extra duration of a window, which compensates late acknowledgments and late wake-ups.
//!
//! A window lasts until acknowledgments arrive and the sending thread writes more. This takes longer than the
//! link needs: a thread waits for a core, and an acknowledgment queues behind its sender's data. The link then is
//! idle although packets wait. If this happens for a noticeable fraction of the time, the window is extended by
//! just that time, because an urgent packet waits behind all bytes in flight.

use foresee_units::Nanos;

/// The tolerated fraction of idle time while packets wait: one 50th. Idle time beyond it extends the window.
const SHARE: u64 = 50;
/// Upper bound of the extension.
const MOST: Nanos = Nanos::from_millis(6);
/// The extension changes in steps of this size, so that a window changes seldom.
const GRAIN: u64 = 100_000;

/// State of one interface.
#[derive(Debug, Default)]
pub(super) struct Lateness {
    /// The current extension.
    late: Nanos,
}

impl Lateness {
    /// Packets waited for the window during `waited`, and the link was idle for `idle` of that. Returns the
    /// extension of the window: 6 ms at most.
    pub(super) fn handle_wait(&mut self, waited: Nanos, idle: Nanos) -> Nanos {
        let late = self.late.saturating_add(idle).saturating_sub(Nanos::new(waited.get() / SHARE));
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
    fn repeated_lateness_extends_the_window_up_to_a_bound() {
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
    fn rare_idle_time_does_not_extend_the_window_for_long() {
        let mut lateness = Lateness::default();
        for _ in 0..20 {
            lateness.handle_wait(ms(1), ms(1));
            assert_eq!(lateness.handle_wait(ms(99), Nanos::ZERO), Nanos::ZERO);
        }
    }

    #[test]
    fn the_extension_decays_only_while_packets_wait() {
        let mut lateness = Lateness::default();
        lateness.handle_wait(Nanos::ZERO, ms(4));
        assert_eq!(lateness.handle_wait(Nanos::ZERO, Nanos::ZERO), ms(4));
        assert_eq!(lateness.handle_wait(ms(100), Nanos::ZERO), ms(2));
        assert_eq!(lateness.handle_wait(ms(100), Nanos::ZERO), Nanos::ZERO);
    }
}
