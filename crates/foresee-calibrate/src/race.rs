// SPDX-License-Identifier: Apache-2.0
//! Threads that start together, repeat one operation, and end at the same time.
//!
//! It is separate from the operations, so that every rate by threads is computed alike: bytes of all threads over
//! the time from the common start to the last end.

use std::num::NonZeroUsize;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

use foresee_units::{Bytes, Nanos, SplitMix64};

use crate::{CalibrateError, Repeat, check_flag, refused};

/// Maximum number of operation times that a thread stores: the median of that many is stable.
const TIMES_MAX: usize = 1 << 16;

/// The results of one thread.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) bytes: u64,
    pub(crate) operations: u64,
    pub(crate) times: Vec<Duration>,
}

impl Tally {
    pub(crate) fn add(&mut self, bytes: u64, took: Duration) {
        self.bytes += bytes;
        self.operations += 1;
        if self.times.len() < TIMES_MAX {
            self.times.push(took);
        }
    }

    fn join(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.operations += other.operations;
        self.times.extend(other.times);
    }

    pub(crate) fn repeat(mut self, took: Duration) -> Repeat {
        let latency = match self.times.len() {
            0 => Duration::ZERO,
            many => *self.times.select_nth_unstable(many / 2).1,
        };
        Repeat {
            bytes: Bytes::new(self.bytes),
            took: Nanos::from(took),
            latency: Nanos::from(latency),
            operations: self.operations,
        }
    }
}

/// Run `work` in `threads` threads repeatedly for `lasts`, each with a state of its own, and at least once.
/// `work` returns the bytes it moved; `None` ends its thread. `after` is included in the time.
pub(crate) fn race<S: Send>(
    threads: NonZeroUsize,
    lasts: Duration,
    stop: &AtomicBool,
    make: impl FnMut(usize) -> S,
    work: impl Fn(&mut S) -> Result<Option<u64>, CalibrateError> + Sync,
    after: impl FnOnce() -> Result<(), CalibrateError>,
) -> Result<Repeat, CalibrateError> {
    // Created before the start, because the first touch of memory must not be measured.
    let states: Vec<S> = (0..threads.get()).map(make).collect();
    // The common start; `None` if not all threads could be started.
    let start = OnceLock::<Option<Instant>>::new();
    let (work, start) = (&work, &start);
    std::thread::scope(|scope| {
        let mut running = Vec::with_capacity(states.len());
        for state in states {
            let spawned =
                Builder::new().name("foresee-calibrate".to_owned()).spawn_scoped(scope, move || {
                    start
                        .wait()
                        .map_or_else(|| Ok(Tally::default()), |began| run(state, began, lasts, stop, work))
                });
            running.push(spawned.map_err(|why| {
                start.get_or_init(|| None);
                refused("a thread", &why)
            })?);
        }
        let began = Instant::now();
        start.get_or_init(|| Some(began));
        let mut all = Tally::default();
        for thread in running {
            all.join(thread.join().map_err(|_| refused("a measurement", &"one of its threads has failed"))??);
        }
        check_flag(stop)?;
        after()?;
        Ok(all.repeat(began.elapsed()))
    })
}

fn run<S>(
    mut state: S,
    began: Instant,
    lasts: Duration,
    stop: &AtomicBool,
    work: &(impl Fn(&mut S) -> Result<Option<u64>, CalibrateError> + Sync),
) -> Result<Tally, CalibrateError> {
    let mut tally = Tally::default();
    let mut now = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let Some(bytes) = work(&mut state)? else { break };
        let ended = Instant::now();
        tally.add(bytes, ended - now);
        now = ended;
        if now - began >= lasts {
            break;
        }
    }
    Ok(tally)
}

/// Return a random index below `limit`, which is 1 or more.
pub(crate) fn below(draw: &mut SplitMix64, limit: usize) -> usize {
    usize::try_from(draw.below(limit.max(1) as u64)).unwrap_or(0)
}

/// Fill `bytes` with random bytes, which no file system compresses.
pub(crate) fn fill(draw: &mut SplitMix64, bytes: &mut [u8]) {
    for part in bytes.chunks_mut(8) {
        part.copy_from_slice(&draw.next().to_le_bytes()[..part.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    fn threads(count: usize) -> NonZeroUsize {
        NonZeroUsize::new(count).expect("at least one")
    }

    #[test]
    fn every_thread_runs_at_least_once_and_all_are_counted() {
        let stop = AtomicBool::new(false);
        let done =
            race(threads(3), Duration::ZERO, &stop, |nth| nth as u64 + 1, |&mut n| Ok(Some(n)), || Ok(()))
                .expect("a repeat");
        assert_eq!((done.bytes, done.operations), (Bytes::new(6), 3));
        assert!(done.took > Nanos::ZERO);
    }

    #[test]
    fn a_thread_without_work_ends_and_an_error_of_one_is_the_result() {
        let stop = AtomicBool::new(false);
        let left = AtomicU64::new(5);
        let take = |(): &mut ()| {
            let took = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            Ok(took.ok().map(|_| 10))
        };
        let long = Duration::from_secs(3600);
        let done = race(threads(2), long, &stop, |_| (), take, || Ok(())).expect("a repeat");
        assert_eq!(done.bytes, Bytes::new(50));
        let failing = |(): &mut ()| Err(CalibrateError::NoBytes { uri: "x".to_owned() });
        assert!(race(threads(2), long, &stop, |_| (), failing, || Ok(())).is_err());
    }

    #[test]
    fn a_raised_flag_ends_the_measurement_without_a_result() {
        let stop = AtomicBool::new(true);
        let long = Duration::from_secs(3600);
        let stopped = race(threads(2), long, &stop, |_| (), |&mut ()| Ok(Some(1)), || Ok(()));
        assert!(matches!(stopped, Err(CalibrateError::Stopped)));
    }
}
