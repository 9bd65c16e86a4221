// SPDX-License-Identifier: Apache-2.0
//! One direction of a link: packets are delivered whole, one after the other, in the order of their grants.

use std::collections::VecDeque;

use foresee_grad_queue::Grant;
use foresee_units::{Bytes, BytesPerSecond, Nanos};

/// A packet and the time of its delivery.
#[derive(Clone, Copy, Debug)]
struct QueuedPacket {
    grant: Grant,
    start: Nanos,
    end: Nanos,
}

#[derive(Clone, Debug)]
pub(super) struct Wire {
    /// Not 0.
    rate: BytesPerSecond,
    /// Time from a grant to its first byte.
    startup: Nanos,
    queue: VecDeque<QueuedPacket>,
    /// Bytes of the queue, including delivered bytes of the first packet.
    queued: u64,
    /// The start of the current busy interval, and its bytes. Ends are computed from the start, so that rounding
    /// errors do not add up.
    busy: (Nanos, u64),
    /// The end of the last packet.
    free: Nanos,
}

impl Wire {
    pub(super) const fn new(rate: BytesPerSecond, startup: Nanos) -> Self {
        let busy = (Nanos::ZERO, 0);
        Self { rate, startup, queue: VecDeque::new(), queued: 0, busy, free: Nanos::ZERO }
    }

    pub(super) fn push(&mut self, grant: Grant, now: Nanos) {
        let start = self.free.max(now.saturating_add(self.startup));
        if start > self.free {
            self.busy = (start, 0);
        }
        self.busy.1 += u64::from(grant.bytes);
        self.queued += u64::from(grant.bytes);
        self.free = self.busy.0.saturating_add(self.time(self.busy.1));
        self.queue.push_back(QueuedPacket { grant, start, end: self.free });
    }

    /// The next packet that was delivered by `now`.
    pub(super) fn pop(&mut self, now: Nanos) -> Option<Grant> {
        let grant = self.queue.front().filter(|packet| packet.end <= now)?.grant;
        self.queue.pop_front();
        self.queued -= u64::from(grant.bytes);
        Some(grant)
    }

    /// When the next packet will be delivered.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.queue.front().map(|packet| packet.end)
    }

    /// Bytes that were not delivered by `now`; all packets that ended were removed before.
    pub(super) fn left(&self, now: Nanos) -> u64 {
        let Some(packet) = self.queue.front() else { return 0 };
        let time = u128::from(now.saturating_sub(packet.start).get());
        let passed = time * u128::from(self.rate.get()) / 1_000_000_000;
        let passed = u64::try_from(passed).unwrap_or(u64::MAX).min(u64::from(packet.grant.bytes));
        self.queued - passed
    }

    /// When at most `bytes` will be left.
    pub(super) fn when_left(&self, bytes: u64) -> Option<Nanos> {
        let mut left = self.queued;
        let packet = self.queue.iter().find(|packet| {
            let enough = left <= bytes.saturating_add(u64::from(packet.grant.bytes));
            if !enough {
                left -= u64::from(packet.grant.bytes);
            }
            enough
        })?;
        let time = self.time(left.checked_sub(bytes)?);
        Some(packet.start.saturating_add(time).min(packet.end))
    }

    fn time(&self, bytes: u64) -> Nanos {
        self.rate.time_for(Bytes::new(bytes)).unwrap_or(Nanos::MAX)
    }
}

#[cfg(test)]
mod tests {
    use foresee_grad_queue::{Class, Connection, Flow, Ticket};

    use super::*;

    fn grant(bytes: u32) -> Grant {
        Grant {
            ticket: Ticket::new(0),
            connection: Connection::new(0),
            packet: 0,
            bytes,
            class: Class::new(0),
            flow: Flow::new(0),
            waited: Nanos::ZERO,
            last: false,
        }
    }

    #[test]
    fn bytes_leave_one_after_the_other_and_a_gap_starts_a_new_interval() {
        let mut wire = Wire::new(BytesPerSecond::new(1_000_000_000), Nanos::new(5));
        wire.push(grant(100), Nanos::ZERO); // from 5 to 105 ns
        wire.push(grant(50), Nanos::new(10)); // to 155
        assert_eq!([0, 5, 45, 104].map(|now| wire.left(Nanos::new(now))), [150, 150, 110, 51]);
        let times = [200, 150, 60, 50, 20, 0].map(|bytes| wire.when_left(bytes).map(Nanos::get));
        assert_eq!(times, [None, Some(5), Some(95), Some(105), Some(135), Some(155)]);
        assert!(wire.pop(Nanos::new(104)).is_none());
        assert_eq!(wire.pop(Nanos::new(105)).map(|grant| grant.bytes), Some(100));
        assert_eq!((wire.next(), wire.left(Nanos::new(130))), (Some(Nanos::new(155)), 25));
        assert_eq!(wire.pop(Nanos::new(155)).map(|grant| grant.bytes), Some(50));
        wire.push(grant(7), Nanos::new(300));
        assert_eq!(wire.next(), Some(Nanos::new(312)));
    }

    #[test]
    fn roundings_do_not_add_up_while_the_link_is_busy() {
        let mut wire = Wire::new(BytesPerSecond::new(3), Nanos::ZERO);
        for _ in 0..3_000 {
            wire.push(grant(1), Nanos::ZERO);
        }
        assert_eq!(wire.free, Nanos::from_secs(1_000));
    }
}
