// SPDX-License-Identifier: Apache-2.0
//! Durations of attempts, by size class.
//!
//! Quantiles must be cheap near a deadline, so each class has a histogram with four buckets per octave and cached
//! quantiles. A bucket is reported by its upper edge, so a quantile is never too low, and at most a fifth too
//! high. A class with fewer than [`ENOUGH`] attempts has no quantiles.

use foresee_units::{Bytes, Nanos};

use crate::config::LatencyRow;

/// Minimum number of attempts for a 95th percentile.
pub(crate) const ENOUGH: u32 = 20;
/// At this number all counts are halved, so that old attempts decay.
const FADE: u32 = 2048;
/// Attempts between two updates of the quantiles.
const RENEW: u32 = 16;
/// Size classes: powers of four up to 2^64.
const CLASSES: usize = 32;
/// Latencies from 2^10 ns, a microsecond, to 2^42 ns, over an hour, in quarter octaves.
const BUCKETS: usize = 128;
const FIRST_OCTAVE: u32 = 10;

/// Attempt durations of one source.
#[derive(Clone, Debug)]
pub(crate) struct Latency {
    classes: Vec<Option<Box<Histogram>>>,
}

impl Latency {
    pub(crate) fn new() -> Self {
        Self { classes: vec![None; CLASSES] }
    }

    /// Add one successful attempt.
    pub(crate) fn record(&mut self, len: u64, took: Nanos) {
        self.classes[class_of(len)].get_or_insert_default().record(took);
    }

    /// The 95th percentile for attempts of this length; `None` with too few attempts.
    pub(crate) fn p95(&self, len: u64) -> Option<Nanos> {
        let histogram = self.classes[class_of(len)].as_ref()?;
        (histogram.total >= ENOUGH).then_some(histogram.p95)
    }

    /// The time after which an attempt of this length may be hedged: the 95th percentile, but at least twice the
    /// median. At a source without a slow tail the two quantiles are close, and a slightly longer queue would
    /// otherwise make every attempt late.
    pub(crate) fn late_after(&self, len: u64) -> Option<Nanos> {
        let histogram = self.classes[class_of(len)].as_ref()?;
        (histogram.total >= ENOUGH).then(|| histogram.p95.max(histogram.p50.saturating_add(histogram.p50)))
    }

    /// All classes with attempts.
    pub(crate) fn rows(&self) -> Vec<LatencyRow> {
        let mut rows = Vec::new();
        for (class, histogram) in (0u32..).zip(&self.classes) {
            if let Some(histogram) = histogram {
                rows.push(LatencyRow {
                    from: Bytes::new(if class == 0 { 0 } else { 1 << (2 * class) }),
                    count: u64::from(histogram.total),
                    p50: histogram.quantile(50),
                    p95: histogram.quantile(95),
                    p99: histogram.quantile(99),
                });
            }
        }
        rows
    }
}

fn class_of(len: u64) -> usize {
    (len.max(1).ilog2() / 2) as usize
}

#[derive(Clone, Debug)]
struct Histogram {
    counts: [u32; BUCKETS],
    total: u32,
    unread: u32,
    p50: Nanos,
    p95: Nanos,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], total: 0, unread: 0, p50: Nanos::ZERO, p95: Nanos::ZERO }
    }
}

impl Histogram {
    fn record(&mut self, took: Nanos) {
        if self.total >= FADE {
            for count in &mut self.counts {
                *count /= 2;
            }
            self.total = self.counts.iter().sum();
        }
        self.counts[bucket_of(took)] += 1;
        self.total += 1;
        self.unread += 1;
        if self.unread >= RENEW || self.total <= 2 * ENOUGH {
            self.unread = 0;
            self.p50 = self.quantile(50);
            self.p95 = self.quantile(95);
        }
    }

    /// Upper edge of the bucket with the `percent`-th percentile; zero without attempts.
    fn quantile(&self, percent: u64) -> Nanos {
        let wanted = (u64::from(self.total) * percent).div_ceil(100);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += u64::from(*count);
            if *count > 0 && seen >= wanted {
                return upper_edge(bucket);
            }
        }
        Nanos::ZERO
    }
}

/// The octave and the two bits below its leading one.
fn bucket_of(took: Nanos) -> usize {
    let nanos = took.get().max(1 << FIRST_OCTAVE);
    let octave = nanos.ilog2();
    let quarter = (nanos >> (octave - 2)) & 3;
    let bucket = u64::from(octave - FIRST_OCTAVE) * 4 + quarter;
    usize::try_from(bucket).map_or(BUCKETS - 1, |bucket| bucket.min(BUCKETS - 1))
}

const fn upper_edge(bucket: usize) -> Nanos {
    let octave = (bucket / 4) as u64 + FIRST_OCTAVE as u64;
    let quarter = (bucket % 4) as u64;
    Nanos::new((4 + quarter + 1) << (octave - 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_never_below_the_truth_and_at_most_a_quarter_above() {
        let mut latency = Latency::new();
        for millis in 1..=1000u64 {
            latency.record(1000, Nanos::from_millis(millis));
        }
        let row = latency.rows()[0];
        for (figure, truth) in [(row.p50, 500), (row.p95, 950), (row.p99, 990)] {
            let truth = Nanos::from_millis(truth);
            assert!(figure >= truth && figure.get() <= truth.get() + truth.get() / 4, "{figure} for {truth}");
        }
        assert_eq!(latency.p95(1000), Some(row.p95), "the ready-made figure is the same bucket");
    }

    #[test]
    fn too_few_attempts_give_no_quantile_and_other_size_classes_do_not_count() {
        let mut latency = Latency::new();
        for _ in 0..ENOUGH - 1 {
            latency.record(4096, Nanos::from_millis(5));
        }
        assert_eq!(latency.p95(4096), None);
        latency.record(16383, Nanos::from_millis(5));
        assert!(latency.p95(4096).is_some());
        assert_eq!(latency.p95(16384), None);
    }

    #[test]
    fn old_attempts_decay() {
        let mut latency = Latency::new();
        for _ in 0..10_000 {
            latency.record(1, Nanos::from_secs(10));
        }
        for _ in 0..60_000 {
            latency.record(1, Nanos::from_millis(1));
        }
        assert!(latency.p95(1).unwrap() < Nanos::from_millis(2));
    }

    #[test]
    fn extreme_times_land_in_the_outermost_buckets() {
        assert_eq!(bucket_of(Nanos::ZERO), 0);
        assert_eq!(bucket_of(Nanos::MAX), BUCKETS - 1);
        assert_eq!(class_of(0), 0);
        assert_eq!(class_of(u64::MAX), CLASSES - 1);
    }
}
