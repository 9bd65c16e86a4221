// SPDX-License-Identifier: Apache-2.0
//! Liveness of a peer: it is dead after silence for the timeout. A slow peer is alive.
//!
//! This is pure arithmetic over event times, separate from the threads that receive and send heartbeats. All
//! other times follow from the argument of [`Timeouts::new`]. The caller ends the connection.

use foresee_units::Nanos;

use crate::error::WireError;
use crate::facts::TcpInfo;

/// All timeouts, derived from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Silence after which a peer is dead.
    pub timeout: Nanos,
    /// Time between heartbeats: a second, or a quarter of a timeout below 4 s, so that three may be lost.
    pub heartbeat: Nanos,
    /// Upper bound of a dial or a handshake: 10 s, or the timeout if that is less. A real one takes four round
    /// trips; an unauthenticated connection holds its resources for as long.
    pub handshake: Nanos,
    /// Grace period for a broken connection: three heartbeats. A live peer notices the break at its next
    /// heartbeat, and reconnects.
    pub reconnect: Nanos,
}

impl Timeouts {
    /// Derive all times from `timeout`: 10 ms to 24 h. The default of 30 s outlasts the pause of a virtual
    /// machine's snapshot.
    pub fn new(timeout: Nanos) -> Result<Self, WireError> {
        if !(Nanos::from_millis(10)..=Nanos::from_secs(86_400)).contains(&timeout) {
            let range = "10 ms to 24 h";
            return Err(WireError::Setting { name: "a timeout", found: timeout, range });
        }
        let heartbeat = Nanos::new(timeout.get() / 4).min(Nanos::from_secs(1));
        let reconnect = Nanos::new(3 * heartbeat.get());
        Ok(Self { timeout, heartbeat, handshake: timeout.min(Nanos::from_secs(10)), reconnect })
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self::new(Nanos::from_secs(30)).expect("30 s is within the range")
    }
}

/// Silence of one peer.
#[derive(Clone, Copy, Debug)]
pub struct Silence {
    timeout: Nanos,
    last_activity: Nanos,
}

impl Silence {
    /// Start at `now`, when the peer completed its handshake.
    pub const fn new(timeout: Nanos, now: Nanos) -> Self {
        Self { timeout, last_activity: now }
    }

    /// Handle received bytes of any kind: a PING, or half a packet.
    pub fn handle_received(&mut self, now: Nanos) {
        self.last_activity = self.last_activity.max(now);
    }

    /// Handle the kernel's data about a connection, requested about once per heartbeat.
    ///
    /// An acknowledgment counts as activity, and without bytes in flight none is expected. A peer that does not
    /// read sends none either: its closed window leaves nothing in flight. It still answers window probes. If
    /// packets cannot leave at all, nothing is in flight, and the probes stay unanswered.
    pub fn handle_info(&mut self, info: &TcpInfo, now: Nanos) {
        if info.unacked == 0 && info.probes <= 1 {
            self.handle_received(now);
        } else {
            self.handle_received(now.saturating_sub(info.last_ack));
        }
    }

    /// Time since the peer's last activity.
    pub fn lasts(&self, now: Nanos) -> Nanos {
        now.saturating_sub(self.last_activity)
    }

    /// Whether the silence has reached the timeout.
    pub fn is_dead(&self, now: Nanos) -> bool {
        self.lasts(now) >= self.timeout
    }

    /// When the peer counts as dead without further activity.
    pub fn deadline(&self) -> Nanos {
        self.last_activity.saturating_add(self.timeout)
    }
}

/// Schedule of heartbeats.
#[derive(Clone, Copy, Debug)]
pub struct Heartbeat {
    every: Nanos,
    due: Nanos,
    number: u64,
}

impl Heartbeat {
    /// The first is due at once.
    pub const fn new(every: Nanos, now: Nanos) -> Self {
        Self { every, due: now, number: 0 }
    }

    /// Return the number of the heartbeat that is due at `now`, once. After a pause one is due, not all that were
    /// missed.
    pub fn poll_ping(&mut self, now: Nanos) -> Option<u64> {
        if now < self.due {
            return None;
        }
        self.due = now.saturating_add(self.every);
        self.number += 1;
        Some(self.number - 1)
    }

    /// When the next heartbeat is due.
    pub fn deadline(&self) -> Nanos {
        self.due
    }
}

#[cfg(test)]
mod tests {
    use foresee_testkit::property;
    use proptest::prelude::*;

    use super::*;

    const MS: fn(u64) -> Nanos = Nanos::from_millis;

    #[test]
    fn all_times_follow_from_the_timeout() {
        let usual = Timeouts::default();
        assert_eq!((usual.timeout, usual.heartbeat, usual.handshake), (MS(30_000), MS(1_000), MS(10_000)));
        let short = Timeouts::new(MS(2_000)).unwrap();
        assert_eq!((short.heartbeat, short.handshake, short.reconnect), (MS(500), MS(2_000), MS(1_500)));
        assert!(Timeouts::new(MS(1)).unwrap_err().to_string().contains("1.0 ms is outside 10 ms to 24 h"));
        assert!(Timeouts::new(Nanos::MAX).is_err());
    }

    #[test]
    fn a_silent_peer_is_dead_at_the_deadline_and_not_before() {
        let mut silence = Silence::new(MS(100), MS(1_000));
        silence.handle_received(MS(1_050));
        silence.handle_received(MS(1_020)); // a late report takes nothing back
        assert_eq!(silence.deadline(), MS(1_150));
        assert!(!silence.is_dead(MS(1_149)));
        assert!(silence.is_dead(MS(1_150)));
        assert_eq!(silence.lasts(MS(1_150)), MS(100));
    }

    #[test]
    fn a_peer_that_sends_but_never_reads_is_slow_and_not_dead() {
        let stalled = TcpInfo { unacked: 0, last_ack: Nanos::from_secs(600), ..TcpInfo::default() };
        let mut silence = Silence::new(MS(100), Nanos::ZERO);
        for second in 1..600 {
            let now = Nanos::from_secs(second);
            silence.handle_info(&stalled, now);
            assert!(!silence.is_dead(now));
        }
    }

    #[test]
    fn unanswered_probes_are_silence_without_bytes_in_flight() {
        let mut silence = Silence::new(MS(100), Nanos::ZERO);
        let info = |probes, last_ack| TcpInfo { probes, last_ack, ..TcpInfo::default() };
        silence.handle_info(&info(1, MS(500)), MS(500));
        silence.handle_info(&info(2, MS(550)), MS(550));
        assert_eq!(silence.deadline(), MS(600));
        // Answered: the peer is alive, and its buffer full.
        silence.handle_info(&info(0, MS(3)), MS(590));
        silence.handle_info(&info(2, MS(33)), MS(620));
        assert_eq!(silence.deadline(), MS(690));
        silence.handle_info(&info(5, MS(103)), MS(690));
        assert!(silence.is_dead(MS(690)));
    }

    #[test]
    fn unacknowledged_bytes_in_flight_are_silence() {
        let mut silence = Silence::new(MS(100), Nanos::ZERO);
        let flight = |last_ack| TcpInfo { unacked: 3, last_ack, ..TcpInfo::default() };
        silence.handle_info(&flight(MS(30)), MS(60));
        assert_eq!(silence.deadline(), MS(130));
        silence.handle_info(&flight(MS(100)), MS(130));
        assert!(silence.is_dead(MS(130)));
    }

    #[test]
    fn after_a_pause_one_heartbeat_is_due() {
        let mut beat = Heartbeat::new(MS(10), MS(0));
        assert_eq!(beat.poll_ping(MS(0)), Some(0));
        assert_eq!(beat.poll_ping(MS(9)), None);
        assert_eq!(beat.poll_ping(MS(1_000)), Some(1));
        assert_eq!(beat.poll_ping(MS(1_000)), None);
        assert_eq!(beat.deadline(), MS(1_010));
    }

    proptest! {
        #![proptest_config(property(256))]

        #[test]
        fn a_peer_that_is_active_within_each_timeout_stays_alive(gaps in proptest::collection::vec(0_u64..100, 1..50)) {
            let mut silence = Silence::new(MS(100), Nanos::ZERO);
            let mut now = Nanos::ZERO;
            for gap in gaps {
                now += MS(gap);
                prop_assert!(!silence.is_dead(now));
                silence.handle_received(now);
            }
        }
    }
}
