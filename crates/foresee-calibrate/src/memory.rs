// SPDX-License-Identifier: Apache-2.0
//! Measurements of copies, checksums and the memory tier, over more bytes than a core's caches hold.
//!
//! Destinations are used in sequence like a staging buffer, sources are drawn at random like samples.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use foresee_data_tier::{
    Completions, Fingerprint, RamTier, SampleKey, TagHash, memory_limit, sample_checksum,
};
use foresee_units::{Bytes, ReadOutcome, SampleId, SplitMix64};

use crate::race::{below, fill, race};
use crate::{CalibrateError, Repeat, refused};

/// Size of a sample: about that of an image.
const SAMPLE: usize = 128 << 10;
/// Size of a plain copy, for which the cost of the call is negligible.
const PIECE: usize = 1 << 20;
/// Size of a read for a latency measurement.
const SMALL: usize = 4 << 10;
/// A thread's destination.
const RING: usize = 8 << 20;
/// Maximum of source bytes, followed by the minimum; never more than a 16th of the memory that this process may
/// use.
const POOL_MAX: u64 = 256 << 20;
const POOL_MIN: u64 = 16 << 20;

/// The operation of a repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryWork {
    /// Plain copies of 1 MiB.
    Copy,
    /// Checksums of samples of 128 KiB, as by the disk tier.
    Checksum,
    /// Samples of 128 KiB from the memory tier, as for a batch.
    TierRead,
    /// 4 KiB of a sample in the memory tier.
    TierSmallRead,
    /// Samples of 128 KiB into the memory tier, replacing others.
    TierWrite,
}

/// The memory of the measurements.
#[derive(Debug)]
pub struct MemoryProbe {
    pool: Vec<u8>,
    tier: Mutex<Option<Filled>>,
}

/// The memory tier, with a copy of every sample.
#[derive(Clone, Debug)]
struct Filled {
    tier: RamTier,
    /// Whether copies are still those of the pool, under its keys.
    clean: bool,
}

impl MemoryProbe {
    /// Allocate the memory and touch it.
    pub fn new() -> Self {
        let allowed = memory_limit().map_or(POOL_MAX, |limit| limit.get() / 16);
        let len = allowed.clamp(POOL_MIN, POOL_MAX) / PIECE as u64 * PIECE as u64;
        let mut pool = vec![0; usize::try_from(len).unwrap_or(PIECE)];
        fill(&mut SplitMix64::new(1), &mut pool);
        Self { pool, tier: Mutex::default() }
    }

    /// Bytes of the sources.
    pub fn pool(&self) -> Bytes {
        Bytes::new(self.pool.len() as u64)
    }

    /// Run one repeat with `threads` threads.
    pub fn measure(
        &self,
        work: MemoryWork,
        threads: NonZeroUsize,
        lasts: Duration,
        stop: &AtomicBool,
    ) -> Result<Repeat, CalibrateError> {
        let tier = match work {
            MemoryWork::Copy | MemoryWork::Checksum => None,
            MemoryWork::TierRead | MemoryWork::TierSmallRead => Some(self.tier(true)?),
            MemoryWork::TierWrite => Some(self.tier(false)?),
        };
        let samples = self.pool.len() / SAMPLE;
        // The checksums are used, so that they are not optimized away.
        let sums = AtomicU64::new(0);
        let step = |state: &mut ThreadState| -> Result<Option<u64>, CalibrateError> {
            let sample = below(&mut state.draw, samples);
            let moved = match (work, &tier) {
                (MemoryWork::Checksum, _) => {
                    let sum = sample_checksum(&self.pool[sample * SAMPLE..][..SAMPLE]);
                    sums.fetch_xor(u64::from(sum), Ordering::Relaxed);
                    SAMPLE
                }
                (MemoryWork::TierRead | MemoryWork::TierSmallRead, Some(tier)) => {
                    let len = if work == MemoryWork::TierRead { SAMPLE } else { SMALL };
                    let pin = tier.pin(&key(sample)).ok_or_else(lost)?;
                    state.place(len).copy_from_slice(&pin[..len]);
                    len
                }
                (MemoryWork::TierWrite, Some(tier)) => {
                    let from = below(&mut state.draw, samples);
                    // A new version each time: for the same one the tier would keep its copy.
                    let key = SampleKey { tag: TagHash(state.draw.next()), ..key(sample) };
                    match tier.write_from(&key, &self.pool[from * SAMPLE..][..SAMPLE]) {
                        ReadOutcome::Ok => SAMPLE,
                        _ => 0,
                    }
                }
                (MemoryWork::Copy, _) | (_, None) => {
                    let from = below(&mut state.draw, self.pool.len() / PIECE) * PIECE;
                    state.place(PIECE).copy_from_slice(&self.pool[from..][..PIECE]);
                    PIECE
                }
            };
            std::hint::black_box(&state.ring);
            Ok(Some(moved as u64))
        };
        race(threads, lasts, stop, ThreadState::new, step, || Ok(()))
    }

    /// The tier, filled on first use, and again for reads after writes.
    fn tier(&self, for_reads: bool) -> Result<RamTier, CalibrateError> {
        let mut filled_tier = self.tier.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(filled) = &mut *filled_tier
            && (filled.clean || !for_reads)
        {
            filled.clean &= for_reads;
            return Ok(filled.tier.clone());
        }
        // The old tier is freed before the new one is allocated.
        *filled_tier = None;
        // A quarter more, because a sample exists twice while it is replaced.
        let capacity = Bytes::new(self.pool.len() as u64 / 4 * 5);
        let tier = RamTier::new(capacity, Completions::new(|| ())).map_err(|why| refused("memory", &why))?;
        for (nth, sample) in self.pool.chunks_exact(SAMPLE).enumerate() {
            if tier.write_from(&key(nth), sample) != ReadOutcome::Ok {
                return Err(lost());
            }
        }
        *filled_tier = Some(Filled { tier: tier.clone(), clean: for_reads });
        Ok(tier)
    }
}

impl Default for MemoryProbe {
    fn default() -> Self {
        Self::new()
    }
}

/// The state of one thread.
struct ThreadState {
    draw: SplitMix64,
    ring: Vec<u8>,
    next: usize,
}

impl ThreadState {
    fn new(nth: usize) -> Self {
        Self { draw: SplitMix64::new(nth as u64 + 2), ring: vec![1; RING], next: 0 }
    }

    /// The next `len` bytes of the destination.
    fn place(&mut self, len: usize) -> &mut [u8] {
        if self.next + len > self.ring.len() {
            self.next = 0;
        }
        let at = self.next;
        self.next += len;
        &mut self.ring[at..at + len]
    }
}

fn key(nth: usize) -> SampleKey {
    SampleKey { fingerprint: Fingerprint::default(), id: SampleId(nth as u64), tag: TagHash::default() }
}

fn lost() -> CalibrateError {
    refused("memory", &"the memory tier does not hold its samples")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_moves_bytes_with_one_thread_and_with_more() {
        let probe = MemoryProbe::new();
        let stop = AtomicBool::new(false);
        let all = [
            (MemoryWork::Copy, PIECE),
            (MemoryWork::Checksum, SAMPLE),
            (MemoryWork::TierRead, SAMPLE),
            (MemoryWork::TierSmallRead, SMALL),
            (MemoryWork::TierWrite, SAMPLE),
            (MemoryWork::TierRead, SAMPLE),
        ];
        for (work, size) in all {
            for threads in [1, 3] {
                let threads = NonZeroUsize::new(threads).expect("at least one");
                let done = probe.measure(work, threads, Duration::from_millis(1), &stop).expect("a repeat");
                assert!(done.bytes.get() >= size as u64, "{work:?}");
                assert_eq!(done.bytes.get() % size as u64, 0, "{work:?}");
            }
        }
    }
}
