// SPDX-License-Identifier: Apache-2.0
//! Disk measurements on an unnamed file in a folder: random reads and writes of the device, and reads from the
//! page cache.
//!
//! The file is as large as its first write allows in the given time, so a slow disk does not delay the
//! measurement.

use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use foresee_data_tier::{AlignedBuffer, DirectFile};
use foresee_units::{Bytes, SplitMix64};

use crate::race::{below, fill, race};
use crate::{CalibrateError, Repeat, check_flag};

/// Size of a read: about that of an image.
const SAMPLE: usize = 128 << 10;
/// Size of a write: the disk tier collects small samples before it writes them.
const PIECE: usize = 1 << 20;
const SAMPLES_PER_PIECE: usize = PIECE / SAMPLE;
/// Size of a read for a latency measurement.
const SMALL: usize = 4 << 10;
/// Smallest file with a meaningful result.
const FILE_BYTES_MIN: u64 = 4 << 20;
/// Maximum fraction of the free space that is used: a quarter.
const FREE_SHARE: u64 = 4;
/// Samples held in the page cache for its measurement.
const CACHED_SAMPLES: usize = 512;

/// The operation of a repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskWork {
    /// Random reads of 128 KiB from the device.
    Read,
    /// Random reads of 4 KiB from the device.
    SmallRead,
    /// Random reads of 128 KiB that the page cache answers.
    CachedRead,
    /// Writes of 1 MiB at random positions, until the device has them.
    Write,
}

/// A file for disk measurements. It has no name and disappears with this value.
#[derive(Debug)]
pub struct DiskProbe {
    folder: PathBuf,
    file: DirectFile,
    pieces: usize,
    /// Samples in random order: a read that may leave pages in the cache takes each once.
    order: Vec<u32>,
}

impl DiskProbe {
    /// Write the file: `most` bytes, or as many as fit into `within`, and at most a quarter of the free space.
    pub fn create(
        folder: &Path,
        most: Bytes,
        within: Duration,
        stop: &AtomicBool,
    ) -> Result<Self, CalibrateError> {
        // A quota may reject the file although there is free space.
        let failed = |doing, free_bytes| {
            move |source: io::Error| match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => full(folder, free_bytes),
                _ => CalibrateError::Folder { folder: folder.to_owned(), doing, source },
            }
        };
        let file = DirectFile::create(folder).map_err(failed("making a file", Bytes::ZERO))?;
        let free_bytes = file.free_bytes().map_err(failed("asking for free space", Bytes::ZERO))?;
        let len = length(most, free_bytes).ok_or_else(|| full(folder, free_bytes))?;
        file.allocate(Bytes::new(len)).map_err(failed("reserving space", free_bytes))?;
        let began = Instant::now();
        let mut buffer = AlignedBuffer::new(PIECE);
        fill(&mut SplitMix64::new(1), buffer.as_mut_slice());
        let whole = usize::try_from(len / PIECE as u64).unwrap_or(usize::MAX);
        let mut pieces = 0;
        let at_least = usize::try_from(FILE_BYTES_MIN / PIECE as u64).unwrap_or(1);
        while pieces < whole && (pieces < at_least || began.elapsed() < within) {
            check_flag(stop)?;
            // A different begin each time: some file systems would store equal pieces once.
            fill(&mut SplitMix64::new(pieces as u64), &mut buffer.as_mut_slice()[..4096]);
            file.write(buffer.as_mut_slice(), (pieces * PIECE) as u64)
                .map_err(failed("writing", free_bytes))?;
            pieces += 1;
        }
        file.sync().map_err(failed("writing", free_bytes))?;
        let mut order: Vec<u32> =
            (0..pieces * SAMPLES_PER_PIECE).map_while(|nth| u32::try_from(nth).ok()).collect();
        let mut draw = SplitMix64::new(2);
        for nth in (1..order.len()).rev() {
            order.swap(nth, below(&mut draw, nth + 1));
        }
        Ok(Self { folder: folder.to_owned(), file, pieces, order })
    }

    /// Whether reads and writes bypass the page cache; otherwise pages are dropped before.
    pub fn is_direct(&self) -> bool {
        self.file.is_direct()
    }

    /// Whether the folder has no device.
    pub fn is_in_memory(&self) -> bool {
        self.file.in_memory()
    }

    /// The file's length.
    pub fn file_bytes(&self) -> Bytes {
        Bytes::new((self.pieces * PIECE) as u64)
    }

    /// The free space, including that of the file.
    pub fn free_bytes(&self) -> Result<Bytes, CalibrateError> {
        let free = self.file.free_bytes().map_err(|why| self.fault("asking for free space", why))?;
        Ok(free.saturating_add(self.file_bytes()))
    }

    /// Run one repeat with `threads` threads.
    pub fn measure(
        &self,
        work: DiskWork,
        threads: NonZeroUsize,
        lasts: Duration,
        stop: &AtomicBool,
    ) -> Result<Repeat, CalibrateError> {
        match work {
            DiskWork::Read => self.read_device(SAMPLE, threads, lasts, stop),
            DiskWork::SmallRead => self.read_device(SMALL, threads, lasts, stop),
            DiskWork::CachedRead => self.read_cached(threads, lasts, stop),
            DiskWork::Write => self.write(threads, lasts, stop),
        }
    }

    fn read_device(
        &self,
        len: usize,
        threads: NonZeroUsize,
        lasts: Duration,
        stop: &AtomicBool,
    ) -> Result<Repeat, CalibrateError> {
        if !self.is_direct() {
            self.file
                .sync()
                .and_then(|()| self.file.evict_pages())
                .map_err(|why| self.fault("dropping pages", why))?;
        }
        let next = AtomicUsize::new(0);
        let step = |state: &mut (SplitMix64, AlignedBuffer)| {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            if nth >= self.order.len() && !self.is_direct() {
                return Ok(None);
            }
            let sample = self.order[nth % self.order.len()] as usize;
            let within = below(&mut state.0, SAMPLE / len) * len;
            self.file
                .read(state.1.as_mut_slice(), (sample * SAMPLE + within) as u64)
                .map_err(|why| self.fault("reading", why))?;
            Ok(Some(len as u64))
        };
        let new_state = |nth| (SplitMix64::new(nth as u64), AlignedBuffer::new(len));
        race(threads, lasts, stop, new_state, step, || Ok(()))
    }

    fn read_cached(
        &self,
        threads: NonZeroUsize,
        lasts: Duration,
        stop: &AtomicBool,
    ) -> Result<Repeat, CalibrateError> {
        let cached = self.order.len().min(CACHED_SAMPLES);
        let read = |buffer: &mut AlignedBuffer, sample: usize| {
            let done = self.file.read_cached(buffer.as_mut_slice(), (sample * SAMPLE) as u64);
            done.map_err(|why| self.fault("reading", why))
        };
        let mut buffer = AlignedBuffer::new(SAMPLE);
        for sample in 0..cached {
            read(&mut buffer, sample)?;
        }
        let step = |state: &mut (SplitMix64, AlignedBuffer)| {
            let sample = below(&mut state.0, cached);
            read(&mut state.1, sample).map(|()| Some(SAMPLE as u64))
        };
        let new_state = |nth| (SplitMix64::new(nth as u64), AlignedBuffer::new(SAMPLE));
        race(threads, lasts, stop, new_state, step, || Ok(()))
    }

    fn write(
        &self,
        threads: NonZeroUsize,
        lasts: Duration,
        stop: &AtomicBool,
    ) -> Result<Repeat, CalibrateError> {
        let step = |state: &mut (SplitMix64, AlignedBuffer)| {
            let piece = below(&mut state.0, self.pieces);
            let word = state.0.next();
            state.1.as_mut_slice()[..8].copy_from_slice(&word.to_le_bytes());
            self.file
                .write(state.1.as_mut_slice(), (piece * PIECE) as u64)
                .map_err(|why| self.fault("writing", why))?;
            Ok(Some(PIECE as u64))
        };
        let new_state = |nth| {
            let (mut draw, mut buffer) = (SplitMix64::new(nth as u64), AlignedBuffer::new(PIECE));
            fill(&mut draw, buffer.as_mut_slice());
            (draw, buffer)
        };
        let sync = || self.file.sync().map_err(|why| self.fault("writing", why));
        race(threads, lasts, stop, new_state, step, sync)
    }

    fn fault(&self, doing: &'static str, source: io::Error) -> CalibrateError {
        CalibrateError::Folder { folder: self.folder.clone(), doing, source }
    }
}

/// The maximum length of the file, in whole pieces; `None` if the disk is too full.
fn length(most: Bytes, free_bytes: Bytes) -> Option<u64> {
    let len = most.get().max(FILE_BYTES_MIN).min(free_bytes.get() / FREE_SHARE) / PIECE as u64 * PIECE as u64;
    (len >= FILE_BYTES_MIN).then_some(len)
}

fn full(folder: &Path, free_bytes: Bytes) -> CalibrateError {
    CalibrateError::Full {
        folder: folder.to_owned(),
        free_bytes,
        required: Bytes::new(FILE_BYTES_MIN * FREE_SHARE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Bytes = Bytes::new(8 << 20);

    fn create(folder: &Path) -> Result<DiskProbe, CalibrateError> {
        DiskProbe::create(folder, MOST, Duration::from_secs(60), &AtomicBool::new(false))
    }

    #[test]
    fn every_operation_moves_bytes_and_leaves_no_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let probe = create(folder.path()).expect("a file");
        assert_eq!(probe.file_bytes(), MOST);
        assert!(probe.free_bytes().expect("facts") > MOST);
        let stop = AtomicBool::new(false);
        let all = [
            (DiskWork::Read, SAMPLE),
            (DiskWork::SmallRead, SMALL),
            (DiskWork::CachedRead, SAMPLE),
            (DiskWork::Write, PIECE),
        ];
        for (work, size) in all {
            for threads in [1, 3] {
                let threads = NonZeroUsize::new(threads).expect("at least one");
                let done = probe.measure(work, threads, Duration::from_millis(1), &stop).expect("a repeat");
                assert!(done.bytes.get() >= size as u64 && done.operations > 0, "{work:?}");
            }
        }
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }

    #[test]
    fn without_time_the_file_has_its_minimum_size() {
        let folder = tempfile::tempdir().expect("a folder");
        let stop = AtomicBool::new(false);
        let probe = DiskProbe::create(folder.path(), MOST, Duration::ZERO, &stop).expect("a file");
        assert_eq!(probe.file_bytes(), Bytes::new(FILE_BYTES_MIN));
    }

    #[test]
    fn at_most_a_quarter_of_the_free_space_is_used_and_a_full_disk_is_refused() {
        let mib = |n: u64| Bytes::new(n << 20);
        assert_eq!(length(mib(256), mib(100_000)), Some(256 << 20));
        assert_eq!(length(mib(256), mib(100)), Some(25 << 20));
        assert_eq!(length(Bytes::ZERO, mib(100)), Some(FILE_BYTES_MIN));
        assert_eq!(length(mib(256), mib(16)), Some(FILE_BYTES_MIN));
        assert_eq!(length(mib(256), mib(15)), None);
        let words = full(Path::new("/mnt/x"), mib(1)).to_string();
        assert!(words.contains("/mnt/x: 1.0 MB free, at least 16.8 MB needed"), "{words}");
    }

    #[test]
    fn an_invalid_folder_and_a_raised_flag_are_refused() {
        let nowhere = create(Path::new("/proc/no such folder")).expect_err("no folder").to_string();
        assert!(nowhere.contains("/proc/no such folder") && nowhere.contains("making a file"), "{nowhere}");
        let folder = tempfile::tempdir().expect("a folder");
        let stopped = DiskProbe::create(folder.path(), MOST, Duration::ZERO, &AtomicBool::new(true));
        assert!(matches!(stopped, Err(CalibrateError::Stopped)), "{stopped:?}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }
}
