// SPDX-License-Identifier: Apache-2.0
//! Rates measured in this run: the time that sources take for a read, and the consumer's rate of batches.

use foresee_data_fetch::Pace;
use foresee_model::{Candidate, RateModel, choose_in_time};
use foresee_units::{Bytes, Nanos, Source};

use crate::batch_queue::ConsumerSnapshot;
use crate::reads::From;

/// A source that was slow once is tried again after this long without a measurement.
const RATES_LAST: Nanos = Nanos::from_secs(30);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Rates {
    pub(super) sources: RateModel,
    /// `None` until the consumer has taken a step.
    consumer: Option<Pace>,
}

impl Rates {
    /// Follows the consumer, whose next batch is in slot `next`.
    pub(super) fn follow_consumer(
        &mut self,
        snapshot: ConsumerSnapshot,
        next: u64,
        now: Nanos,
    ) -> Option<Pace> {
        self.consumer = snapshot.step.map(|step| {
            let rest = if snapshot.is_waiting { Nanos::ZERO } else { step.saturating_sub(snapshot.since) };
            Pace { next, at: now.saturating_add(rest), step }
        });
        self.consumer
    }

    /// Who reads a sample of `bytes` that the disk tier holds: the disk, unless it would come too late for batch `slot`
    /// and the origin sooner. `in_flight`: reads of the disk and of the origin.
    pub(super) fn disk_or_origin(&self, slot: u64, bytes: Bytes, in_flight: [u32; 2], now: Nanos) -> From {
        let at = |source, in_flight: u32| Candidate {
            source,
            time: self.sources.fetch_time(source, bytes, in_flight + 1),
        };
        let candidates = [at(Source::Disk, in_flight[0]), at(Source::Origin, in_flight[1])];
        match choose_in_time(&candidates, self.slack(slot, now)) {
            Some(1) => From::Origin,
            _ => From::Disk,
        }
    }

    /// Time until the consumer will want batch `slot`, at its recent rate.
    fn slack(&self, slot: u64, now: Nanos) -> Nanos {
        // Before it has taken a step nothing is late.
        self.consumer.map_or(Nanos::MAX, |rate| rate.wanted(slot).saturating_sub(now))
    }

    /// Forgets measurements that are too old to choose by.
    pub(super) fn forget_old(&mut self, now: Nanos) {
        self.sources.forget_before(now.saturating_sub(RATES_LAST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_origin_serves_what_a_slow_disk_would_bring_too_late() {
        let (ms, size) = (Nanos::from_millis, Bytes::new(1000));
        let mut rates = Rates::default();
        rates.sources.observe(Source::Disk, size, 1, ms(100), ms(1));
        rates.sources.observe(Source::Origin, size, 1, ms(10), ms(1));
        assert_eq!(rates.disk_or_origin(7, size, [0, 0], ms(2)), From::Disk, "nothing is late yet");
        let snapshot =
            ConsumerSnapshot { taken: 1, is_waiting: false, since: Nanos::ZERO, step: Some(ms(20)) };
        rates.follow_consumer(snapshot, 7, ms(2));
        assert_eq!(rates.disk_or_origin(7, size, [0, 0], ms(2)), From::Origin);
        assert_eq!(
            rates.disk_or_origin(17, size, [0, 0], ms(2)),
            From::Disk,
            "ten steps later it is in time"
        );
        rates.forget_old(ms(60_000));
        assert_eq!(rates.disk_or_origin(7, size, [0, 0], ms(2)), From::Disk, "nothing is known any more");
    }
}
