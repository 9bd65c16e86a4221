// SPDX-License-Identifier: Apache-2.0
//! What the queue reports about itself.

use foresee_units::Nanos;

use super::Dispatch;
use crate::config::{DispatchStats, Repeats};

impl Dispatch {
    /// Whether requests are paused because the source throttled or failed.
    pub fn is_paused(&self, now: Nanos) -> bool {
        now < self.limiter.paused_until()
    }

    /// The current metrics.
    pub fn stats(&self) -> DispatchStats {
        DispatchStats {
            in_flight: self.in_flight(),
            limit: self.limiter.limit(),
            queued: self.queue.len(),
            goodput: self.meter.rate(),
            latency: self.latency.rows(),
            ..self.counters.clone()
        }
    }

    /// The attempts so far that repeated others.
    pub const fn repeats(&self) -> Repeats {
        let DispatchStats { retries, throttles, hedges, .. } = self.counters;
        Repeats { retries, throttles, hedges }
    }

    /// Attempts that were started and have not ended, including cancelled ones.
    pub fn in_flight(&self) -> u32 {
        u32::try_from(self.attempts.len()).unwrap_or(u32::MAX)
    }

    /// Whether further requests would only wait: as many as can be started next wait already.
    pub fn is_saturated(&self) -> bool {
        let parts = self.config.coalesce.map_or(1, |coalesce| coalesce.max_parts);
        self.queue.len() >= self.limiter.limit() as usize * parts
    }

    /// The current limit of concurrent attempts.
    pub const fn limit(&self) -> u32 {
        self.limiter.limit()
    }
}
