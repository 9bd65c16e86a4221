// SPDX-License-Identifier: Apache-2.0
//! The knobs of a fetch queue, with their reasons, and the figures it reports.
//!
//! Owns no decision: each bound is used by the file that it is named after.

use foresee_units::{Bytes, BytesPerSecond, Nanos};

/// How one source is to be asked.
#[derive(Clone, Debug, PartialEq)]
pub struct DispatchConfig {
    /// How many attempts at once.
    pub limit: LimitConfig,
    /// When to ask again, and when to give up.
    pub retry: RetryConfig,
    /// Whether and how ranges of one object are read as one; `None` reads each by itself.
    pub coalesce: Option<CoalesceConfig>,
    /// The share of moved bytes that second requests may add, 0 to 1; 0 never hedges. 0.05 by default.
    pub hedge_share: f64,
    /// Whether other ranks of the job ask this source too: what has time then leaves it to them, and nothing is doubled
    /// that would take from them. Not by default.
    pub shared: bool,
}

impl DispatchConfig {
    /// For a bucket or another source of unknown width: adaptive limit, retries, hedges; no coalescing.
    pub fn adaptive() -> Self {
        Self {
            limit: LimitConfig::default(),
            retry: RetryConfig::default(),
            coalesce: None,
            hedge_share: 0.05,
            shared: false,
        }
    }

    /// For a source of known width, such as a pool of `in_flight` threads: no adaptation, no hedges.
    ///
    /// `in_flight` 0 is read as 1: a queue that never starts anything would hang its consumer.
    pub fn fixed(in_flight: u32) -> Self {
        let in_flight = in_flight.max(1);
        let limit =
            LimitConfig { start: in_flight, min: in_flight, max: in_flight, ..LimitConfig::default() };
        Self { limit, hedge_share: 0.0, ..Self::adaptive() }
    }
}

/// Bounds of the concurrency limit. Out of order, they are put in order: `1 <= min <= start <= max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitConfig {
    /// In flight at first. 16 by default: enough to see a round trip's worth, too few to provoke a refusal.
    pub start: u32,
    /// Never fewer. 1 by default.
    pub min: u32,
    /// Never more. 256 by default; equal to `min`, the limit is fixed.
    pub max: u32,
    /// What a request costs the source besides its bytes, in bytes it could have sent instead. 32 KiB by
    /// default, near `rate / requests per second` of common disks and buckets. Goodput is compared in
    /// `bytes + request_cost`, so that a change in the mix of sizes does not look like a change of speed.
    pub request_cost: Bytes,
}

impl Default for LimitConfig {
    fn default() -> Self {
        Self { start: 16, min: 1, max: 256, request_cost: Bytes::new(32 << 10) }
    }
}

/// When a failed request is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryConfig {
    /// Tries in all, at least 1; 10 by default. Refusals (`Throttled`) do not count: `patience` bounds them.
    pub max_tries: u32,
    /// No try begins later than this after the request came; 180 s by default.
    pub patience: Nanos,
    /// The first pause, doubled at each further fault; 500 ms by default, of which jitter takes up to half.
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

/// When neighbouring ranges of one object become one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoalesceConfig {
    /// Widest gap to read over: time to first byte times the rate of one stream, both measured.
    pub gap: Bytes,
    /// A span does not grow beyond this.
    pub target: Bytes,
    /// Nor beyond this many tickets, at least 1.
    pub max_parts: usize,
}

/// A queue's figures as they stand.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DispatchStats {
    /// Attempts started and not ended.
    pub in_flight: u32,
    /// How many there may be.
    pub limit: u32,
    /// Requests that wait for a start, pauses before a retry included.
    pub queued: usize,
    /// Requests put back after a failed attempt, so far.
    pub retries: u64,
    /// Second attempts asked for: beside the first, or in its place where the limit leaves no room.
    pub hedges: u64,
    /// Second attempts that answered first.
    pub hedge_wins: u64,
    /// Bytes asked for by second attempts.
    pub hedged_bytes: Bytes,
    /// Refusals by the source.
    pub throttles: u64,
    /// Bytes moved, by failed and lost attempts too.
    pub moved: Bytes,
    /// Bytes of gaps that were read to join ranges.
    pub over_read: Bytes,
    /// Delivery rate of the recent past, idle time included; `None` before the first quarter of a second.
    pub goodput: Option<BytesPerSecond>,
    /// Time of successful attempts, one row per size class that has any, the smallest first.
    pub latency: Vec<LatencyRow>,
}

/// Quantiles of attempt time among spans of similar length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencyRow {
    /// Spans of this length or longer, up to four times it.
    pub from: Bytes,
    /// Attempts counted; old ones fade.
    pub count: u64,
    /// Half of the attempts took no longer.
    pub p50: Nanos,
    /// 95 % took no longer.
    pub p95: Nanos,
    /// 99 % took no longer.
    pub p99: Nanos,
}
