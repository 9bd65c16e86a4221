// SPDX-License-Identifier: Apache-2.0
//! Rates of a source by the number of concurrent readers or threads, from measured points.
//!
//! One rule holds for all curves: linear between neighbouring points, the nearest point's rate outside. There are
//! two types, because an origin has ranks as readers and a tier has threads, and an error names them. A share
//! need not fall with the number of readers.

use foresee_units::BytesPerSecond;

use crate::ModelError;
use crate::number::{as_f64, as_u64};

/// Aggregate random-read rate of the origin, `t(g)`, against `g` concurrent readers.
///
/// Linear between neighbouring points, the nearest point's rate outside. `t(g) / g` need not fall: some origins
/// give two readers more than twice as much as one. Source: nopfs-clairvoyant-prefetching, section 4 (there
/// called linear regression), and Boehringer's thesis (ETH 2020), equation 4.1, which matches the authors' code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginCurve(Points);

impl OriginCurve {
    /// A curve through measured `(readers, rate)` points, in any order.
    ///
    /// # Errors
    /// [`ModelError::Empty`] without a point, [`ModelError::ZeroRate`] for a rate of 0,
    /// [`ModelError::InvalidInput`] for 0 readers or a number of readers given twice.
    pub fn new(points: impl IntoIterator<Item = (u32, BytesPerSecond)>) -> Result<Self, ModelError> {
        Points::new(points, &ORIGIN).map(Self)
    }

    /// `t(readers)`: the rate of all readers together. `readers` may be fractional, as an average is.
    ///
    /// Rounds down to a byte per second, so a predicted time errs on the long side.
    ///
    /// # Errors
    /// [`ModelError::InvalidInput`] unless `readers` is finite and at least 1.
    /// # Examples
    /// ```
    /// # use foresee_model::OriginCurve;
    /// # use foresee_units::BytesPerSecond;
    /// let rates = [(1, 100), (4, 340), (8, 500)].map(|(g, rate)| (g, BytesPerSecond::new(rate)));
    /// let curve = OriginCurve::new(rates)?;
    /// assert_eq!(curve.rate(2.0)?, BytesPerSecond::new(180));
    /// assert_eq!(curve.rate(16.0)?, BytesPerSecond::new(500)); // nothing is known beyond 8
    /// # Ok::<(), foresee_model::ModelError>(())
    /// ```
    pub fn rate(&self, readers: f64) -> Result<BytesPerSecond, ModelError> {
        Ok(BytesPerSecond::new(as_u64(self.0.at(readers, &ORIGIN)?)))
    }

    /// The share of each reader, `t(readers) / readers`, in bytes per second and not rounded.
    ///
    /// # Errors
    /// As [`rate`](Self::rate).
    pub fn share(&self, readers: f64) -> Result<f64, ModelError> {
        Ok(self.0.at(readers, &ORIGIN)? / readers)
    }
}

/// Aggregate rate of a tier, `r(p)` or `w(p)`, against `p` threads that read or write it.
///
/// Linear between neighbouring points, the nearest point's rate outside, as [`OriginCurve`].
/// Source: nopfs-clairvoyant-prefetching, section 4, `r_j(p)` and `w_j(p)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadCurve(Points);

impl ThreadCurve {
    /// A curve through measured `(threads, rate)` points, in any order.
    ///
    /// # Errors
    /// As [`OriginCurve::new`].
    pub fn new(points: impl IntoIterator<Item = (u32, BytesPerSecond)>) -> Result<Self, ModelError> {
        Points::new(points, &TIER).map(Self)
    }

    /// The rate of `threads` together, in bytes per second and not rounded.
    ///
    /// # Errors
    /// [`ModelError::InvalidInput`] for 0 threads.
    /// # Examples
    /// ```
    /// # use foresee_model::ThreadCurve;
    /// # use foresee_units::BytesPerSecond;
    /// let disk = ThreadCurve::new([(1, 500), (4, 2_000)].map(|(p, rate)| (p, BytesPerSecond::new(rate))))?;
    /// assert_eq!(disk.rate(2)?, 1_000.0);
    /// # Ok::<(), foresee_model::ModelError>(())
    /// ```
    pub fn rate(&self, threads: u32) -> Result<f64, ModelError> {
        self.0.at(f64::from(threads), &TIER)
    }
}

/// The names that an error uses.
struct Subject {
    curve: &'static str,
    rate: &'static str,
    count: &'static str,
}

const ORIGIN: Subject =
    Subject { curve: "origin curve", rate: "origin rate", count: "readers of the origin" };
const TIER: Subject = Subject { curve: "tier's curve", rate: "tier rate", count: "threads at the tier" };

/// Points by count, ascending; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Points(Vec<(u32, BytesPerSecond)>);

impl Points {
    fn new(
        points: impl IntoIterator<Item = (u32, BytesPerSecond)>,
        subject: &Subject,
    ) -> Result<Self, ModelError> {
        let mut points: Vec<_> = points.into_iter().collect();
        points.sort_unstable();
        if points.is_empty() {
            return Err(ModelError::Empty { field: subject.curve });
        }
        for (count, rate) in &points {
            if *count == 0 {
                return Err(invalid(subject, 0.0, "1 or more"));
            }
            if rate.get() == 0 {
                return Err(ModelError::ZeroRate { field: subject.rate });
            }
        }
        if let Some(pair) = points.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(invalid(subject, f64::from(pair[0].0), "given once"));
        }
        Ok(Self(points))
    }

    fn at(&self, count: f64, subject: &Subject) -> Result<f64, ModelError> {
        if !count.is_finite() || count < 1.0 {
            return Err(invalid(subject, count, "finite and 1 or more"));
        }
        let above = self.0.partition_point(|(at, _)| f64::from(*at) < count);
        let high = self.0.get(above);
        let low = above.checked_sub(1).and_then(|below| self.0.get(below));
        Ok(match (low, high) {
            (Some((g0, t0)), Some((g1, t1))) => {
                let (g0, g1) = (f64::from(*g0), f64::from(*g1));
                let (t0, t1) = (as_f64(t0.get()), as_f64(t1.get()));
                t0 + (t1 - t0) * (count - g0) / (g1 - g0)
            }
            (Some((_, rate)), None) | (None, Some((_, rate))) => as_f64(rate.get()),
            (None, None) => 0.0, // `new` admits no empty curve
        })
    }
}

const fn invalid(subject: &Subject, value: f64, rule: &'static str) -> ModelError {
    ModelError::InvalidInput { field: subject.count, value, rule }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(u32, u64)]) -> Result<OriginCurve, ModelError> {
        OriginCurve::new(points.iter().map(|(readers, rate)| (*readers, BytesPerSecond::new(*rate))))
    }

    #[test]
    fn the_curve_is_linear_between_points_and_flat_outside() {
        let curve = curve(&[(8, 500), (1, 100), (4, 340)]).unwrap();
        for (readers, rate) in
            [(1.0, 100), (2.0, 180), (3.0, 260), (4.0, 340), (6.0, 420), (8.0, 500), (16.0, 500)]
        {
            assert_eq!(curve.rate(readers).unwrap().get(), rate, "t({readers})");
        }
        assert_eq!(curve.rate(2.5).unwrap().get(), 220);
    }

    #[test]
    fn one_point_is_a_flat_curve_and_the_first_rate_holds_below_the_first_point() {
        let curve = curve(&[(4, 340)]).unwrap();
        assert_eq!(curve.rate(1.0).unwrap(), curve.rate(400.0).unwrap());
    }

    #[test]
    fn bad_points_and_readers_are_refused_by_name() {
        assert_eq!(curve(&[]), Err(ModelError::Empty { field: "origin curve" }));
        assert_eq!(curve(&[(1, 0)]), Err(ModelError::ZeroRate { field: "origin rate" }));
        assert!(curve(&[(0, 5)]).is_err());
        assert!(curve(&[(2, 5), (2, 6)]).is_err());
        let curve = curve(&[(1, 5)]).unwrap();
        for readers in [0.5, -1.0, f64::NAN, f64::INFINITY] {
            assert!(curve.rate(readers).is_err(), "{readers}");
        }
    }
}
