// SPDX-License-Identifier: Apache-2.0
//! Rate of a link for gradients, and the delay by packets of finite size.
//!
//! It is separate from `servers`, which models nodes that share their links.

use foresee_units::Bytes;

use crate::ModelError;
use crate::number::{as_f64, check};

/// One direction of a rank's link; the other has the same bandwidth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    bandwidth: f64,
    efficiency: f64,
}

impl Link {
    /// `bandwidth` in bytes per second of one direction; `efficiency` is the fraction of it for gradients.
    ///
    /// `efficiency` is a product of factors: [`Framing::goodput`],
    /// [`ServerMix::share_of_link`](super::ServerMix::share_of_link), or 1.
    ///
    /// # Errors
    /// [`ModelError::InvalidInput`] unless `bandwidth` is finite and above 0 and `efficiency` in (0, 1].
    pub fn new(bandwidth: f64, efficiency: f64) -> Result<Self, ModelError> {
        let is_valid = bandwidth.is_finite() && bandwidth > 0.0;
        check(is_valid, "bandwidth", bandwidth, "finite and above 0 bytes per second")?;
        check_share("efficiency", efficiency)?;
        Ok(Self { bandwidth, efficiency })
    }

    /// Bytes per second of one direction, as given.
    pub const fn bandwidth(self) -> f64 {
        self.bandwidth
    }

    /// Bytes of gradients per second and direction.
    pub fn rate(self) -> f64 {
        self.bandwidth * self.efficiency
    }
}

/// Overhead of gradients on the wire.
///
/// [`default`](Self::default) is TCP over Ethernet: a header of 32 bytes per packet of ours, 1448 bytes of payload
/// in an Ethernet frame of 1514 (with timestamps; without preamble and checksum, as traffic shapers count).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// Bytes before each packet of gradients.
    pub header: u32,
    /// Payload bytes of a TCP segment.
    pub payload: u32,
    /// Bytes of that segment on the wire; at least `payload`.
    pub frame: u32,
}

impl Default for Framing {
    fn default() -> Self {
        Self { header: 32, payload: 1448, frame: 1514 }
    }
}

impl Framing {
    /// Fraction of the link for gradients in packets of `packet` bytes:
    /// `packet / (packet + header) * payload / frame`.
    ///
    /// Full segments and full packets: a tensor's last packet may be shorter.
    ///
    /// # Errors
    /// [`ModelError::InvalidInput`] for an empty packet, one above 2^52 bytes, a payload of 0 or a frame smaller
    /// than its payload.
    /// # Examples
    /// ```
    /// # use foresee_model::Framing;
    /// # use foresee_units::Bytes;
    /// let goodput = Framing::default().goodput(Bytes::new(30_000))?;
    /// assert!((goodput - 0.9554).abs() < 1e-4);
    /// # Ok::<(), foresee_model::ModelError>(())
    /// ```
    pub fn goodput(&self, packet: Bytes) -> Result<f64, ModelError> {
        let packet = checked_packet("packet", packet, 1)?;
        let (payload, frame) = (f64::from(self.payload), f64::from(self.frame));
        check(self.payload > 0, "payload of a segment", payload, "1 or more bytes")?;
        check(frame >= payload, "frame of a segment", frame, "no smaller than its payload")?;
        Ok(packet / (packet + f64::from(self.header)) * (payload / frame))
    }
}

/// Upper bound of the delay of a step under `Mercury` over its closed form, in seconds: `(window + 2 packets) /
/// rate`.
///
/// An urgent packet waits for the bytes in the socket: at most `window` and the packet that was begun. A packet
/// is pulled only when it was pushed completely. Other delays (round trips, skew, the servers' time) are
/// excluded.
///
/// # Errors
/// [`ModelError::InvalidInput`] for an empty packet, and for sizes above 2^52 bytes.
/// # Examples
/// ```
/// # use foresee_model::{Link, packet_delay};
/// # use foresee_units::Bytes;
/// let gigabit = Link::new(125e6, 1.0)?;
/// let delay = packet_delay(Bytes::new(30_000), Bytes::new(30_000), gigabit)?;
/// assert!((delay - 0.72e-3).abs() < 1e-9);
/// # Ok::<(), foresee_model::ModelError>(())
/// ```
pub fn packet_delay(window: Bytes, packet: Bytes, link: Link) -> Result<f64, ModelError> {
    let window = checked_packet("window", window, 0)?;
    let packet = checked_packet("packet", packet, 1)?;
    Ok((window + 2.0 * packet) / link.rate())
}

pub(super) fn check_share(field: &'static str, value: f64) -> Result<f64, ModelError> {
    check(value > 0.0 && value <= 1.0, field, value, "above 0 and at most 1")
}

fn checked_packet(field: &'static str, size: Bytes, least: u64) -> Result<f64, ModelError> {
    let rule = if least == 0 { "2^52 bytes at most" } else { "1 to 2^52 bytes" };
    check((least..=1 << 52).contains(&size.get()), field, as_f64(size.get()), rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_has_a_rate_above_0_and_no_more_than_its_bandwidth() {
        for bandwidth in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Link::new(bandwidth, 1.0).is_err(), "{bandwidth}");
        }
        for efficiency in [0.0, -0.1, 1.1, f64::NAN] {
            assert!(Link::new(1.0, efficiency).is_err(), "{efficiency}");
        }
        let link = Link::new(8.0, 0.5).unwrap();
        assert_eq!((link.bandwidth(), link.rate()), (8.0, 4.0));
    }

    #[test]
    fn framing_costs_more_the_smaller_the_packet() {
        let framing = Framing::default();
        let exact = 30_000.0 / 30_032.0 * 1448.0 / 1514.0;
        assert!((framing.goodput(Bytes::new(30_000)).unwrap() - exact).abs() < 1e-15);
        assert!(framing.goodput(Bytes::new(1000)).unwrap() < exact);
        for packet in [Bytes::ZERO, Bytes::MAX] {
            assert!(framing.goodput(packet).is_err());
        }
        assert!(Framing { payload: 0, ..framing }.goodput(Bytes::new(9)).is_err());
        assert!(Framing { frame: 1447, ..framing }.goodput(Bytes::new(9)).is_err());
    }

    #[test]
    fn a_packet_has_bytes_and_a_window_may_have_none() {
        let link = Link::new(10.0, 0.5).unwrap();
        assert_eq!(packet_delay(Bytes::ZERO, Bytes::new(5), link), Ok(2.0));
        assert!(packet_delay(Bytes::ZERO, Bytes::ZERO, link).is_err());
        assert!(packet_delay(Bytes::MAX, Bytes::new(5), link).is_err());
    }
}
