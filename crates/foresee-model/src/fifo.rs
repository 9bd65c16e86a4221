// SPDX-License-Identifier: Apache-2.0
//! Miss rate of a cache without foresight: first in, first out, in front of a bucket, under a global shuffle.
//!
//! It is separate from the simulator, which counts misses in a drawn order.

use crate::ModelError;
use crate::number::check;

/// Fraction of a node's accesses that miss its cache in the second epoch, for a large data set.
///
/// Each of `nodes` reads another random `1 / nodes` of the data set per epoch. Its cache holds `capacity` times
/// as many samples. It inserts missed samples and evicts the oldest; a hit changes nothing. The first epoch
/// misses everything.
/// Source: deli-cloud-storage, section IV (measured there: .667, .887, .953, .989 for three nodes); the limit is a
/// linear differential equation, `u' = 1 - (c - u) / n` until what is left of the first epoch is gone.
///
/// # Errors
/// [`ModelError::InvalidInput`] if `nodes` is 0, or `capacity` negative or NaN; infinity is a cache without limit.
/// # Examples
/// ```
/// # use foresee_model::fifo_miss_rate;
/// assert!((fifo_miss_rate(3, f64::INFINITY)? - 2.0 / 3.0).abs() < 1e-12);
/// assert!((fifo_miss_rate(3, 0.75)? - (1.75 - 3.0 * (4.0_f64 / 3.0).ln())).abs() < 1e-12); // 0.8870
/// # Ok::<(), foresee_model::ModelError>(())
/// ```
pub fn fifo_miss_rate(nodes: u32, capacity: f64) -> Result<f64, ModelError> {
    check(nodes > 0, "nodes", 0.0, "1 or more")?;
    check(capacity >= 0.0, "capacity of the cache", capacity, "0 or more, in partitions")?;
    let n = f64::from(nodes);
    let unlimited = 1.0 - 1.0 / n;
    if capacity <= 1.0 {
        return Ok(misses(n, capacity, 1.0));
    }
    if capacity >= 2.0 || nodes == 1 {
        return Ok(unlimited);
    }
    // Nothing is evicted until the second epoch has filled the space that the first left free.
    let undisturbed = (capacity - 1.0) * n / (n - 1.0);
    if undisturbed >= 1.0 { Ok(unlimited) } else { Ok(capacity - 1.0 + misses(n, 1.0, 1.0 - undisturbed)) }
}

/// Misses of the first `until` (in epochs) of the second epoch, if the cache holds `c` partitions of the first.
fn misses(n: f64, c: f64, until: f64) -> f64 {
    // A single node with a cache for everything has no misses, and replaces nothing.
    let gone = if c < n { n * (n / (n - c)).ln() } else { f64::INFINITY };
    if until <= gone { (n - c) * ((until / n).exp() - 1.0) } else { c + until - gone }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(nodes: u32, capacity: f64, expected: f64) {
        let rate = fifo_miss_rate(nodes, capacity).unwrap();
        assert!((rate - expected).abs() < 5e-5, "{rate} instead of {expected} for {nodes} nodes, {capacity}");
    }

    #[test]
    fn the_limits_match_measured_miss_rates() {
        for (capacity, expected) in
            [(f64::INFINITY, 2.0 / 3.0), (0.75, 0.8870), (0.5, 0.9530), (0.25, 0.9890)]
        {
            near(3, capacity, expected);
        }
        near(3, 0.0, 1.0);
        near(1, f64::INFINITY, 0.0);
        near(1, 1.0, 0.0);
    }

    #[test]
    fn more_capacity_never_misses_more() {
        for nodes in [1, 2, 3, 8] {
            let rates: Vec<f64> =
                (0..=300).map(|percent| fifo_miss_rate(nodes, f64::from(percent) / 100.0).unwrap()).collect();
            assert!(rates.windows(2).all(|pair| pair[1] <= pair[0] + 1e-12), "{nodes}: {rates:?}");
        }
    }

    #[test]
    fn an_invalid_capacity_is_refused() {
        assert!(fifo_miss_rate(0, 1.0).is_err());
        assert!(fifo_miss_rate(3, -0.1).is_err() && fifo_miss_rate(3, f64::NAN).is_err());
    }
}
