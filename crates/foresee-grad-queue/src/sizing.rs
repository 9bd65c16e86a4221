// SPDX-License-Identifier: Apache-2.0
//! How large a packet is, and how much of an interface's data may be under way.
//!
//! Apart from the scheduler, which takes both figures as given: they follow from facts of the link alone, a
//! model of a network needs them too, and a plan has to name the packet size before any scheduler exists.
//!
//! Refuses to measure: rates and round-trip times are arguments.

use std::num::NonZeroU32;

use foresee_units::{Bytes, BytesPerSecond, Nanos};

/// The smallest packet: it and its header fill a segment of Ethernet. Below this headers cost more than waiting.
pub const PACKET_BYTES_MIN: NonZeroU32 = NonZeroU32::new(1408).expect("not 0");
/// The largest packet: above this an urgent one waits long behind one that has started, and little is saved (`docs/notes/046`).
pub const PACKET_BYTES_MAX: NonZeroU32 = NonZeroU32::new(372 * 1408).expect("not 0");
/// Packets are whole segments of Ethernet, since half a segment costs as much as a whole one; and whole cache lines, so
/// that no two packets share one while they are summed.
pub const PACKET_BYTES_UNIT: u64 = 1408;
/// Time on the slowest link that a packet takes, but for rounding: what an urgent one waits for a started one. Each packet
/// costs the machine some 0.1 ms of a core at both ends together, whatever its size (`docs/notes/023`).
pub const PACKET_TIME: Nanos = Nanos::new(230_000);
/// Links up to this rate, 1 Gbit/s, have packets of [`PACKET_TIME`]. On faster links the cores become the limit, so a packet
/// takes longer, in proportion to the rate.
pub const PACKET_RATE: BytesPerSecond = BytesPerSecond::new(125_000_000);
/// Packets that a window has room for. With fewer, what one server is slow to take holds up all others.
pub const WINDOW_PACKETS: u64 = 4;
/// And at least, where links are so quick that [`WINDOW_BOUND`] has no room for as many.
pub const WINDOW_PACKETS_MIN: u64 = 3;
/// What a window holds beyond the round trip: a thread has to wake and write before the link runs dry.
pub const WINDOW_SLACK: Nanos = Nanos::new(200_000);
/// As far as a fourth packet and lateness make a window grow: a little less than three packets at 1 Gbit/s. More has a price: what is urgent
/// waits behind all of it (`docs/notes/022`), and what waits where a link is shaped costs the machine time, so that whoever
/// has no core to spare is later still.
pub const WINDOW_BOUND: u64 = 86 << 10;

/// The packet size for links of which the slowest moves `slowest`: `slowest x 0.23 ms x max(1, slowest / 1 Gbit/s)`, rounded up
/// to a multiple of 1408 bytes, 1408 to 523,776. A rate of 0 gives the smallest.
///
/// Mercury (Duan et al., TPDS 2023, section 5) found 16 to 256 KB alike, 8 KB and less slower, and 1 MB and more slower, on links
/// of 10 Gbit/s and more, where this gives 523,776 bytes. Up to 1 Gbit/s a packet's time counts: n ranks send the same packet to the
/// same server at once, so it takes n of them to cross that server's link, and as many on the way back
/// (`docs/notes/012`), and what of a tensor some ranks have sent and others have not is of no use (`docs/notes/015`).
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

/// How many unsent and unacknowledged bytes an interface may have before another packet starts:
/// `max(4 packets, rate x (min_rtt + 0.2 ms)) + rate x late`, but at most 86 KiB, unless
/// `max(3 packets, rate x (min_rtt + 0.2 ms))` is more: then that. Rounded down; saturates.
///
/// `rate`: what the interface delivers, summed over its connections; `min_rtt`: the smallest round trip
/// seen, so without queues. A started packet is finished, hence up to the window and one packet may be
/// under way. `late`: by how much longer the window has to last, because acknowledgments or whoever sends come late. Where
/// the rate was measured under a window that is too small, this one is larger than what was used, so the window grows by
/// itself up to the product of bandwidth and delay.
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
    fn where_links_are_quick_a_window_is_three_packets() {
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
    fn what_comes_late_needs_as_much_more_under_way_within_a_bound() {
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
