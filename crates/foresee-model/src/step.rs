// SPDX-License-Identifier: Apache-2.0
//! Durations of the next steps.
//!
//! Deadlines use a low quantile of recent steps: a step that is shorter than predicted stalls, while a longer one
//! only takes some more memory. A mean is unsuitable, because one checkpoint of a minute would move every
//! deadline.

use std::collections::VecDeque;

use foresee_units::{Bytes, BytesPerSecond, Nanos};

use crate::ModelError;

/// Number of steps in the statistics.
const RECENT: usize = 64;

/// Time of a step whose loading overlaps its compute: `max(compute, batch / supply)`.
///
/// `supply` is the rate of all sources together during the step. Rounds up to a nanosecond. Source:
/// nopfs-clairvoyant-prefetching, section 4, the recursion `t_f = max(avail_f, t_(f-1) + s/c)` in its steady
/// state.
///
/// # Errors
/// [`ModelError::ZeroRate`] if `supply` is 0.
/// # Examples
/// ```
/// # use foresee_model::step_time;
/// # use foresee_units::{Bytes, BytesPerSecond, Nanos};
/// let time = step_time(Nanos::from_millis(50), Bytes::new(6_000_000), BytesPerSecond::new(60_000_000))?;
/// assert_eq!(time, Nanos::from_millis(100)); // the disk is the limit
/// # Ok::<(), foresee_model::ModelError>(())
/// ```
pub fn step_time(compute: Nanos, batch: Bytes, supply: BytesPerSecond) -> Result<Nanos, ModelError> {
    let loading = supply.time_for(batch).ok_or(ModelError::ZeroRate { field: "supply" })?;
    Ok(compute.max(loading))
}

/// Durations of the last 64 steps, and their 10th percentile.
///
/// A step's duration is the consumer's time between two batches, without its wait for the second.
///
/// # Examples
/// ```
/// # use foresee_model::StepTimes;
/// # use foresee_units::Nanos;
/// let mut steps = StepTimes::default();
/// assert_eq!(steps.low(), None); // not measured is not 0
/// steps.observe(Nanos::from_millis(100));
/// steps.observe(Nanos::from_secs(60)); // a checkpoint
/// assert_eq!(steps.low(), Some(Nanos::from_millis(100)));
/// ```
#[derive(Clone, Debug, Default)]
pub struct StepTimes {
    /// In order of the steps.
    recent: VecDeque<Nanos>,
    /// Sorted by duration.
    sorted: Vec<Nanos>,
}

impl StepTimes {
    /// Add the duration of a step.
    pub fn observe(&mut self, duration: Nanos) {
        if self.recent.len() == RECENT
            && let Some(oldest) = self.recent.pop_front()
            && let Ok(at) = self.sorted.binary_search(&oldest)
        {
            self.sorted.remove(at);
        }
        self.recent.push_back(duration);
        let at = self.sorted.partition_point(|before| *before < duration);
        self.sorted.insert(at, duration);
    }

    /// The 10th percentile of recent steps (nearest rank), for deadlines; `None` before any.
    pub fn low(&self) -> Option<Nanos> {
        self.sorted.get(self.sorted.len().div_ceil(10).saturating_sub(1)).copied()
    }

    /// The median of recent steps (nearest rank), for forecasts; `None` before any.
    pub fn usual(&self) -> Option<Nanos> {
        self.sorted.get(self.sorted.len().div_ceil(2).saturating_sub(1)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_last_64_steps() {
        let mut steps = StepTimes::default();
        for millis in 1..=1000 {
            steps.observe(Nanos::from_millis(millis));
        }
        assert_eq!(steps.low(), Some(Nanos::from_millis(936 + 7)));
        assert_eq!(steps.usual(), Some(Nanos::from_millis(936 + 32)));
        assert_eq!((steps.recent.len(), steps.sorted.len()), (RECENT, RECENT));
    }

    #[test]
    fn equal_steps_are_counted_separately() {
        let mut steps = StepTimes::default();
        for _ in 0..200 {
            steps.observe(Nanos::new(5));
        }
        assert_eq!((steps.low(), steps.usual()), (Some(Nanos::new(5)), Some(Nanos::new(5))));
        assert_eq!(steps.sorted.len(), RECENT);
    }
}
