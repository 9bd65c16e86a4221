// SPDX-License-Identifier: Apache-2.0
//! Bounds: the shortest epoch, and the minimum of reads from the origin.
//!
//! Reports show them next to measurements, so they are physical limits and not targets of this program. A
//! forecast adds the effects that a bound omits.

use foresee_units::{Bytes, BytesPerSecond, Nanos};

use crate::ModelError;
use crate::number::{as_f64, as_u64, check};

/// The demand of an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Compute time of all steps, without any wait.
    pub compute: Nanos,
    /// Bytes to be read from the origin.
    pub bytes: Bytes,
    /// Requests for those bytes.
    pub requests: u64,
}

/// The rates of the origin; `None` without a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OriginCaps {
    /// Bytes per second over all requests.
    pub rate: Option<BytesPerSecond>,
    /// Requests per second.
    pub requests_per_second: Option<u64>,
}

/// A lower bound of an epoch's time, and its cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The time.
    pub time: Nanos,
    /// The limit that determines it; of equal limits, the first in the order of [`Limit`].
    pub by: Limit,
}

/// A resource that limits an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limit {
    /// The accelerator.
    Compute,
    /// The origin's bytes per second.
    OriginBytes,
    /// The origin's requests per second.
    OriginRequests,
}

/// The shortest possible epoch: `max(compute, bytes / rate, requests / requests per second)`.
///
/// It assumes perfect overlap and no other limits. Each term rounds up to a nanosecond; saturates at
/// `Nanos::MAX`. For an epoch without I/O give an empty `OriginCaps`, for a later one [`later_demand`].
/// Source: the roofline argument (Williams et al., CACM 2009) applied to an input pipeline.
///
/// # Errors
/// [`ModelError::ZeroRate`] if a cap is 0.
/// # Examples
/// ```
/// # use foresee_model::{Bound, Demand, Limit, OriginCaps, epoch_bound};
/// # use foresee_units::{Bytes, BytesPerSecond, Nanos};
/// let demand = Demand { compute: Nanos::from_secs(7), bytes: Bytes::new(600_000_000), requests: 15_000 };
/// let disk = OriginCaps {
///     rate: Some(BytesPerSecond::new(60_000_000)),
///     requests_per_second: Some(1500),
/// };
/// let bound = epoch_bound(&demand, &disk)?;
/// assert_eq!(bound, Bound { time: Nanos::from_secs(10), by: Limit::OriginBytes });
/// let without_io = epoch_bound(&demand, &OriginCaps::default())?;
/// assert_eq!(without_io.time, demand.compute);
/// # Ok::<(), foresee_model::ModelError>(())
/// ```
pub fn epoch_bound(demand: &Demand, caps: &OriginCaps) -> Result<Bound, ModelError> {
    let mut bound = Bound { time: demand.compute, by: Limit::Compute };
    if let Some(rate) = caps.rate {
        let time = rate.time_for(demand.bytes).ok_or(ModelError::ZeroRate { field: "origin rate" })?;
        if time > bound.time {
            bound = Bound { time, by: Limit::OriginBytes };
        }
    }
    if let Some(rate) = caps.requests_per_second {
        let time = BytesPerSecond::new(rate)
            .time_for(Bytes::new(demand.requests))
            .ok_or(ModelError::ZeroRate { field: "origin requests per second" })?;
        if time > bound.time {
            bound = Bound { time, by: Limit::OriginRequests };
        }
    }
    Ok(bound)
}

/// The demand of an epoch of which a share `hits` of bytes and requests needs no origin.
///
/// Bytes and requests round up; compute stays.
///
/// # Errors
/// [`ModelError::InvalidInput`] unless `hits` is in 0 to 1.
/// # Examples
/// ```
/// # use foresee_model::{Demand, later_demand};
/// # use foresee_units::{Bytes, Nanos};
/// let first = Demand { compute: Nanos::from_secs(7), bytes: Bytes::new(1000), requests: 10 };
/// let later = later_demand(&first, 0.75)?;
/// assert_eq!(later, Demand { bytes: Bytes::new(250), requests: 3, ..first });
/// # Ok::<(), foresee_model::ModelError>(())
/// ```
pub fn later_demand(first: &Demand, hits: f64) -> Result<Demand, ModelError> {
    check((0.0..=1.0).contains(&hits), "share of hits", hits, "0 to 1")?;
    let misses = |amount: u64| as_u64((as_f64(amount) * (1.0 - hits)).ceil()).min(amount);
    Ok(Demand {
        compute: first.compute,
        bytes: Bytes::new(misses(first.bytes.get())),
        requests: misses(first.requests),
    })
}

/// The minimum of origin reads in `epochs` epochs, in samples: `n + (epochs - 1) * (n - c)`.
///
/// Every epoch reads each of `n` equal samples once, in any order; `cached` of them fit into all tiers together.
/// At the start of an epoch at most `c` samples are held, so at least `n - c` of its reads go to the origin under
/// any policy. Belady's rule with bypass attains it, and so does pinning any `c`.
/// `cached` above `n` counts as `n`; 0 epochs read nothing; saturates at `u64::MAX`.
/// Source: Belady, IBM Systems Journal 1966, for permutations.
///
/// # Examples
/// ```
/// # use foresee_model::least_origin_reads;
/// assert_eq!(least_origin_reads(1000, 250, 3), 1000 + 2 * 750);
/// assert_eq!(least_origin_reads(1000, 1000, 90), 1000);
/// ```
pub const fn least_origin_reads(samples: u64, cached: u64, epochs: u64) -> u64 {
    match epochs.checked_sub(1) {
        None => 0,
        Some(later) => samples.saturating_add(later.saturating_mul(samples.saturating_sub(cached))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEMAND: Demand =
        Demand { compute: Nanos::from_secs(1), bytes: Bytes::new(1_000_000), requests: 1000 };

    #[test]
    fn the_tightest_limit_is_reported() {
        let caps = |rate: u64, requests: u64| OriginCaps {
            rate: Some(BytesPerSecond::new(rate)),
            requests_per_second: Some(requests),
        };
        assert_eq!(epoch_bound(&DEMAND, &caps(2_000_000, 2000)).unwrap().by, Limit::Compute);
        assert_eq!(epoch_bound(&DEMAND, &caps(500_000, 2000)).unwrap().by, Limit::OriginBytes);
        let bound = epoch_bound(&DEMAND, &caps(500_000, 300)).unwrap();
        assert_eq!(bound, Bound { time: Nanos::new(3_333_333_334), by: Limit::OriginRequests });
        assert!(epoch_bound(&DEMAND, &caps(0, 1)).is_err());
        assert!(epoch_bound(&DEMAND, &caps(1, 0)).is_err());
    }

    #[test]
    fn hits_reduce_the_demand_by_exactly_their_share() {
        assert_eq!(later_demand(&DEMAND, 0.0).unwrap(), DEMAND);
        let none = later_demand(&DEMAND, 1.0).unwrap();
        assert_eq!((none.bytes, none.requests, none.compute), (Bytes::ZERO, 0, DEMAND.compute));
        for hits in [-0.1, 1.1, f64::NAN] {
            assert!(later_demand(&DEMAND, hits).is_err(), "{hits}");
        }
    }

    #[test]
    fn the_minimum_of_origin_reads_is_exact_at_the_limits_of_its_inputs() {
        assert_eq!(least_origin_reads(10, 0, 3), 30);
        assert_eq!(least_origin_reads(10, 99, 3), 10);
        assert_eq!(least_origin_reads(10, 5, 0), 0);
        assert_eq!(least_origin_reads(u64::MAX, 0, 2), u64::MAX);
    }
}
