// SPDX-License-Identifier: Apache-2.0
//! Fetch times from the run's own measurements, and the fastest source at the moment.
//!
//! It is separate from `tier`, whose rates are measured in advance: the speed of disks, buckets and page caches
//! varies during a run. Each source has one line, `latency + bytes / rate`, per concurrency, fitted to the
//! observations with exponential decay.
//!
//! A source without observations has no time. [`RateModel::forget_before`] drops old observations, so a source
//! that was slow once is tried again.

use foresee_units::{Bytes, Nanos, Source};

use crate::number::{as_f64, as_u64};

/// Number of buckets by concurrency: 1, 2 to 3, 4 to 7, and so on; all above 2^15 are one bucket.
const BUCKETS: usize = 16;
/// Factor by which a source must be faster than the nearest one with the sample, to be used in its place.
const MUCH_FASTER: u64 = 4;
/// Number of observations after which an old one has weight 1/e.
const MEMORY: u32 = 64;

/// Fetch times of all sources, learned during the run.
///
/// # Examples
/// ```
/// # use foresee_model::RateModel;
/// # use foresee_units::{Bytes, Nanos, Source};
/// let mut model = RateModel::default();
/// assert_eq!(model.fetch_time(Source::Disk, Bytes::new(1000), 1), None);
/// for bytes in [1_000, 2_000, 4_000] {
///     let service = Nanos::new(100_000 + 10 * bytes); // 0.1 ms and 100 MB/s
///     model.observe(Source::Disk, Bytes::new(bytes), 1, service, Nanos::ZERO);
/// }
/// let time = model.fetch_time(Source::Disk, Bytes::new(10_000), 1).unwrap();
/// assert!((199_990..=200_010).contains(&time.get()));
/// ```
#[derive(Clone, Debug, Default)]
pub struct RateModel {
    buckets: [[Option<Line>; BUCKETS]; Source::ALL.len()],
}

impl RateModel {
    /// A fetch of `bytes` took `service`, with `in_flight` fetches at its source, including itself.
    pub fn observe(&mut self, source: Source, bytes: Bytes, in_flight: u32, service: Nanos, now: Nanos) {
        let line = &mut self.buckets[source as usize][bucket(in_flight)];
        line.get_or_insert_default().observe(
            as_f64(bytes.get()),
            as_f64(service.get()),
            f64::from(in_flight.max(1)),
            now,
        );
    }

    /// Expected time of a fetch of `bytes` with `in_flight` fetches at its source, including itself.
    ///
    /// Linear between the observed concurrencies, the nearest one's time outside; rounds up to a nanosecond.
    /// `None`: this source was not measured.
    pub fn fetch_time(&self, source: Source, bytes: Bytes, in_flight: u32) -> Option<Nanos> {
        let bytes = as_f64(bytes.get());
        self.between(source, in_flight, |line| line.time(bytes))
    }

    /// Standard deviation of the observations around [`Self::fetch_time`], by the same rules.
    pub fn spread(&self, source: Source, in_flight: u32) -> Option<Nanos> {
        self.between(source, in_flight, Line::spread)
    }

    /// Drop every bucket of every source that was last observed before `moment`.
    pub fn forget_before(&mut self, moment: Nanos) {
        for line in self.buckets.iter_mut().flatten() {
            if line.as_ref().is_some_and(|line| line.last_observed < moment) {
                *line = None;
            }
        }
    }

    fn between(&self, source: Source, in_flight: u32, value_of: impl Fn(&Line) -> f64) -> Option<Nanos> {
        let wanted = f64::from(in_flight.max(1));
        let (mut low, mut high): (Option<&Line>, Option<&Line>) = (None, None);
        for line in self.buckets[source as usize].iter().flatten() {
            if line.in_flight <= wanted {
                low = Some(line);
            } else if high.is_none() {
                high = Some(line);
            }
        }
        let value = match (low, high) {
            (Some(low), Some(high)) => {
                let (below, above) = (value_of(low), value_of(high));
                below + (above - below) * (wanted - low.in_flight) / (high.in_flight - low.in_flight)
            }
            (Some(line), None) | (None, Some(line)) => value_of(line),
            (None, None) => return None,
        };
        Some(Nanos::new(as_u64(value.ceil())))
    }
}

/// A place that holds a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The source.
    pub source: Source,
    /// Expected time of a fetch from there, including waiting; `None` if not measured.
    pub time: Option<Nanos>,
}

/// The index of the candidate to fetch from: the fastest; of equals the nearest, then the first.
///
/// A candidate without a time that is nearer than the fastest measured one is tried first, which provides its
/// time. `None` only without candidates.
/// Source: nopfs-clairvoyant-prefetching, section 4: the fastest source that holds the sample; the order of
/// ties is Boehringer's (ETH 2020): local, peer, origin.
///
/// # Examples
/// ```
/// # use foresee_model::{Candidate, choose};
/// # use foresee_units::{Nanos, Source};
/// let at = |source, millis| Candidate { source, time: Some(Nanos::from_millis(millis)) };
/// // A disk under pressure is slower than the origin.
/// assert_eq!(choose(&[at(Source::Disk, 90), at(Source::Origin, 30)]), Some(1));
/// assert_eq!(choose(&[at(Source::Origin, 30), at(Source::Disk, 30)]), Some(1));
/// ```
pub fn choose(candidates: &[Candidate]) -> Option<usize> {
    let timed = candidates.iter().enumerate();
    let timed = timed.filter_map(|(at, candidate)| Some((candidate.time?, candidate.source, at)));
    untried_before(candidates, timed.min().map(|(_, source, at)| (source, at)))
}

/// The candidate to fetch from if the sample is wanted in `slack`: the nearest that is in time; if none is, the
/// fastest, as by [`choose`]. A candidate without a measurement is tried if it is nearer.
///
/// A far source thus replaces a near one only if that saves a stall, or most of one: it must then take at most a
/// quarter of the nearest's time. A second read of the origin that is only slightly faster would violate the
/// guarantee that each byte leaves it once, for all consumers for which nothing is in time.
///
/// # Examples
/// ```
/// # use foresee_model::{Candidate, choose_in_time};
/// # use foresee_units::{Nanos, Source};
/// let at = |source, millis| Candidate { source, time: Some(Nanos::from_millis(millis)) };
/// let held = [at(Source::Disk, 90), at(Source::Origin, 20)];
/// assert_eq!(choose_in_time(&held, Nanos::from_millis(100)), Some(0));
/// assert_eq!(choose_in_time(&held, Nanos::from_millis(50)), Some(1));
/// // Nothing is in time for a consumer who does not wait at all.
/// assert_eq!(choose_in_time(&held, Nanos::ZERO), Some(1));
/// assert_eq!(choose_in_time(&[at(Source::Disk, 90), at(Source::Origin, 30)], Nanos::ZERO), Some(0));
/// ```
pub fn choose_in_time(candidates: &[Candidate], slack: Nanos) -> Option<usize> {
    let nearest = nearest(candidates, |time| time.is_some_and(|time| time <= slack));
    if nearest.is_some() {
        return untried_before(candidates, nearest);
    }
    let fastest = choose(candidates)?;
    let (_, nearest) = self::nearest(candidates, |_| true)?;
    match (candidates[fastest].time, candidates[nearest].time) {
        (Some(far), Some(near)) if far.get() > near.get() / MUCH_FASTER => Some(nearest),
        _ => Some(fastest),
    }
}

/// The nearest candidate whose time is accepted; of equals the first.
fn nearest(candidates: &[Candidate], accepts: impl Fn(Option<Nanos>) -> bool) -> Option<(Source, usize)> {
    let accepted = candidates.iter().enumerate().filter(|(_, candidate)| accepts(candidate.time));
    accepted.map(|(at, candidate)| (candidate.source, at)).min()
}

/// The nearest candidate without a time, if it is nearer than `best`; otherwise `best`.
fn untried_before(candidates: &[Candidate], best: Option<(Source, usize)>) -> Option<usize> {
    match (best, nearest(candidates, |time| time.is_none())) {
        (Some(best), Some(untried)) if untried.0 < best.0 => Some(untried.1),
        (Some((_, at)), _) | (None, Some((_, at))) => Some(at),
        (None, None) => None,
    }
}

/// Exponentially weighted least squares of time on bytes.
#[derive(Clone, Debug, Default)]
struct Line {
    count: u32,
    last_observed: Nanos,
    /// Mean concurrency.
    in_flight: f64,
    bytes: f64,
    time: f64,
    bytes_bytes: f64,
    bytes_time: f64,
    time_time: f64,
}

impl Line {
    fn observe(&mut self, bytes: f64, time: f64, in_flight: f64, now: Nanos) {
        self.count = self.count.saturating_add(1);
        self.last_observed = self.last_observed.max(now);
        let weight = 1.0 / f64::from(self.count.min(MEMORY));
        let (off_bytes, off_time) = (bytes - self.bytes, time - self.time);
        self.in_flight += weight * (in_flight - self.in_flight);
        self.bytes += weight * off_bytes;
        self.time += weight * off_time;
        let decay = |old: f64, product: f64| (1.0 - weight) * (old + weight * product);
        self.bytes_bytes = decay(self.bytes_bytes, off_bytes * off_bytes);
        self.bytes_time = decay(self.bytes_time, off_bytes * off_time);
        self.time_time = decay(self.time_time, off_time * off_time);
    }

    /// Nanoseconds per byte, between 0 and the whole time. Nearly equal sizes contain no information about it.
    fn slope(&self) -> Option<f64> {
        let is_informative = self.bytes_bytes > 1e-4 * self.bytes * self.bytes;
        is_informative.then(|| (self.bytes_time / self.bytes_bytes).clamp(0.0, self.time / self.bytes))
    }

    /// With nearly equal sizes, a smaller fetch takes the same time and a larger one proportionally longer.
    fn time(&self, bytes: f64) -> f64 {
        match self.slope() {
            Some(slope) => self.time + slope * (bytes - self.bytes),
            None if self.bytes > 0.0 => self.time * (bytes / self.bytes).max(1.0),
            None => self.time,
        }
    }

    fn spread(&self) -> f64 {
        let slope = self.slope().unwrap_or(0.0);
        let rest = self.time_time - 2.0 * slope * self.bytes_time + slope * slope * self.bytes_bytes;
        rest.max(0.0).sqrt()
    }
}

fn bucket(in_flight: u32) -> usize {
    (in_flight.max(1).ilog2() as usize).min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(model: &mut RateModel, source: Source, in_flight: u32, times: u64, service: impl Fn(u64) -> u64) {
        for nth in 0..times {
            let bytes = 1000 + nth * 7919 % 100_000;
            model.observe(source, Bytes::new(bytes), in_flight, Nanos::new(service(bytes)), Nanos::new(nth));
        }
    }

    fn near(got: Option<Nanos>, want: u64) {
        let got = got.expect("measured").get();
        assert!(got.abs_diff(want) <= want / 100, "{got} instead of {want}");
    }

    #[test]
    fn latency_and_rate_are_separated_by_size() {
        let mut model = RateModel::default();
        feed(&mut model, Source::Origin, 1, 300, |bytes| 20_000_000 + 50 * bytes);
        near(model.fetch_time(Source::Origin, Bytes::ZERO, 1), 20_000_000);
        near(model.fetch_time(Source::Origin, Bytes::new(1_000_000), 1), 70_000_000);
        assert!(model.spread(Source::Origin, 1).unwrap() < Nanos::from_millis(1));
    }

    #[test]
    fn concurrency_is_interpolated_and_flat_outside() {
        let mut model = RateModel::default();
        feed(&mut model, Source::Disk, 4, 100, |_| 1_000_000);
        feed(&mut model, Source::Disk, 16, 100, |_| 4_000_000);
        near(model.fetch_time(Source::Disk, Bytes::new(5000), 1), 1_000_000);
        near(model.fetch_time(Source::Disk, Bytes::new(5000), 10), 2_500_000);
        near(model.fetch_time(Source::Disk, Bytes::new(5000), 1000), 4_000_000);
    }

    #[test]
    fn a_source_without_observations_has_no_time_and_old_ones_are_dropped() {
        let mut model = RateModel::default();
        assert_eq!(model.fetch_time(Source::Ram, Bytes::new(1), 1), None);
        assert_eq!(model.spread(Source::Ram, 1), None);
        model.observe(Source::Ram, Bytes::new(1), 1, Nanos::new(5), Nanos::from_secs(1));
        model.forget_before(Nanos::from_secs(1));
        assert_eq!(model.fetch_time(Source::Ram, Bytes::new(1), 1), Some(Nanos::new(5)));
        model.forget_before(Nanos::from_secs(2));
        assert_eq!(model.fetch_time(Source::Ram, Bytes::new(1), 1), None);
    }

    #[test]
    fn a_source_that_changes_is_followed() {
        let mut model = RateModel::default();
        feed(&mut model, Source::Disk, 1, 500, |_| 1_000_000);
        feed(&mut model, Source::Disk, 1, 500, |_| 9_000_000);
        near(model.fetch_time(Source::Disk, Bytes::new(50_000), 1), 9_000_000);
    }

    #[test]
    fn equal_sizes_give_a_time_that_grows_with_larger_fetches_only() {
        let mut model = RateModel::default();
        for _ in 0..10 {
            model.observe(Source::Disk, Bytes::new(1000), 1, Nanos::new(100), Nanos::ZERO);
        }
        let time = |bytes| model.fetch_time(Source::Disk, Bytes::new(bytes), 1).unwrap().get();
        assert_eq!((time(10), time(1000), time(3000)), (100, 100, 300));
        model.observe(Source::Ram, Bytes::ZERO, 0, Nanos::new(7), Nanos::ZERO);
        assert_eq!(model.fetch_time(Source::Ram, Bytes::new(9), 0), Some(Nanos::new(7)));
    }

    #[test]
    fn no_fit_gives_a_negative_time_or_rate() {
        let mut model = RateModel::default();
        feed(&mut model, Source::Peer, 1, 300, |bytes| 20_000_000 - 100 * bytes);
        let small = model.fetch_time(Source::Peer, Bytes::ZERO, 1).unwrap();
        let large = model.fetch_time(Source::Peer, Bytes::new(10_000_000), 1).unwrap();
        assert!(small > Nanos::ZERO && large >= small);
    }

    #[test]
    fn an_untried_source_is_tried_only_if_it_is_nearer_than_the_fastest() {
        let at = |source, time: Option<u64>| Candidate { source, time: time.map(Nanos::new) };
        assert_eq!(choose(&[]), None);
        assert_eq!(choose(&[at(Source::Origin, Some(5)), at(Source::Disk, None)]), Some(1));
        assert_eq!(choose(&[at(Source::Disk, Some(5)), at(Source::Origin, None)]), Some(0));
        assert_eq!(choose(&[at(Source::Origin, None), at(Source::Peer, None)]), Some(1));
        assert_eq!(
            choose(&[at(Source::Disk, Some(10)), at(Source::Peer, None), at(Source::Origin, Some(5))]),
            Some(1)
        );
    }

    #[test]
    fn a_source_without_a_measurement_does_not_count_as_in_time() {
        let at = |source, time: Option<u64>| Candidate { source, time: time.map(Nanos::new) };
        let in_time = |candidates: &[Candidate]| choose_in_time(candidates, Nanos::new(10));
        assert_eq!(in_time(&[]), None);
        assert_eq!(in_time(&[at(Source::Disk, Some(50)), at(Source::Origin, None)]), Some(0));
        assert_eq!(in_time(&[at(Source::Disk, None), at(Source::Origin, Some(5))]), Some(0));
        assert_eq!(in_time(&[at(Source::Disk, Some(9)), at(Source::Origin, Some(5))]), Some(0));
        assert_eq!(in_time(&[at(Source::Disk, Some(50)), at(Source::Origin, Some(5))]), Some(1));
        assert_eq!(in_time(&[at(Source::Disk, Some(50)), at(Source::Origin, Some(60))]), Some(0));
    }
}
