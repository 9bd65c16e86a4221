// SPDX-License-Identifier: Apache-2.0
//! Sizes of packets and windows.
//!
//! Both follow from properties of the link alone. They are separate from the scheduler because network models
//! need them too, and because a plan contains the packet size before any scheduler exists. Rates and round-trip
//! times are arguments; nothing is measured here.

use std::num::NonZeroU32;

use foresee_units::{Bytes, BytesPerSecond, Nanos};

/// The smallest packet: with its header it fills an Ethernet segment. Below this, headers cost more than waiting.
pub const PACKET_BYTES_MIN: NonZeroU32 = NonZeroU32::new(1408).expect("not 0");
/// The largest packet. A larger one would delay urgent packets longer and saves little (`docs/notes/046`).
pub const PACKET_BYTES_MAX: NonZeroU32 = NonZeroU32::new(372 * 1408).expect("not 0");
/// Packets are whole Ethernet segments, because half a segment costs as much as a whole one, and whole cache
/// lines, so that no two packets share one while they are summed.
pub const PACKET_BYTES_UNIT: u64 = 1408;
/// Approximate time of a packet on the slowest link, which is the time that an urgent packet waits for a started
/// one. Each packet costs about 0.1 ms of a core at both ends together, for any size (`docs/notes/023`).
pub const PACKET_TIME: Nanos = Nanos::new(230_000);
/// Links up to this rate, 1 Gbit/s, have packets of [`PACKET_TIME`]. On faster links the cores become the limit,
/// so the packet time grows in proportion to the rate.
pub const PACKET_RATE: BytesPerSecond = BytesPerSecond::new(125_000_000);
/// Packets per window. With fewer, one slow server delays all others.
pub const WINDOW_PACKETS: u64 = 4;
/// Minimum of packets per window, for links so fast that [`WINDOW_BOUND`] does not allow [`WINDOW_PACKETS`].
pub const WINDOW_PACKETS_MIN: u64 = 3;
/// Extra time of a window beyond the round trip: a thread has to wake up and write before the link is idle.
pub const WINDOW_SLACK: Nanos = Nanos::new(200_000);
/// Bound up to which a fourth packet and lateness enlarge a window: slightly less than three packets at 1 Gbit/s.
/// A larger window delays urgent packets (`docs/notes/022`). On a shaped link the queued bytes also cost CPU
/// time, which makes a busy node even later.
pub const WINDOW_BOUND: u64 = 86 << 10;

/// The packet size for the rate of the slowest link: `slowest x 0.23 ms x max(1, slowest / 1 Gbit/s)`, rounded up
/// to a multiple of 1408 bytes, 1408 to 523,776. A rate of 0 gives the smallest.
///
/// Mercury (Duan et al., TPDS 2023, section 5) found no difference from 16 to 256 KB, and lower speed at 8 KB and
/// less and at 1 MB and more. It used links of at least 10 Gbit/s, for which this gives 523,776 bytes. Up to 1
/// Gbit/s the packet time matters. n ranks send the same packet to the same server at once, so it takes n packet
/// times to cross that server's link, and as many on the way back (`docs/notes/012`). Packets of a tensor that
/// only some ranks have sent are of no use (`docs/notes/015`).
///
/// # Examples
/// ```
/// # use foresee_grad_queue::packet_bytes;
/// # use foresee_units::BytesPerSecond;
/// let gigabit = BytesPerSecond::new(125_000_000);
/// assert_eq!(packet_bytes(gigabit).get(), 29_568); // 28,750 bytes take 0.23 ms
/// ```
pub fn packet_bytes(slowest: BytesPerSecond) -> NonZeroU32 {
    let (rate, usual) = (u128::from(slowest.get()), u128::from(PACKET_RATE.get()));
    let time = u128::from(PACKET_TIME.get()) * rate.max(usual) / usual;
    let time = Nanos::new(u64::try_from(time).unwrap_or(u64::MAX));
    let units = moved_in(slowest, time).div_ceil(PACKET_BYTES_UNIT);
    let whole = u32::try_from(units.saturating_mul(PACKET_BYTES_UNIT)).unwrap_or(u32::MAX);
    NonZeroU32::new(whole).map_or(PACKET_BYTES_MIN, |whole| whole.min(PACKET_BYTES_MAX))
}

/// The unsent and unacknowledged bytes that an interface may have before another packet starts: `max(4 packets,
/// rate x (min_rtt + 0.2 ms)) + rate x late`, at most 86 KiB, unless `max(3 packets, rate x (min_rtt + 0.2 ms))`
/// is larger, which then applies. Rounded down; saturates.
///
/// `rate`: the interface's delivery rate, summed over its connections. `min_rtt`: the shortest round trip seen,
/// which contains no queueing. `late`: extra duration for late acknowledgments or a late sender. A started packet
/// is finished, so up to the window and one packet may be in flight. If the rate was measured under a window that
/// is too small, the result is larger than that window, so the window converges to the product of bandwidth and
/// delay.
///
/// # Examples
/// ```
/// # use foresee_grad_queue::window_bytes;
/// # use foresee_units::{Bytes, BytesPerSecond, Nanos};
/// let (packet, gigabit) = (Bytes::new(29_568), BytesPerSecond::new(125_000_000));
/// assert_eq!(window_bytes(packet, gigabit, Nanos::new(100_000), Nanos::ZERO), Bytes::new(88_704));
/// assert_eq!(window_bytes(packet, gigabit, Nanos::from_millis(20), Nanos::ZERO), Bytes::new(2_525_000));
/// ```
pub fn window_bytes(packet: Bytes, rate: BytesPerSecond, min_rtt: Nanos, late: Nanos) -> Bytes {
    let packets = |count| packet.get().saturating_mul(count);
    let trip = moved_in(rate, min_rtt.saturating_add(WINDOW_SLACK));
    let wanted = packets(WINDOW_PACKETS).max(trip).saturating_add(moved_in(rate, late));
    Bytes::new(wanted.min(WINDOW_BOUND).max(packets(WINDOW_PACKETS_MIN)).max(trip))
}

/// Bytes that `rate` moves in `time`, rounded down; saturates.
fn moved_in(rate: BytesPerSecond, time: Nanos) -> u64 {
    let bytes = u128::from(rate.get()) * u128::from(time.get()) / 1_000_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use foresee_testkit::property;
    use proptest::prelude::*;

    #[test]
    fn a_packet_takes_a_quarter_of_a_millisecond_up_to_1_gbit_and_longer_above() {
        let at = |megabit: u64| packet_bytes(BytesPerSecond::new(megabit * 125_000)).get();
        assert_eq!(at(0), 1408);
        assert_eq!(at(10), 1408);
        assert_eq!(at(50), 2816);
        assert_eq!(at(100), 4224);
        assert_eq!(at(200), 7040);
        assert_eq!(at(1_000), 29_568);
        assert_eq!(at(2_500), 180_224);
        assert_eq!(at(4_000), 460_416);
        assert_eq!(at(5_000), 523_776);
        assert_eq!(at(25_000), 523_776);
        assert_eq!(packet_bytes(BytesPerSecond::new(u64::MAX)), PACKET_BYTES_MAX);
    }

    #[test]
    fn a_window_is_four_packets_and_follows_rate_and_round_trip() {
        let packet = Bytes::new(16 << 10);
        assert_eq!(
            window_bytes(packet, BytesPerSecond::new(0), Nanos::ZERO, Nanos::ZERO),
            Bytes::new(64 << 10)
        );
        // 50 Mbit/s at 20 ms, the link on which a fixed window of 60 KB lost a third of the goodput.
        let slow = BytesPerSecond::new(6_250_000);
        assert_eq!(window_bytes(packet, slow, Nanos::from_millis(20), Nanos::ZERO), Bytes::new(126_250));
        assert_eq!(window_bytes(packet, BytesPerSecond::new(u64::MAX), Nanos::MAX, Nanos::ZERO), Bytes::MAX);
    }

    #[test]
    fn on_fast_links_a_window_is_three_packets() {
        let window = |packet, megabit: u64, late| {
            let rate = BytesPerSecond::new(megabit * 125_000);
            window_bytes(Bytes::new(packet), rate, Nanos::ZERO, late).get()
        };
        assert_eq!(window(7_040, 200, Nanos::ZERO), 4 * 7_040);
        assert_eq!(window(21_120, 700, Nanos::ZERO), 4 * 21_120);
        assert_eq!(window(28_160, 950, Nanos::ZERO), 86 << 10);
        assert_eq!(window(29_568, 1_000, Nanos::ZERO), 3 * 29_568);
        assert_eq!(window(29_568, 1_000, Nanos::from_millis(6)), 3 * 29_568);
        assert_eq!(window(261_888, 10_000, Nanos::ZERO), 3 * 261_888);
    }

    #[test]
    fn lateness_enlarges_the_window_within_a_bound() {
        let (packet, slow, late) =
            (Bytes::new(16 << 10), BytesPerSecond::new(6_250_000), Nanos::from_millis(2));
        assert_eq!(window_bytes(packet, slow, Nanos::ZERO, late), Bytes::new((64 << 10) + 12_500));
        let long = Nanos::from_millis(6);
        assert_eq!(window_bytes(packet, slow, Nanos::ZERO, long), Bytes::new(WINDOW_BOUND));
        let far = Nanos::from_millis(20);
        assert_eq!(window_bytes(packet, slow, far, late), window_bytes(packet, slow, far, Nanos::ZERO));
    }

    proptest! {
        #![proptest_config(property(256))]

        #[test]
        fn packets_are_whole_cache_lines_and_never_shrink_on_a_faster_link(rate: u64, more: u64) {
            let packet = packet_bytes(BytesPerSecond::new(rate));
            prop_assert_eq!(u64::from(packet.get()) % PACKET_BYTES_UNIT, 0);
            prop_assert!((PACKET_BYTES_MIN..=PACKET_BYTES_MAX).contains(&packet));
            prop_assert!(packet <= packet_bytes(BytesPerSecond::new(rate.saturating_add(more))));
        }
    }
}
