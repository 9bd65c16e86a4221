// SPDX-License-Identifier: Apache-2.0
//! Arrival and consumption of each sample of a rank's stream, in closed form.
//!
//! It is the performance model of clairvoyant prefetching for one rank with given sources. The simulator is
//! separate because it includes effects that the closed forms omit: a limited staging buffer, steps that all
//! ranks begin together, and copies made during the run.

use std::num::NonZeroU32;

use crate::number::{as_f64, check};
use crate::{Compat, ModelError, OriginCurve};

/// Rates of one source, in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SourceRate {
    /// Rate of a single thread.
    pub thread: f64,
    /// Rate of all threads of the rank together; at least `thread`.
    pub all: f64,
}

impl SourceRate {
    /// The rates of the origin with `readers` concurrent ranks: `min(link, t(g) / g)` for one thread or all of a
    /// rank.
    ///
    /// # Errors
    /// [`ModelError::InvalidInput`] unless `readers` is finite and at least 1 and `link` finite and above 0.
    pub fn origin(link: Option<f64>, curve: &OriginCurve, readers: f64) -> Result<Self, ModelError> {
        let share = curve.share(readers)?;
        let rate = link.map_or(Ok(share), |link| Ok(share.min(positive("link to the origin", link)?)))?;
        Ok(Self { thread: rate, all: rate })
    }

    /// The rates of this rank's own tier with `threads` threads, which together have `tier`: `r_j(p_j) / p_j`
    /// each.
    ///
    /// # Errors
    /// [`ModelError::InvalidInput`] unless `tier` is finite and above 0.
    pub fn local(tier: f64, threads: NonZeroU32) -> Result<Self, ModelError> {
        let tier = positive("tier rate", tier)?;
        Ok(Self { thread: tier / f64::from(threads.get()), all: tier })
    }

    /// The rates of such a tier on another rank, over a link of `link`: `min(b_c, r_j(p_j) / p_j)` each, `b_c` in
    /// total.
    ///
    /// # Errors
    /// [`ModelError::InvalidInput`] unless `link` and `tier` are finite and above 0.
    pub fn peer(link: f64, tier: f64, threads: NonZeroU32) -> Result<Self, ModelError> {
        let link = positive("link to peers", link)?;
        Ok(Self { thread: link.min(Self::local(tier, threads)?.thread), all: link })
    }

    /// Time in which one thread fetches `size` bytes from this source, in seconds: `fetch_i(k)`.
    pub fn fetch_seconds(&self, size: f64) -> f64 {
        size / self.thread
    }
}

/// Threads that fill the staging buffer, and their processing of a fetched sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Staging {
    threads: f64,
    /// Seconds per byte of one thread.
    write: f64,
}

impl Staging {
    /// `threads` (`p_0`) threads that each preprocess at `preprocess` (`beta`, bytes of original samples per
    /// second) and concurrently write at `write / threads`; `None` takes no time.
    ///
    /// # Errors
    /// [`ModelError::InvalidInput`] unless both rates are finite and above 0.
    pub fn new(threads: NonZeroU32, preprocess: Option<f64>, write: Option<f64>) -> Result<Self, ModelError> {
        let threads = f64::from(threads.get());
        let preprocess = preprocess.map(|rate| positive("preprocessing rate", rate)).transpose()?;
        let write = write.map(|rate| positive("write rate of the staging buffer", rate)).transpose()?;
        let preprocess = preprocess.map_or(0.0, f64::recip);
        Ok(Self { threads, write: write.map_or(0.0, |rate| threads / rate).max(preprocess) })
    }

    /// Time in which one thread processes a fetched sample, in seconds: `write_i(k)`.
    pub fn write_seconds(&self, size: f64) -> f64 {
        size * self.write
    }
}

/// One sample of a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamRead {
    /// Its size in bytes.
    pub size: f64,
    /// Its source: an index into the list of sources.
    pub source: usize,
}

/// Times of the samples of a stream, in seconds from its start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StreamTimes {
    /// When each sample is in the staging buffer.
    pub available: Vec<f64>,
    /// When the consumption of each sample begins.
    pub consumed: Vec<f64>,
    /// When the consumption of the last sample ends. The source stops at its begin.
    pub total: f64,
}

/// Times of a stream whose samples are consumed at `compute` bytes per second.
///
/// `consumed(f) = max(available(f), consumed(f - 1) + size(f - 1) / compute)`, and `available(f)` is, with the
/// sums over all samples up to `f`,
///
/// - `Compat::Paper`: `(sum of fetch + write) / p_0`, which gives a rank `p_0` times its share of the origin;
/// - `Compat::Physical`: the later of that and `(sum of sizes from f's source) / all + write(f)`. This is a lower
///   bound: the assignment of samples to threads is not modelled.
///
/// Source: nopfs-clairvoyant-prefetching, section 4, completed from Boehringer's thesis (ETH 2020).
///
/// # Errors
/// [`ModelError::InvalidInput`] for a size that is negative or not finite, a source that is not in the list, or a
/// rate that is not above 0.
/// # Examples
/// ```
/// # use std::num::NonZeroU32;
/// # use foresee_model::{Compat, SourceRate, Staging, StreamRead, stream_times};
/// let origin = SourceRate { thread: 50.0, all: 50.0 };
/// let staging = Staging::new(NonZeroU32::new(2).unwrap(), Some(200.0), None)?;
/// let reads = [1.0, 2.0, 1.0, 4.0].map(|size| StreamRead { size, source: 0 });
/// let total = |compat| stream_times(&staging, &[origin], &reads, 40.0, compat).map(|times| times.total);
/// assert!((total(Compat::Physical)? - 0.28).abs() < 1e-12);
/// assert!((total(Compat::Paper)? - 0.2125).abs() < 1e-12);
/// # Ok::<(), foresee_model::ModelError>(())
/// ```
pub fn stream_times(
    staging: &Staging,
    sources: &[SourceRate],
    reads: &[StreamRead],
    compute: f64,
    compat: Compat,
) -> Result<StreamTimes, ModelError> {
    positive("compute rate", compute)?;
    for source in sources {
        positive("source's rate of a thread", source.thread)?;
        positive("source's rate", source.all)?;
    }
    let mut times = StreamTimes::default();
    let mut source_bytes = vec![0.0; sources.len()];
    let (mut busy, mut free) = (0.0, 0.0_f64);
    for read in reads {
        let is_size = read.size.is_finite() && read.size >= 0.0;
        check(is_size, "size of a sample", read.size, "finite and 0 or more, in bytes")?;
        let Some(source) = sources.get(read.source) else {
            let (value, rule) = (as_f64(read.source as u64), "an index into the list of sources");
            return Err(ModelError::InvalidInput { field: "source", value, rule });
        };
        let write = staging.write_seconds(read.size);
        busy += source.fetch_seconds(read.size) + write;
        source_bytes[read.source] += read.size;
        let shared = busy / staging.threads;
        let available = match compat {
            Compat::Paper => shared,
            Compat::Physical => shared.max(source_bytes[read.source] / source.all + write),
        };
        let consumed = free.max(available);
        free = consumed + read.size / compute;
        times.available.push(available);
        times.consumed.push(consumed);
    }
    times.total = free;
    Ok(times)
}

fn positive(field: &'static str, value: f64) -> Result<f64, ModelError> {
    check(value.is_finite() && value > 0.0, field, value, "finite and above 0, in bytes per second")
}

#[cfg(test)]
mod tests {
    use foresee_testkit::property;
    use foresee_units::BytesPerSecond;
    use proptest::prelude::*;

    use super::*;

    fn count(value: u32) -> NonZeroU32 {
        NonZeroU32::new(value).unwrap()
    }

    #[test]
    fn each_source_has_its_limits() {
        let curve = OriginCurve::new([(1, BytesPerSecond::new(100)), (4, BytesPerSecond::new(340))]).unwrap();
        let origin = |link| SourceRate::origin(link, &curve, 2.0).unwrap().thread;
        assert_eq!((origin(None), origin(Some(70.0))), (90.0, 70.0));
        assert_eq!(SourceRate::local(80.0, count(4)).unwrap(), SourceRate { thread: 20.0, all: 80.0 });
        assert_eq!(SourceRate::peer(15.0, 80.0, count(4)).unwrap(), SourceRate { thread: 15.0, all: 15.0 });
        assert_eq!(SourceRate::peer(50.0, 80.0, count(4)).unwrap(), SourceRate { thread: 20.0, all: 50.0 });
        let write =
            |preprocess, write| Staging::new(count(4), preprocess, write).unwrap().write_seconds(20.0);
        assert_eq!(
            (write(Some(10.0), None), write(Some(10.0), Some(20.0)), write(None, None)),
            (2.0, 4.0, 0.0)
        );
    }

    #[test]
    fn errors_name_an_invalid_rate_size_or_source() {
        let staging = Staging::new(count(1), None, None).unwrap();
        let source = SourceRate { thread: 1.0, all: 1.0 };
        let times =
            |source, read, compute| stream_times(&staging, &[source], &[read], compute, Compat::Paper);
        let read = StreamRead { size: 1.0, source: 0 };
        assert!(times(source, read, 1.0).is_ok());
        let fault = |fault: Result<StreamTimes, ModelError>| fault.unwrap_err().to_string();
        assert!(fault(times(source, read, 0.0)).contains("compute rate"));
        assert!(
            fault(times(source, StreamRead { size: f64::NAN, ..read }, 1.0)).contains("size of a sample")
        );
        assert!(fault(times(source, StreamRead { size: -1.0, ..read }, 1.0)).contains("size of a sample"));
        assert!(fault(times(source, StreamRead { source: 1, ..read }, 1.0)).contains("source"));
        assert!(fault(times(SourceRate { all: 0.0, ..source }, read, 1.0)).contains("rate"));
        assert!(Staging::new(count(1), Some(f64::INFINITY), None).is_err());
        assert!(Staging::new(count(1), None, Some(0.0)).is_err());
        assert!(
            SourceRate::local(f64::NAN, count(1)).is_err() && SourceRate::peer(-1.0, 1.0, count(1)).is_err()
        );
    }

    proptest! {
        #![proptest_config(property(256))]

        #[test]
        fn the_paper_is_never_later_and_is_equal_with_one_thread(
            sizes in prop::collection::vec((0.0..100.0_f64, 0_usize..3), 1..40),
            threads in 1_u32..6,
            compute in 1.0..100.0_f64,
        ) {
            let reads: Vec<_> = sizes.iter().map(|&(size, source)| StreamRead { size, source }).collect();
            let sources = [(5.0, 5.0), (9.0, 20.0), (50.0, 200.0)].map(|(thread, all)| SourceRate { thread, all });
            let staging = Staging::new(count(threads), Some(30.0), None).unwrap();
            let [paper, physical] = [Compat::Paper, Compat::Physical]
                .map(|compat| stream_times(&staging, &sources, &reads, compute, compat).unwrap());
            for (early, late) in paper.consumed.iter().zip(&physical.consumed) {
                prop_assert!(early <= late);
            }
            if threads == 1 {
                prop_assert_eq!(paper, physical);
            }
        }
    }
}
