// SPDX-License-Identifier: Apache-2.0
//! What the origin yields to so many readers, from a few measured points.

use foresee_units::BytesPerSecond;

use crate::ModelError;

/// Aggregate random-read rate of the origin, `t(g)`, against `g` concurrent readers.
///
/// Linear between neighbouring points, the nearest point's rate outside. That `t(g) / g` falls is not
/// assumed: some origins give two readers more than twice as much as one.
/// Source: nopfs-clairvoyant-prefetching, section 4 (there called linear regression), and Boehringer's thesis
/// (ETH 2020), equation 4.1, which the authors' code agrees with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginCurve {
    /// By readers, ascending; never empty.
    points: Vec<(u32, BytesPerSecond)>,
}

impl OriginCurve {
    /// A curve through measured `(readers, rate)` points, in any order.
    ///
    /// # Errors
    /// [`ModelError::Empty`] without a point, [`ModelError::ZeroRate`] for a rate of 0,
    /// [`ModelError::InvalidInput`] for 0 readers or a number of readers given twice.
    pub fn new(points: impl IntoIterator<Item = (u32, BytesPerSecond)>) -> Result<Self, ModelError> {
        let mut points: Vec<_> = points.into_iter().collect();
        points.sort_unstable();
        if points.is_empty() {
            return Err(ModelError::Empty { field: "origin curve" });
        }
        for (readers, rate) in &points {
            if *readers == 0 {
                return Err(invalid_readers(0.0, "1 or more"));
            }
            if rate.get() == 0 {
                return Err(ModelError::ZeroRate { field: "origin rate" });
            }
        }
        if let Some(pair) = points.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(invalid_readers(f64::from(pair[0].0), "given once"));
        }
        Ok(Self { points })
    }

    /// `t(readers)`: what all of them get together. `readers` may be fractional, as an average is.
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
        if !readers.is_finite() || readers < 1.0 {
            return Err(invalid_readers(readers, "finite and 1 or more"));
        }
        let above = self.points.partition_point(|(at, _)| f64::from(*at) < readers);
        let high = self.points.get(above);
        let low = above.checked_sub(1).and_then(|below| self.points.get(below));
        let rate = match (low, high) {
            (Some((g0, t0)), Some((g1, t1))) => {
                let (g0, g1) = (f64::from(*g0), f64::from(*g1));
                let (t0, t1) = (as_f64(t0.get()), as_f64(t1.get()));
                as_u64(t0 + (t1 - t0) * (readers - g0) / (g1 - g0))
            }
            (Some((_, rate)), None) | (None, Some((_, rate))) => rate.get(),
            (None, None) => 0, // `new` admits no empty curve
        };
        Ok(BytesPerSecond::new(rate))
    }
}

const fn invalid_readers(value: f64, rule: &'static str) -> ModelError {
    ModelError::InvalidInput { field: "readers of the origin", value, rule }
}

#[expect(clippy::cast_precision_loss, reason = "rates are measured to a few digits: 53 bits are plenty")]
const fn as_f64(value: u64) -> f64 {
    value as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between two positive rates, and `as` saturates"
)]
const fn as_u64(value: f64) -> u64 {
    value as u64
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
    fn one_point_is_a_flat_curve_and_below_the_first_point_its_rate_holds() {
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
