// SPDX-License-Identifier: Apache-2.0
//! How large a packet is, and how much of an interface's data may be under way.
//!
//! Apart from the scheduler, which takes both figures as given: they follow from facts of the link alone, a
//! model of a network needs them too, and a plan has to name the packet size before any scheduler exists.
//!
//! Refuses to measure: rates and round-trip times are arguments.

use std::num::NonZeroU32;

use foresee_units::{Bytes, BytesPerSecond, Nanos};

/// The smallest packet: it and its header fill two segments of Ethernet. Below this headers cost more than waiting.
pub const PACKET_BYTES_MIN: NonZeroU32 = NonZeroU32::new(2816).expect("not 0");
/// The largest packet: above this an urgent one waits long behind one that has started.
pub const PACKET_BYTES_MAX: NonZeroU32 = NonZeroU32::new(256 << 10).expect("not 0");
/// Packets are whole cache lines, so that no two of them share one while they are summed.
pub const PACKET_BYTES_UNIT: u64 = 64;
/// Time on the slowest link that a packet takes: what an urgent one waits for a started one at most.
pub const PACKET_TIME: Nanos = Nanos::new(150_000);
/// Packets that a window has room for at least. With fewer, what one server is slow to take holds up all others.
pub const WINDOW_PACKETS_MIN: u64 = 3;
/// What a window holds beyond the round trip: a thread has to wake and write before the link runs dry.
pub const WINDOW_SLACK: Nanos = Nanos::new(200_000);

/// The packet size for links of which the slowest moves `slowest`: [`PACKET_TIME`] of it, rounded down to a
/// multiple of 64 bytes, within 2816 bytes to 256 KiB. A rate of 0 gives the smallest.
///
/// Mercury (Duan et al., TPDS 2023, section 5) found 16 to 256 KB alike and 8 KB and less slower, on links of
/// 10 Gbit/s and more, where this gives 187,456 bytes. What counts is a packet's time: n ranks send the same packet to the
/// same server at once, so it takes n of them to cross that server's link, and as many on the way back
/// (`docs/notes/012`).
///
/// # Examples
/// ```
/// # use foresee_grad_queue::packet_bytes;
/// # use foresee_units::BytesPerSecond;
/// let gigabit = BytesPerSecond::new(125_000_000);
/// assert_eq!(packet_bytes(gigabit).get(), 18_688); // 18,750 bytes take 0.15 ms
/// ```
pub fn packet_bytes(slowest: BytesPerSecond) -> NonZeroU32 {
    let whole = moved_in(slowest, PACKET_TIME) / PACKET_BYTES_UNIT * PACKET_BYTES_UNIT;
    let whole = u32::try_from(whole).unwrap_or(u32::MAX);
    NonZeroU32::new(whole).map_or(PACKET_BYTES_MIN, |whole| whole.clamp(PACKET_BYTES_MIN, PACKET_BYTES_MAX))
}

/// How many unsent and unacknowledged bytes an interface may have before another packet starts:
/// `max(3 packets, rate x (min_rtt + 0.2 ms))`, rounded down; saturates.
///
/// `rate`: what the interface delivers, summed over its connections; `min_rtt`: the smallest round trip
/// seen, so without queues. A started packet is finished, hence up to the window and one packet may be
/// under way. Where the rate was measured under a window that is too small, this one is larger than what
/// was used, so the window grows by itself up to the product of bandwidth and delay.
///
/// # Examples
/// ```
/// # use foresee_grad_queue::window_bytes;
/// # use foresee_units::{Bytes, BytesPerSecond, Nanos};
/// let (packet, gigabit) = (Bytes::new(18_688), BytesPerSecond::new(125_000_000));
/// assert_eq!(window_bytes(packet, gigabit, Nanos::new(100_000)), Bytes::new(56_064));
/// assert_eq!(window_bytes(packet, gigabit, Nanos::from_millis(20)), Bytes::new(2_525_000));
/// ```
pub fn window_bytes(packet: Bytes, rate: BytesPerSecond, min_rtt: Nanos) -> Bytes {
    let packets = packet.get().saturating_mul(WINDOW_PACKETS_MIN);
    Bytes::new(packets.max(moved_in(rate, min_rtt.saturating_add(WINDOW_SLACK))))
}

/// Bytes that `rate` moves in `time`, rounded down; saturates.
fn moved_in(rate: BytesPerSecond, time: Nanos) -> u64 {
    let bytes = u128::from(rate.get()) * u128::from(time.get()) / 1_000_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_packet_takes_a_seventh_of_a_millisecond_within_its_bounds() {
        let at = |megabit: u64| packet_bytes(BytesPerSecond::new(megabit * 125_000)).get();
        assert_eq!(at(0), 2816);
        assert_eq!(at(100), 2816);
        assert_eq!(at(200), 3712);
        assert_eq!(at(1_000), 18_688);
        assert_eq!(at(10_000), 187_456);
        assert_eq!(at(25_000), 256 << 10);
        assert_eq!(packet_bytes(BytesPerSecond::new(u64::MAX)), PACKET_BYTES_MAX);
    }

    #[test]
    fn a_window_is_three_packets_at_least_and_follows_rate_and_round_trip() {
        let packet = Bytes::new(16 << 10);
        assert_eq!(window_bytes(packet, BytesPerSecond::new(0), Nanos::ZERO), Bytes::new(48 << 10));
        // 50 Mbit/s at 20 ms, the link on which a fixed window of 60 KB lost a third of the goodput.
        let slow = BytesPerSecond::new(6_250_000);
        assert_eq!(window_bytes(packet, slow, Nanos::from_millis(20)), Bytes::new(126_250));
        assert_eq!(window_bytes(packet, BytesPerSecond::new(u64::MAX), Nanos::MAX), Bytes::MAX);
    }

    proptest! {
        #[test]
        fn packets_are_whole_cache_lines_and_never_shrink_on_a_faster_link(rate: u64, more: u64) {
            let packet = packet_bytes(BytesPerSecond::new(rate));
            prop_assert_eq!(u64::from(packet.get()) % PACKET_BYTES_UNIT, 0);
            prop_assert!((PACKET_BYTES_MIN..=PACKET_BYTES_MAX).contains(&packet));
            prop_assert!(packet <= packet_bytes(BytesPerSecond::new(rate.saturating_add(more))));
        }
    }
}
