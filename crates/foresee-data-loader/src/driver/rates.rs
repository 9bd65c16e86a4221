// SPDX-License-Identifier: Apache-2.0
//! Rates measured in this run: the read time of each source, and the consumer's rate of batches.

use foresee_data_fetch::ConsumerRate;
use foresee_model::{Candidate, RateModel, choose_in_time};
use foresee_units::{Bytes, Nanos, Source};

use crate::batch_queue::ConsumerSnapshot;
use crate::reads::ReadSource;

/// Lifetime of a measurement, after which a slow source is tried again.
const RATES_LAST: Nanos = Nanos::from_secs(30);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Rates {
    pub(super) sources: RateModel,
    /// `None` until the consumer has taken a step.
    consumer: Option<ConsumerRate>,
}

impl Rates {
    /// Update the rate of the consumer, whose next batch is in slot `next`.
    pub(super) fn update_consumer(
        &mut self,
        snapshot: ConsumerSnapshot,
        next: u64,
        now: Nanos,
    ) -> Option<ConsumerRate> {
        self.consumer = snapshot.step.map(|step| {
            let rest = if snapshot.is_waiting { Nanos::ZERO } else { step.saturating_sub(snapshot.since) };
            ConsumerRate { next, at: now.saturating_add(rest), step }
        });
        self.consumer
    }

    /// When the consumer wants the batch of `slot`; `None` until it has taken a step.
    pub(super) fn wanted(&self, slot: u64) -> Option<Nanos> {
        self.consumer.map(|rate| rate.wanted(slot))
    }

    /// The source for a sample of `bytes` in the disk tier: the disk, unless the disk is too late for batch `slot` and
    /// the origin is faster. `in_flight`: reads of the disk and of the origin.
    pub(super) fn disk_or_origin(
        &self,
        slot: u64,
        bytes: Bytes,
        in_flight: [u32; 2],
        now: Nanos,
    ) -> ReadSource {
        let at = |source, in_flight: u32| Candidate {
            source,
            time: self.sources.fetch_time(source, bytes, in_flight + 1),
        };
        let candidates = [at(Source::Disk, in_flight[0]), at(Source::Origin, in_flight[1])];
        // Before the consumer has taken a step, nothing is late.
        let slack = self.consumer.map_or(Nanos::MAX, |rate| rate.wanted(slot).saturating_sub(now));
        match choose_in_time(&candidates, slack) {
            Some(1) => ReadSource::Origin,
            _ => ReadSource::Disk,
        }
    }

    /// Forget expired measurements.
    pub(super) fn forget_old(&mut self, now: Nanos) {
        self.sources.forget_before(now.saturating_sub(RATES_LAST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_origin_serves_samples_that_a_slow_disk_would_deliver_too_late() {
        let (ms, size) = (Nanos::from_millis, Bytes::new(1000));
        let mut rates = Rates::default();
        rates.sources.observe(Source::Disk, size, 1, ms(100), ms(1));
        rates.sources.observe(Source::Origin, size, 1, ms(10), ms(1));
        assert_eq!(rates.disk_or_origin(7, size, [0, 0], ms(2)), ReadSource::Disk, "nothing is late yet");
        let snapshot =
            ConsumerSnapshot { taken: 1, is_waiting: false, since: Nanos::ZERO, step: Some(ms(20)) };
        rates.update_consumer(snapshot, 7, ms(2));
        assert_eq!(rates.disk_or_origin(7, size, [0, 0], ms(2)), ReadSource::Origin);
        assert_eq!(
            rates.disk_or_origin(17, size, [0, 0], ms(2)),
            ReadSource::Disk,
            "ten steps later it is in time"
        );
        rates.forget_old(ms(60_000));
        assert_eq!(
            rates.disk_or_origin(7, size, [0, 0], ms(2)),
            ReadSource::Disk,
            "measurements have expired"
        );
    }
}
