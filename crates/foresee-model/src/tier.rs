// SPDX-License-Identifier: Apache-2.0
//! Time to fetch one sample from a tier, by rates that were measured in advance.
//!
//! It is for plans and simulations before a run; `rate` learns during the run. The caller adds latency once,
//! because it depends on the protocol.

use std::num::NonZeroU32;

use foresee_units::{Bytes, BytesPerSecond, Nanos};

use crate::number::{as_f64, as_u64};
use crate::{ModelError, OriginCurve};

/// Time to fetch one sample from this rank's own tier: `size / (tier / readers)`.
///
/// `tier` is the random-read rate of the whole tier with `readers` threads, split evenly over them. Request
/// latency is excluded: add it once. Rounds up to a nanosecond, so a predicted stall is never too short;
/// saturates at `Nanos::MAX`.
/// Source: nopfs-clairvoyant-prefetching, section 4, case (1), `s_k / (r_j(p_j) / p_j)`.
///
/// # Errors
/// [`ModelError::ZeroRate`] if `tier` is 0.
/// # Examples
/// ```
/// # use std::num::NonZeroU32;
/// # use foresee_model::tier_fetch_time;
/// # use foresee_units::{Bytes, BytesPerSecond, Nanos};
/// # let two = NonZeroU32::new(2).unwrap();
/// let time = tier_fetch_time(Bytes::new(1_000_000), BytesPerSecond::new(100_000_000), two)?;
/// assert_eq!(time, Nanos::from_millis(20));
/// # Ok::<(), foresee_model::ModelError>(())
/// ```
pub fn tier_fetch_time(size: Bytes, tier: BytesPerSecond, readers: NonZeroU32) -> Result<Nanos, ModelError> {
    share_time(size, tier, readers).ok_or(ModelError::ZeroRate { field: "tier" })
}

/// Time to fetch one sample from a peer's tier: `size / min(link, tier / readers)`.
///
/// `link` is this rank's unshared rate to the peer; `tier` is the random-read rate of the peer's whole tier,
/// split evenly over its `readers` threads. Request latency is excluded: add it once. Rounds up to a nanosecond,
/// so a predicted stall is never too short; saturates at `Nanos::MAX`.
/// Source: nopfs-clairvoyant-prefetching, section 4, case (2), `s_k / min(b_c, r_j(p_j) / p_j)`.
///
/// # Errors
/// [`ModelError::ZeroRate`] if `link` or `tier` is 0: a rate that was not measured is `None`, never 0.
/// # Examples
/// ```
/// # use std::num::NonZeroU32;
/// # use foresee_model::peer_fetch_time;
/// # use foresee_units::{Bytes, BytesPerSecond, Nanos};
/// # let four = NonZeroU32::new(4).unwrap();
/// # let gib_per_s = |gib: u64| BytesPerSecond::new(gib << 30);
/// let time = peer_fetch_time(Bytes::new(1 << 20), gib_per_s(1), gib_per_s(2), four)?;
/// assert_eq!(time, Nanos::new(1_953_125)); // four readers: the tier, not the link, is the limit
/// # Ok::<(), foresee_model::ModelError>(())
/// ```
pub fn peer_fetch_time(
    size: Bytes,
    link: BytesPerSecond,
    tier: BytesPerSecond,
    readers: NonZeroU32,
) -> Result<Nanos, ModelError> {
    let over_link = link.time_for(size).ok_or(ModelError::ZeroRate { field: "link" })?;
    Ok(over_link.max(tier_fetch_time(size, tier, readers)?))
}

/// Time to fetch one sample from the origin: `size / min(link, t(g) / g)`.
///
/// `link` is this rank's rate to the origin, `None` without a limit; `readers` is `g`, the number of ranks that
/// read the origin, which may be fractional as an average. Request latency is excluded: add it once. Rounds up to
/// a nanosecond; saturates at `Nanos::MAX`.
/// Source: nopfs-clairvoyant-prefetching, section 4, case (0), `s_k / (t(g) / g)`; the link to the origin is
/// Boehringer's (ETH 2020).
///
/// # Errors
/// [`ModelError::ZeroRate`] if `link` is 0, [`ModelError::InvalidInput`] unless `readers` is finite and at
/// least 1.
/// # Examples
/// ```
/// # use foresee_model::{OriginCurve, origin_fetch_time};
/// # use foresee_units::{Bytes, BytesPerSecond, Nanos};
/// let curve = OriginCurve::new([(1, BytesPerSecond::new(100)), (4, BytesPerSecond::new(340))])?;
/// let time = origin_fetch_time(Bytes::new(90), None, &curve, 2.0)?;
/// assert_eq!(time, Nanos::from_secs(1)); // each of two readers gets half of 180 B/s
/// # Ok::<(), foresee_model::ModelError>(())
/// ```
pub fn origin_fetch_time(
    size: Bytes,
    link: Option<BytesPerSecond>,
    curve: &OriginCurve,
    readers: f64,
) -> Result<Nanos, ModelError> {
    let all = curve.rate(readers)?;
    // A share of 1/g takes g times as long as the whole rate.
    let alone = all.time_for(size).ok_or(ModelError::ZeroRate { field: "origin rate" })?;
    let shared = Nanos::new(as_u64((as_f64(alone.get()) * readers).ceil()));
    match link {
        None => Ok(shared),
        Some(link) => {
            Ok(shared.max(link.time_for(size).ok_or(ModelError::ZeroRate { field: "link to the origin" })?))
        }
    }
}

/// `size * readers / rate`, rounded up once.
fn share_time(size: Bytes, rate: BytesPerSecond, readers: NonZeroU32) -> Option<Nanos> {
    let scaled = u128::from(size.get()) * u128::from(readers.get()) * 1_000_000_000;
    let nanos = scaled.checked_add(u128::from(rate.get().checked_sub(1)?))? / u128::from(rate.get());
    Some(Nanos::new(u64::try_from(nanos).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: NonZeroU32 = NonZeroU32::MIN;

    #[test]
    fn a_rate_of_zero_is_refused_and_named() {
        let (size, some, none) = (Bytes::new(5), BytesPerSecond::new(5), BytesPerSecond::new(0));
        let zero = |field| Err(ModelError::ZeroRate { field });
        assert_eq!(tier_fetch_time(size, none, ONE), zero("tier"));
        assert_eq!(peer_fetch_time(size, none, some, ONE), zero("link"));
        assert_eq!(peer_fetch_time(size, some, none, ONE), zero("tier"));
    }

    #[test]
    fn times_round_up_once_and_saturate() {
        let three = NonZeroU32::new(3).unwrap();
        let time = tier_fetch_time(Bytes::new(1), BytesPerSecond::new(7), three).unwrap();
        assert_eq!(time, Nanos::new(428_571_429), "3/7 s, rounded once, not thrice");
        assert_eq!(tier_fetch_time(Bytes::MAX, BytesPerSecond::new(1), three), Ok(Nanos::MAX));
        assert_eq!(tier_fetch_time(Bytes::ZERO, BytesPerSecond::new(1), three), Ok(Nanos::ZERO));
    }

    #[test]
    fn the_slower_of_link_and_share_decides() {
        let curve = OriginCurve::new([(1, BytesPerSecond::new(1000))]).unwrap();
        let time = |link| origin_fetch_time(Bytes::new(1000), link, &curve, 4.0).unwrap();
        assert_eq!(time(None), Nanos::from_secs(4));
        assert_eq!(time(Some(BytesPerSecond::new(100))), Nanos::from_secs(10));
        assert_eq!(time(Some(BytesPerSecond::new(900))), Nanos::from_secs(4));
    }
}
