// SPDX-License-Identifier: Apache-2.0
//! Measurements of a data set's origin: whole samples in random order, a fixed number at a time, by the loader's
//! own client.
//!
//! One thread keeps as many requests in flight as there are readers, and starts a new one after each answer. For
//! a directory, the pages of the next samples are dropped first; with enough samples, none is read twice in a
//! repeat.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use foresee_data_index::Index;
use foresee_data_loader::DataSet;
use foresee_data_order::Keyed;
use foresee_data_tier::{
    CachedPages, Completions, Dest, Done, Locate, Op, OriginError, OriginOptions, Scratch, Ticket, Tier, Uri,
    open_origin, probe_origin,
};
use foresee_units::{Bytes, Epoch, Nanos, ReadOutcome, SampleId};

use crate::race::Tally;
use crate::{CalibrateError, Repeat, check_flag, refused};

/// Maximum of bytes read from one sample, so that a repeat is short.
const READ_MAX: u64 = 16 << 20;
/// Size of a read for a latency measurement.
const SMALL: u64 = 4 << 10;
/// Samples whose pages are dropped before a repeat: more than it reads.
const EVICTED_MAX: usize = 1 << 16;
/// Bytes held in the page cache for its measurement.
const CACHED_BYTES: u64 = 64 << 20;
const CACHED_SAMPLES: usize = 4096;
/// Number of transient errors that are tolerated; with more of them than samples, the measurement fails.
const TRANSIENT_ERRORS_MAX: u64 = 100;
/// Interval between two checks of the flag.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Time to wait at the end for answers in flight.
const GRACE: Nanos = Nanos::from_millis(100);
/// Seed of the order of samples, an arbitrary number.
const SEED: u64 = 1;

/// The operation of a repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginWork {
    /// Whole samples; for a directory, from the device.
    Read,
    /// At most 4 KiB of a sample; for a directory, from the device.
    SmallRead,
    /// Whole samples from the page cache; only for a directory.
    CachedRead,
}

/// An origin to measure.
pub struct OriginProbe {
    data: Arc<DataSet>,
    tier: Arc<dyn Tier>,
    completions: Completions,
    pages: Option<CachedPages>,
    order: Keyed,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Receives a message after completions.
    woken: Receiver<()>,
    /// The position in the order.
    position: u64,
    ticket: u64,
    /// Buffers of reads that have ended.
    free: Vec<Vec<u8>>,
}

/// A read in flight.
struct Read {
    id: SampleId,
    scratch: Arc<Scratch>,
    began: Instant,
}

impl OriginProbe {
    /// Open the origin of `index` at `uri`, and make one small request.
    pub fn open(index: Index, uri: &str, storage: Vec<(String, String)>) -> Result<Self, CalibrateError> {
        if index.total_bytes().is_zero() {
            return Err(CalibrateError::NoBytes { uri: uri.to_owned() });
        }
        let place = Uri::parse(uri).map_err(OriginError::from)?;
        let options = OriginOptions { storage: storage.into_iter().collect(), ..OriginOptions::default() };
        probe_origin(&place, &options)?;
        let order = Keyed::new(index.len(), SEED, Epoch(0)).map_err(|why| refused("an order", &why))?;
        // One wake-up is stored while this thread is busy; further ones would add nothing.
        let (waker, woken) = sync_channel(1);
        let completions = Completions::new(move || {
            let _ = waker.try_send(());
        });
        let data = Arc::new(DataSet::new(index, uri));
        let tier = open_origin(&place, &options, Arc::clone(&data) as _, completions.clone())?;
        let pages = CachedPages::open(&place)?;
        let state = Mutex::new(State { woken, position: 0, ticket: 0, free: Vec::new() });
        Ok(Self { data, tier, completions, pages, order, state })
    }

    /// Whether pages are dropped before reads, which requires a directory.
    pub fn has_pages(&self) -> bool {
        self.pages.is_some()
    }

    /// Whether the origin has no device: it is a directory of a file system in memory.
    pub fn is_in_memory(&self) -> bool {
        self.pages.as_ref().is_some_and(CachedPages::in_memory)
    }

    /// Run one repeat with `readers` requests in flight.
    pub fn measure(
        &self,
        work: OriginWork,
        readers: NonZeroUsize,
        lasts: Duration,
        stop: &AtomicBool,
    ) -> Result<Repeat, CalibrateError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let most = if work == OriginWork::SmallRead { SMALL } else { READ_MAX };
        match (work, &self.pages) {
            (OriginWork::CachedRead, _) => {
                let cached = self.select(&mut state, CACHED_SAMPLES, CACHED_BYTES, stop, |_| true);
                let all = Duration::MAX;
                self.read_all(&mut state, cached.iter().copied(), most, readers, all, stop, |_| ())?;
                let again = cached.iter().copied().cycle();
                self.read_all(&mut state, again, most, readers, lasts, stop, |_| ())
            }
            (_, Some(pages)) => {
                let began = Instant::now();
                let least = readers.get();
                let mut dropped = 0;
                let evicted = self.select(&mut state, EVICTED_MAX, u64::MAX, stop, |id| {
                    if let Some(location) = self.data.locate(id) {
                        pages.evict(&location, self.data.index().size(id).get());
                    }
                    dropped += 1;
                    dropped < least || began.elapsed() < lasts
                });
                self.read_all(&mut state, evicted.into_iter(), most, readers, lasts, stop, |_| ())
            }
            (_, None) => {
                let samples = self.data.index().len();
                let start = state.position;
                let next = (start..).map(|at| self.order.id(at % samples));
                let next = next.filter(|&id| !self.data.index().size(id).is_zero());
                let done = self.read_all(&mut state, next, most, readers, lasts, stop, |_| ())?;
                state.position = (start + done.operations) % samples;
                Ok(done)
            }
        }
    }

    /// The bytes of some samples, at most `samples` of them and about `bytes` together, for a measurement of
    /// decoding.
    pub fn samples(
        &self,
        samples: usize,
        bytes: Bytes,
        stop: &AtomicBool,
    ) -> Result<Vec<Vec<u8>>, CalibrateError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = self.select(&mut state, samples.max(1), bytes.get(), stop, |_| true);
        let readers = NonZeroUsize::new(wanted.len().clamp(1, 16)).unwrap_or(NonZeroUsize::MIN);
        let mut read = Vec::with_capacity(wanted.len());
        let collect = |content: &[u8]| read.push(content.to_vec());
        self.read_all(&mut state, wanted.into_iter(), READ_MAX, readers, Duration::MAX, stop, collect)?;
        Ok(read)
    }

    /// The next non-empty samples, until there are `samples`, `bytes` together, or `more` returns false.
    fn select(
        &self,
        state: &mut State,
        samples: usize,
        bytes: u64,
        stop: &AtomicBool,
        mut more: impl FnMut(SampleId) -> bool,
    ) -> Vec<SampleId> {
        let index = self.data.index();
        let (mut selected, mut sum) = (Vec::new(), 0_u64);
        let mut visited = 0;
        while visited < index.len() && !stop.load(Ordering::Relaxed) {
            let id = self.order.id(state.position);
            state.position = (state.position + 1) % index.len();
            visited += 1;
            let size = index.size(id).get();
            if size == 0 {
                continue;
            }
            if !selected.is_empty() && sum.saturating_add(size) > bytes {
                break;
            }
            sum = sum.saturating_add(size);
            selected.push(id);
            if !more(id) || selected.len() >= samples {
                break;
            }
        }
        selected
    }

    /// Read samples with `readers` in flight until none is left, or for `lasts`; at least `readers` of them.
    #[expect(clippy::too_many_arguments, reason = "all inputs of one repeat")]
    fn read_all(
        &self,
        state: &mut State,
        mut next: impl Iterator<Item = SampleId>,
        most: u64,
        readers: NonZeroUsize,
        lasts: Duration,
        stop: &AtomicBool,
        mut on_bytes: impl FnMut(&[u8]),
    ) -> Result<Repeat, CalibrateError> {
        let mut reads = HashMap::with_capacity(readers.get());
        let (mut tally, mut transient_errors) = (Tally::default(), 0);
        let mut ended = Vec::new();
        let began = Instant::now();
        for id in next.by_ref().take(readers.get()) {
            self.submit(state, id, most, &mut reads);
        }
        while !reads.is_empty() {
            // After a timeout it is time to check the flag.
            let _ = state.woken.recv_timeout(CHECK_INTERVAL);
            check_flag(stop).inspect_err(|_| self.cancel(&reads))?;
            self.completions.drain(&mut ended);
            for done in ended.drain(..) {
                // A result of an earlier repeat that was stopped.
                let Some(read) = reads.remove(&done.ticket) else { continue };
                match self.check_outcome(&done, &read) {
                    Ok(true) => {
                        tally.add(done.bytes.get(), read.began.elapsed());
                        if let Ok(bytes) = read.scratch.into_bytes() {
                            on_bytes(&bytes);
                            state.free.push(bytes);
                        }
                    }
                    Ok(false) => {
                        transient_errors += 1;
                        if transient_errors > TRANSIENT_ERRORS_MAX + tally.operations {
                            self.cancel(&reads);
                            return Err(self.fault(&done, read.id));
                        }
                    }
                    Err(error) => {
                        self.cancel(&reads);
                        return Err(error);
                    }
                }
                if began.elapsed() < lasts
                    && let Some(id) = next.next()
                {
                    self.submit(state, id, most, &mut reads);
                }
            }
        }
        check_flag(stop)?;
        Ok(tally.repeat(began.elapsed()))
    }

    fn submit(&self, state: &mut State, id: SampleId, most: u64, reads: &mut HashMap<Ticket, Read>) {
        let size = self.data.index().size(id).get().min(most);
        let mut memory = state.free.pop().unwrap_or_default();
        memory.resize(usize::try_from(size).unwrap_or(0), 0);
        let (dest, scratch) = Dest::from_vec(memory);
        let ticket = Ticket(state.ticket);
        state.ticket += 1;
        reads.insert(ticket, Read { id, scratch, began: Instant::now() });
        self.tier.submit(Op::Read { ticket, key: self.data.key(id), offset: 0, dest });
    }

    /// Whether the read returned its bytes; if not, whether another may.
    fn check_outcome(&self, done: &Done, read: &Read) -> Result<bool, CalibrateError> {
        match done.outcome {
            ReadOutcome::Ok => Ok(true),
            ReadOutcome::Throttled { .. } | ReadOutcome::Retryable => Ok(false),
            _ => Err(self.fault(done, read.id)),
        }
    }

    fn fault(&self, done: &Done, id: SampleId) -> CalibrateError {
        let why = match (&done.detail.message, done.outcome) {
            (Some(message), _) => message.to_string(),
            (None, ReadOutcome::Absent) => "it does not exist any more; index the data set again".to_owned(),
            (None, outcome) => format!("{outcome:?}"),
        };
        CalibrateError::Sample { uri: self.data.uri(id), why }
    }

    /// Abandon these reads.
    fn cancel(&self, reads: &HashMap<Ticket, Read>) {
        for &ticket in reads.keys() {
            self.tier.cancel(ticket);
        }
    }
}

impl Drop for OriginProbe {
    fn drop(&mut self) {
        self.tier.close(GRACE);
    }
}

impl std::fmt::Debug for OriginProbe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OriginProbe").field("place", &self.tier.facts().place).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use foresee_data_index::{Exclude, LayoutOptions};
    use foresee_data_loader::build_index;

    use super::*;

    fn open(sizes: &[usize]) -> (tempfile::TempDir, Result<OriginProbe, CalibrateError>) {
        let folder = tempfile::tempdir().expect("a folder");
        for (nth, &size) in (0_u8..).zip(sizes) {
            std::fs::write(folder.path().join(format!("{nth:04}")), vec![nth; size]).expect("a file");
        }
        let uri = folder.path().display().to_string();
        let layout = LayoutOptions::Flat { extensions: Vec::new() };
        let (cancel, exclude) = (AtomicBool::new(false), Exclude::default());
        let (index, _) =
            build_index(&uri, Vec::new(), layout, false, None, &exclude, &|_| {}, &cancel).expect("an index");
        let probe = OriginProbe::open(index, &uri, Vec::new());
        (folder, probe)
    }

    fn readers(count: usize) -> NonZeroUsize {
        NonZeroUsize::new(count).expect("at least one")
    }

    #[test]
    fn every_operation_reads_samples_with_one_reader_and_with_more_than_samples() {
        let (_folder, probe) = open(&[5000, 0, 7000, 100]);
        let probe = probe.expect("an origin");
        assert!(probe.has_pages());
        let stop = AtomicBool::new(false);
        for work in [OriginWork::Read, OriginWork::SmallRead, OriginWork::CachedRead] {
            for count in [1, 8] {
                let done =
                    probe.measure(work, readers(count), Duration::from_millis(1), &stop).expect("a repeat");
                assert!(done.operations > 0 && done.bytes > Bytes::ZERO, "{work:?}");
            }
        }
        let once =
            probe.measure(OriginWork::Read, readers(8), Duration::from_secs(9), &stop).expect("a repeat");
        assert_eq!(
            once.bytes,
            Bytes::new(12_100),
            "evicted samples are read once, those without bytes never"
        );
        let small = probe
            .measure(OriginWork::SmallRead, readers(1), Duration::from_secs(9), &stop)
            .expect("a repeat");
        assert_eq!(small.bytes, Bytes::new(4096 + 4096 + 100));
    }

    #[test]
    fn samples_are_complete() {
        let (_folder, probe) = open(&[3, 5, 9]);
        let stop = AtomicBool::new(false);
        let mut read = probe.expect("an origin").samples(9, Bytes::new(1 << 20), &stop).expect("samples");
        read.sort();
        assert_eq!(read, [vec![0; 3], vec![1; 5], vec![2; 9]]);
    }

    #[test]
    fn a_data_set_without_bytes_a_lost_file_and_a_raised_flag_are_refused() {
        let (_folder, empty) = open(&[0, 0]);
        assert!(matches!(empty, Err(CalibrateError::NoBytes { .. })), "{empty:?}");
        let (folder, probe) = open(&[10, 10]);
        let probe = probe.expect("an origin");
        let stop = AtomicBool::new(true);
        let stopped = probe.measure(OriginWork::Read, readers(1), Duration::ZERO, &stop);
        assert!(matches!(stopped, Err(CalibrateError::Stopped)), "{stopped:?}");
        drop(folder);
        stop.store(false, Ordering::Relaxed);
        let lost =
            probe.measure(OriginWork::Read, readers(2), Duration::ZERO, &stop).expect_err("it is gone");
        assert!(matches!(lost, CalibrateError::Sample { .. }), "{lost}");
    }
}
