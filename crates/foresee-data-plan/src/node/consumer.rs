// SPDX-License-Identifier: Apache-2.0
//! One consumer: its progress and rate, from which the times of its accesses are predicted, and its requests.

use foresee_units::Nanos;

use super::pending::PendingRequests;
use super::read_ahead::ReadAhead;

/// A new measurement counts a quarter, so that one slow step does not reorder the cache.
const SMOOTHING: u64 = 4;
/// A measurement changes the interval by at most this factor: a pause is no new rate.
const CHANGE_MAX: u64 = 4;

/// A later deadline counts as this far ahead, and one in the past as now. So no request is passed over by those made
/// this much later, whatever their deadlines.
pub(super) const DEADLINE_MAX: Nanos = Nanos::from_secs(60);

/// A predicted time of use, relative to now, in nanoseconds. Exact for any interval and distance.
pub(super) type TimeUntil = u128;

/// A request that was made and not released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestState {
    /// It waits: for capacity, as number `turn` of the waiting requests with its deadline, or for the read in flight.
    Waiting { deadline: Nanos, turn: u64 },
    /// It was answered at this time, and its entry is pinned.
    Pinned { since: Nanos },
    /// Its pin was taken back.
    TakenBack,
}

/// A request with its entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConsumerRequest {
    pub(super) entry: u32,
    pub(super) state: RequestState,
}

/// A consumer that is attached.
#[derive(Debug)]
pub(super) struct Consumer {
    pub(super) requests: PendingRequests,
    /// Accesses of its latest epoch, which is the estimate for the next.
    pub(super) epoch_len: usize,
    /// Turn of its latest request.
    pub(super) turn: u64,
    pub(super) read_ahead: ReadAhead,
    /// Accesses consumed, or skipped.
    position: u64,
    /// Time of the latest progress.
    since: Nanos,
    /// Nanoseconds per access, at least 1.
    interval: u64,
    is_measured: bool,
    /// Whether it has made progress. The time before contains the wait for its first samples: with that as the time of a step,
    /// what is read first would be expected to be needed after what is read next.
    has_begun: bool,
}

impl Consumer {
    pub(super) fn new(interval: Nanos, now: Nanos) -> Self {
        Self {
            requests: PendingRequests::default(),
            epoch_len: 0,
            turn: 0,
            read_ahead: ReadAhead::default(),
            position: 0,
            since: now,
            interval: interval.get().max(1),
            is_measured: false,
            has_begun: false,
        }
    }

    /// The consumer has consumed all accesses before `position`, and takes `interval` per access if it says so.
    pub(super) fn progress(&mut self, position: u64, interval: Option<Nanos>, now: Nanos) {
        let accesses = position.saturating_sub(self.position);
        if let Some(measured) = now.saturating_sub(self.since).get().checked_div(accesses) {
            let measured = measured.max(1);
            if self.is_measured {
                let bounds = (self.interval / CHANGE_MAX, self.interval.saturating_mul(CHANGE_MAX));
                let measured = measured.clamp(bounds.0, bounds.1);
                let rest = self.interval - self.interval / SMOOTHING;
                self.interval = rest.saturating_add(measured / SMOOTHING).max(1);
            } else if self.has_begun {
                self.interval = measured;
                self.is_measured = true;
            }
            self.has_begun = true;
            self.position = position;
            self.since = now;
        }
        if let Some(given) = interval {
            self.interval = given.get().max(1);
            self.is_measured = true;
        }
    }

    /// The consumer continues at `position`; its rate stays.
    pub(super) fn restart(&mut self, position: u64, now: Nanos) {
        self.position = position;
        self.since = now;
        self.epoch_len = 0;
        self.read_ahead.restart(position);
    }

    /// Time without progress beyond `grace`; 0 for a consumer that runs.
    pub(super) fn idle(&self, grace: Nanos, now: Nanos) -> Nanos {
        now.saturating_sub(self.since).saturating_sub(grace)
    }

    /// Time until the access `number`. A consumer that has stood still for a time is expected to stand still for as
    /// long again.
    pub(super) fn time_until(&self, number: u64, grace: Nanos, now: Nanos) -> TimeUntil {
        let distance = number.saturating_sub(self.position);
        u128::from(self.idle(grace, now).get()) + u128::from(distance) * u128::from(self.interval)
    }
}

/// The attached consumers, and the time.
#[derive(Debug)]
pub(super) struct Consumers {
    each: Vec<Option<Consumer>>,
    grace: Nanos,
    now: Nanos,
}

impl Consumers {
    pub(super) fn new(grace: Nanos) -> Self {
        Self { each: Vec::new(), grace, now: Nanos::ZERO }
    }

    /// Advance the time; it never goes back.
    pub(super) fn advance_to(&mut self, now: Nanos) {
        self.now = self.now.max(now);
    }

    pub(super) fn now(&self) -> Nanos {
        self.now
    }

    /// Number of consumers ever attached at a time: their indices are below.
    pub(super) fn slots(&self) -> usize {
        self.each.len()
    }

    /// Number of attached consumers.
    pub(super) fn attached(&self) -> usize {
        self.each.iter().flatten().count()
    }

    pub(super) fn attach(&mut self, index: usize, consumer: Consumer) {
        if self.each.len() <= index {
            self.each.resize_with(index + 1, || None);
        }
        self.each[index] = Some(consumer);
    }

    pub(super) fn detach(&mut self, index: usize) -> Option<Consumer> {
        self.each.get_mut(index)?.take()
    }

    pub(super) fn get(&self, index: usize) -> Option<&Consumer> {
        self.each.get(index)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Consumer> {
        self.each.get_mut(index)?.as_mut()
    }

    /// Whether the consumer makes no progress.
    pub(super) fn stands_still(&self, index: usize) -> bool {
        self.get(index).is_some_and(|one| !one.idle(self.grace, self.now).is_zero())
    }

    /// The deadline of a use that is expected in `time`.
    pub(super) fn deadline(&self, time: TimeUntil) -> Nanos {
        let until = u64::try_from(time).map_or(DEADLINE_MAX, Nanos::new);
        self.now + until.min(DEADLINE_MAX)
    }

    /// Predicted time until the consumer's access `number`.
    pub(super) fn time_until(&self, index: usize, number: u64) -> TimeUntil {
        self.get(index).map_or(TimeUntil::MAX, |one| one.time_until(number, self.grace, self.now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Nanos = Nanos::new(1000);

    fn at(nanos: u64) -> Nanos {
        Nanos::new(nanos)
    }

    #[test]
    fn the_interval_is_measured_and_one_slow_step_changes_it_little() {
        let mut consumer = Consumer::new(at(7), at(0));
        assert_eq!(consumer.time_until(10, GRACE, at(0)), 70);
        consumer.progress(2, None, at(8000));
        assert_eq!(consumer.time_until(10, GRACE, at(8000)), 56, "the wait for the first samples is no step");
        consumer.progress(7, None, at(8500));
        assert_eq!(consumer.time_until(12, GRACE, at(8500)), 5 * 100);
        consumer.progress(8, None, at(908_500));
        assert_eq!(consumer.time_until(9, GRACE, at(908_500)), 175);
        consumer.progress(8, Some(at(3)), at(908_600));
        assert_eq!(consumer.time_until(10, GRACE, at(908_600)), 6);
    }

    #[test]
    fn times_move_away_while_a_consumer_stands_still() {
        let consumer = Consumer::new(at(10), at(0));
        assert_eq!(consumer.time_until(3, GRACE, at(1000)), 30);
        assert_eq!(consumer.time_until(3, GRACE, at(5000)), 4030);
        assert_eq!((consumer.idle(GRACE, at(1000)), consumer.idle(GRACE, at(1001))), (at(0), at(1)));
    }

    #[test]
    fn no_distance_and_interval_overflow() {
        let consumer = Consumer::new(Nanos::MAX, at(0));
        assert!(
            consumer.time_until(u64::MAX, GRACE, Nanos::MAX)
                > consumer.time_until(u64::MAX - 1, GRACE, Nanos::MAX)
        );
    }
}
