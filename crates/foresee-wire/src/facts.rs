// SPDX-License-Identifier: Apache-2.0
//! The kernel's data about a connection, on which a short send window relies.
//!
//! It is separate from the socket because the decoder is a total function of bytes: newer kernels return longer
//! structs.

use foresee_units::{Bytes, BytesPerSecond, Nanos};

/// Bytes requested from the kernel, which fills as many as it knows.
#[cfg(any(test, target_os = "linux"))]
pub(crate) const TCP_INFO_BYTES: usize = 256;

/// The sender's fields of Linux's `TCP_INFO`.
///
/// A field that the kernel lacks is 0. [`TcpInfo::min_rtt`] and the rates are then `None`, as they are before the
/// first measurement. The delivery rate ignores the kernel's "application limited" flag: behind a short window a
/// socket is application limited most of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round trip.
    pub rtt: Nanos,
    /// The shortest round trip that the kernel saw in the last minutes.
    pub min_rtt: Option<Nanos>,
    /// Rate at which the last segments were acknowledged.
    pub delivery_rate: Option<BytesPerSecond>,
    /// Rate at which the kernel sends segments, if its congestion control paces.
    pub pacing_rate: Option<BytesPerSecond>,
    /// Congestion window, in segments.
    pub congestion_window: u32,
    /// Bytes of a segment.
    pub segment: Bytes,
    /// Segments in flight.
    pub unacked: u32,
    /// Unanswered window probes in a row while segments wait and none is in flight: the peer's buffer was full,
    /// or the system could not send. An answer resets it to 0. The last probe may count although it was answered:
    /// on one node the answer arrives before the kernel has counted the probe.
    pub probes: u32,
    /// Segments presumed lost.
    pub lost: u32,
    /// Segments sent again since the connection began.
    pub retransmits: u32,
    /// Bytes in the send buffer that were not sent yet.
    pub unsent: Bytes,
    /// Bytes acknowledged since the connection began.
    pub acked: Bytes,
    /// Time since the last acknowledgment.
    pub last_ack: Nanos,
    /// Time for which the peer's full buffer blocked the sender.
    pub peer_limited: Nanos,
    /// Time for which this side's send buffer blocked the sender.
    pub buffer_limited: Nanos,
}

impl TcpInfo {
    /// Decode the kernel's `struct tcp_info` of `linux/tcp.h`, of any length.
    #[cfg(any(test, target_os = "linux"))]
    pub(crate) fn parse(answer: &[u8]) -> Self {
        let u32_at = |at: usize| {
            answer.get(at..at + 4).map_or(0, |bytes| u32::from_ne_bytes(bytes.try_into().expect("4 bytes")))
        };
        let u64_at = |at: usize| {
            answer.get(at..at + 8).map_or(0, |bytes| u64::from_ne_bytes(bytes.try_into().expect("8 bytes")))
        };
        let micros = |at: usize| Nanos::new(u64::from(u32_at(at)) * 1_000);
        let rate = |at: usize| match u64_at(at) {
            // The kernel's values for "not measured" and "without limit".
            0 | u64::MAX => None,
            rate => Some(BytesPerSecond::new(rate)),
        };
        Self {
            rtt: micros(68),
            min_rtt: match u32_at(148) {
                0 | u32::MAX => None,
                _ => Some(micros(148)),
            },
            delivery_rate: rate(160),
            pacing_rate: rate(104),
            congestion_window: u32_at(80),
            segment: Bytes::new(u32_at(16).into()),
            unacked: u32_at(24),
            probes: answer.get(3).copied().unwrap_or(0).into(),
            lost: u32_at(32),
            retransmits: u32_at(100),
            unsent: Bytes::new(u32_at(144).into()),
            acked: Bytes::new(u64_at(120)),
            last_ack: Nanos::from_millis(u32_at(56).into()),
            peer_limited: Nanos::new(u64_at(176).saturating_mul(1_000)),
            buffer_limited: Nanos::new(u64_at(184).saturating_mul(1_000)),
        }
    }
}

/// Time after which `queued` bytes will have fallen to `window` at `rate`: a timer for sockets without
/// acknowledgment events. `None` if they have fallen already, or if the rate is 0.
pub fn drain_time(queued: Bytes, window: Bytes, rate: BytesPerSecond) -> Option<Nanos> {
    if queued <= window {
        return None;
    }
    rate.time_for(queued - window)
}

/// The size of a send buffer that holds twice the window, as a backstop for the window itself. `None` above the
/// system's limit `max`: such a request would *reduce* the buffer to that limit, and the throughput with it.
pub(crate) fn send_buffer(window: Bytes, max: Bytes) -> Option<Bytes> {
    let twice = window.saturating_add(window);
    (twice <= max).then_some(twice)
}

#[cfg(test)]
mod tests {
    use foresee_testkit::property;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_short_struct_of_an_old_kernel_leaves_the_rest_unknown() {
        let mut answer = [0_u8; TCP_INFO_BYTES];
        answer[3] = 2;
        answer[68..72].copy_from_slice(&250_u32.to_ne_bytes());
        answer[148..152].copy_from_slice(&200_u32.to_ne_bytes());
        answer[160..168].copy_from_slice(&125_000_000_u64.to_ne_bytes());
        let info = TcpInfo::parse(&answer);
        assert_eq!(info.rtt, Nanos::new(250_000));
        assert_eq!(info.min_rtt, Some(Nanos::new(200_000)));
        assert_eq!(info.delivery_rate, Some(BytesPerSecond::new(125_000_000)));
        assert_eq!((info.pacing_rate, info.probes), (None, 2));
        let old = TcpInfo::parse(&answer[..104]);
        assert_eq!((old.rtt, old.min_rtt, old.delivery_rate), (Nanos::new(250_000), None, None));
    }

    #[test]
    fn the_drain_timer_is_the_excess_over_the_rate() {
        let (kb, gigabit) = (|n: u64| Bytes::new(n * 1000), BytesPerSecond::new(125_000_000));
        assert_eq!(drain_time(kb(90), kb(60), gigabit), Some(Nanos::new(240_000)));
        assert_eq!(drain_time(kb(60), kb(60), gigabit), None);
        assert_eq!(drain_time(kb(90), kb(60), BytesPerSecond::new(0)), None);
    }

    #[test]
    fn a_send_buffer_is_twice_the_window_or_unchanged() {
        let kb = |n: u64| Bytes::new(n * 1000);
        assert_eq!(send_buffer(kb(60), kb(212)), Some(kb(120)));
        assert_eq!(send_buffer(kb(106), kb(212)), Some(kb(212)));
        assert_eq!(send_buffer(kb(107), kb(212)), None);
        assert_eq!(send_buffer(Bytes::MAX, Bytes::new(1 << 40)), None);
    }

    proptest! {
        #![proptest_config(property(256))]

        #[test]
        fn any_bytes_of_the_kernel_decode_without_a_panic(answer in proptest::collection::vec(any::<u8>(), 0..400)) {
            let info = TcpInfo::parse(&answer);
            prop_assert!(info.min_rtt.is_none_or(|rtt| !rtt.is_zero()));
        }
    }
}
