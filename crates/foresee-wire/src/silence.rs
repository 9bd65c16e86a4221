// SPDX-License-Identifier: Apache-2.0
//! When a peer counts as dead: it is silent for longer than the timeout. A slow one is not.
//!
//! Pure arithmetic over the times of facts, apart from the threads that hear and send them. One knob: every other
//! time follows from [`Timeouts::new`]'s argument.
//!
//! Refuses to end a connection: it says that a peer is dead, and the caller acts.

use foresee_units::Nanos;

use crate::error::WireError;
use crate::facts::TcpInfo;

/// Every waiting time, derived from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Silence after which a peer is dead.
    pub timeout: Nanos,
    /// Time between signs of life: a second, or a quarter of a timeout below 4 s, so that three may be lost.
    pub heartbeat: Nanos,
    /// A dial or a handshake takes no longer: 10 s, or the timeout where that is less. A real one needs four times
    /// the round trip; strangers hold a place for as long.
    pub handshake: Nanos,
    /// Whose connection breaks is waited for as long: three signs of life. Whoever lives hears of it with the next one, and
    /// dials again.
    pub reconnect: Nanos,
}

impl Timeouts {
    /// `timeout`: 10 ms to 24 h. The usual 30 s outlive a stop of the machine for a snapshot.
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

/// How long a peer has been silent.
#[derive(Clone, Copy, Debug)]
pub struct Silence {
    timeout: Nanos,
    heard: Nanos,
}

impl Silence {
    /// The peer was heard `now`, in its handshake.
    pub const fn new(timeout: Nanos, now: Nanos) -> Self {
        Self { timeout, heard: now }
    }

    /// Anything came from the peer: a PING, or half a packet.
    pub fn handle_heard(&mut self, now: Nanos) {
        self.heard = self.heard.max(now);
    }

    /// What the system knows of a connection's other end, asked for every heartbeat or so.
    ///
    /// An acknowledgment is a sign of life too, and where nothing is under way none is owed. A peer that does not
    /// read owes none either: its closed window leaves nothing in flight. But it answers when the system asks whether it
    /// has opened; where packets cannot leave at all, nothing is in flight either, and nobody answers.
    pub fn handle_info(&mut self, info: &TcpInfo, now: Nanos) {
        if info.unacked == 0 && info.probes <= 1 {
            self.handle_heard(now);
        } else {
            self.handle_heard(now.saturating_sub(info.last_ack));
        }
    }

    /// Time since the peer was heard.
    pub fn lasts(&self, now: Nanos) -> Nanos {
        now.saturating_sub(self.heard)
    }

    /// Whether it has lasted for the timeout.
    pub fn is_dead(&self, now: Nanos) -> bool {
        self.lasts(now) >= self.timeout
    }

    /// When it will have, if nothing is heard before.
    pub fn deadline(&self) -> Nanos {
        self.heard.saturating_add(self.timeout)
    }
}

/// When the next sign of life is due.
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

    /// The number of the sign of life that is due `now`, once. After a pause one is due, not those that were missed.
    pub fn poll_ping(&mut self, now: Nanos) -> Option<u64> {
        if now < self.due {
            return None;
        }
        self.due = now.saturating_add(self.every);
        self.number += 1;
        Some(self.number - 1)
    }

    /// When the next one is due.
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
    fn one_knob_gives_the_other_times() {
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
        silence.handle_heard(MS(1_050));
        silence.handle_heard(MS(1_020)); // a late report takes nothing back
        assert_eq!(silence.deadline(), MS(1_150));
        assert!(!silence.is_dead(MS(1_149)));
        assert!(silence.is_dead(MS(1_150)));
        assert_eq!(silence.lasts(MS(1_150)), MS(100));
    }

    #[test]
    fn a_peer_that_is_heard_but_never_reads_is_slow_and_not_dead() {
        let stalled = TcpInfo { unacked: 0, last_ack: Nanos::from_secs(600), ..TcpInfo::default() };
        let mut silence = Silence::new(MS(100), Nanos::ZERO);
        for second in 1..600 {
            let now = Nanos::from_secs(second);
            silence.handle_info(&stalled, now);
            assert!(!silence.is_dead(now));
        }
    }

    #[test]
    fn questions_without_an_answer_are_silence_though_nothing_is_in_flight() {
        let mut silence = Silence::new(MS(100), Nanos::ZERO);
        let asked = |probes, last_ack| TcpInfo { probes, last_ack, ..TcpInfo::default() };
        silence.handle_info(&asked(1, MS(500)), MS(500));
        silence.handle_info(&asked(2, MS(550)), MS(550));
        assert_eq!(silence.deadline(), MS(600));
        // Answered: the peer is there, and its buffer full.
        silence.handle_info(&asked(0, MS(3)), MS(590));
        silence.handle_info(&asked(2, MS(33)), MS(620));
        assert_eq!(silence.deadline(), MS(690));
        silence.handle_info(&asked(5, MS(103)), MS(690));
        assert!(silence.is_dead(MS(690)));
    }

    #[test]
    fn bytes_in_flight_without_acknowledgment_are_silence() {
        let mut silence = Silence::new(MS(100), Nanos::ZERO);
        let flight = |last_ack| TcpInfo { unacked: 3, last_ack, ..TcpInfo::default() };
        silence.handle_info(&flight(MS(30)), MS(60));
        assert_eq!(silence.deadline(), MS(130));
        silence.handle_info(&flight(MS(100)), MS(130));
        assert!(silence.is_dead(MS(130)));
    }

    #[test]
    fn after_a_pause_one_sign_of_life_is_due() {
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
        fn whoever_is_heard_within_every_timeout_never_dies(gaps in proptest::collection::vec(0_u64..100, 1..50)) {
            let mut silence = Silence::new(MS(100), Nanos::ZERO);
            let mut now = Nanos::ZERO;
            for gap in gaps {
                now += MS(gap);
                prop_assert!(!silence.is_dead(now));
                silence.handle_heard(now);
            }
        }
    }
}
