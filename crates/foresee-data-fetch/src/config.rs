// SPDX-License-Identifier: Apache-2.0
//! Settings of a fetch queue, with their reasons, and its metrics.
//!
//! Each setting is applied in the file that it is named after.

use foresee_units::{Bytes, BytesPerSecond, Nanos};

/// Settings for the reads from one source.
#[derive(Clone, Debug, PartialEq)]
pub struct DispatchConfig {
    /// Concurrent attempts.
    pub limit: LimitConfig,
    /// Retries.
    pub retry: RetryConfig,
    /// Joining of ranges of one object into one read; `None` reads each separately.
    pub coalesce: Option<CoalesceConfig>,
    /// Maximum of second attempts as a fraction of moved bytes, 0 to 1; 0 disables hedging. 0.05 by default.
    pub hedge_share: f64,
    /// Whether other ranks of the job use this source too: then requests with slack yield to them, and
    /// concurrency is not doubled at their expense. False by default.
    pub shared: bool,
}

impl DispatchConfig {
    /// Settings for a bucket or another source of unknown capacity: adaptive limit, retries, hedges; no
    /// coalescing.
    pub fn adaptive() -> Self {
        Self {
            limit: LimitConfig::default(),
            retry: RetryConfig::default(),
            coalesce: None,
            hedge_share: 0.05,
            shared: false,
        }
    }

    /// Settings for a source of known capacity, such as a pool of `in_flight` threads: no adaptation, no hedges.
    ///
    /// `in_flight` 0 means 1: a queue that never starts anything would block its consumer forever.
    pub fn fixed(in_flight: u32) -> Self {
        let in_flight = in_flight.max(1);
        let limit =
            LimitConfig { start: in_flight, min: in_flight, max: in_flight, ..LimitConfig::default() };
        Self { limit, hedge_share: 0.0, ..Self::adaptive() }
    }
}

/// Bounds of the concurrency limit. Values are sorted if necessary: `1 <= min <= start <= max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitConfig {
    /// Initial concurrency. 16 by default: enough to measure a round trip, and too few to cause throttling.
    pub start: u32,
    /// Minimum. 1 by default.
    pub min: u32,
    /// Maximum. 256 by default; if it equals `min`, the limit is fixed.
    pub max: u32,
    /// Cost of a request at the source besides its bytes, in bytes that could be sent instead. 32 KiB by default,
    /// near `rate / requests per second` of common disks and buckets. Goodput is compared in `bytes +
    /// request_cost`, so that a change in the mix of sizes does not look like a change of speed.
    pub request_cost: Bytes,
}

impl Default for LimitConfig {
    fn default() -> Self {
        Self { start: 16, min: 1, max: 256, request_cost: Bytes::new(32 << 10) }
    }
}

/// Retries of a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryConfig {
    /// Maximum number of tries, at least 1; 10 by default. Throttled tries do not count: `patience` bounds them.
    pub max_tries: u32,
    /// Time after the request at which the last try may begin; 180 s by default.
    pub patience: Nanos,
    /// The first pause, doubled after each further fault; 500 ms by default. Jitter removes up to half of a
    /// pause.
    pub first_pause: Nanos,
    /// The longest pause; 30 s by default.
    pub longest_pause: Nanos,
}

impl Default for RetryConfig {
    fn default() -> Self {
        Self {
            max_tries: 10,
            patience: Nanos::from_secs(180),
            first_pause: Nanos::from_millis(500),
            longest_pause: Nanos::from_secs(30),
        }
    }
}

/// Limits for joining neighbouring ranges of one object into one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoalesceConfig {
    /// Widest gap to read: time to first byte times the rate of one stream, both measured.
    pub gap: Bytes,
    /// Maximum size of a span.
    pub target: Bytes,
    /// Maximum number of tickets in a span, at least 1; the size of a group is the caller's choice.
    pub max_parts: usize,
}

/// Metrics of a queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DispatchStats {
    /// Attempts that were started and have not ended.
    pub in_flight: u32,
    /// Their current limit.
    pub limit: u32,
    /// Requests that wait for a start, including pauses before a retry.
    pub queued: usize,
    /// Requests put back after a failed attempt.
    pub retries: u64,
    /// Second attempts, concurrent with the first or in its place when the limit is reached.
    pub hedges: u64,
    /// Second attempts that answered first.
    pub hedge_wins: u64,
    /// Bytes requested by second attempts.
    pub hedged_bytes: Bytes,
    /// Throttled attempts.
    pub throttles: u64,
    /// Bytes moved, including those of failed and lost attempts.
    pub moved: Bytes,
    /// Bytes of gaps read to join ranges.
    pub over_read: Bytes,
    /// Recent delivery rate, including idle time; `None` before the first quarter of a second.
    pub goodput: Option<BytesPerSecond>,
    /// Duration of successful attempts: one row per size class with attempts, smallest first.
    pub latency: Vec<LatencyRow>,
}

/// Numbers of attempts that repeated others, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repeats {
    /// Requests put back after a failed attempt.
    pub retries: u64,
    /// Throttled attempts.
    pub throttles: u64,
    /// Second attempts.
    pub hedges: u64,
}

impl Repeats {
    /// Add those of another queue.
    pub const fn add(&mut self, other: Self) {
        self.retries += other.retries;
        self.throttles += other.throttles;
        self.hedges += other.hedges;
    }
}

/// Quantiles of attempt durations for spans of similar length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencyRow {
    /// Minimum length of the class; it includes spans up to four times as long.
    pub from: Bytes,
    /// Number of attempts; old ones decay.
    pub count: u64,
    /// The median.
    pub p50: Nanos,
    /// The 95th percentile.
    pub p95: Nanos,
    /// The 99th percentile.
    pub p99: Nanos,
}
