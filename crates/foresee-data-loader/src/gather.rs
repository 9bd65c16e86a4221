// SPDX-License-Identifier: Apache-2.0
//! Copies from memory into one batch, shared by two threads.
//!
//! If all samples are in memory, copies limit the speed of a loop without compute, so a waiting consumer copies too.
//! Each thread takes the next copy, and the batch is complete when the last copy has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foresee_data_tier::RamPin;

use crate::buffer::Buffer;

/// Minimum length of shared copies: for shorter ones the overhead exceeds the gain.
pub(crate) const SHARED_MIN_LEN: usize = 16 << 10;

/// The copies of one batch. It owns the pins of the samples and the buffer.
#[derive(Debug)]
pub(crate) struct Gather {
    buffer: Arc<Buffer>,
    /// Samples and their offsets in the buffer.
    copies: Vec<(RamPin, usize)>,
    next: AtomicUsize,
    left: AtomicUsize,
}

impl Gather {
    /// Create the copies into `buffer`, which is mapped.
    ///
    /// # Safety
    /// The destinations are disjoint, and nothing else accesses them until [`Gather::is_done`].
    pub(crate) unsafe fn new(buffer: Arc<Buffer>, copies: Vec<(RamPin, usize)>) -> Self {
        let left = AtomicUsize::new(copies.len());
        Self { buffer, copies, next: AtomicUsize::new(0), left }
    }

    /// Copy until no copy is left to begin. Return whether this call ended the last copy: then the driver is woken.
    pub(crate) fn help(&self) -> bool {
        let mut ended_last = false;
        while let Some((sample, offset)) = self.copies.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            // SAFETY: no two calls get the same copy, and destinations are disjoint.
            unsafe { self.buffer.slice_mut(*offset, sample.len()) }.copy_from_slice(sample);
            ended_last = self.left.fetch_sub(1, Ordering::AcqRel) == 1;
        }
        ended_last
    }

    /// Whether all bytes are copied, and visible to the caller.
    pub(crate) fn is_done(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }

    pub(crate) fn samples(&self) -> usize {
        self.copies.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.copies.iter().map(|(sample, _)| sample.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use foresee_data_tier::{Completions, Fingerprint, RamTier, SampleKey, TagHash};
    use foresee_units::{Bytes, SampleId};

    use super::*;
    use crate::buffer::BufferPool;

    fn key(id: u64) -> SampleKey {
        SampleKey { fingerprint: Fingerprint([1; 16]), id: SampleId(id), tag: TagHash(id) }
    }

    #[test]
    fn several_threads_copy_every_sample_once_and_one_of_them_ends_the_last() {
        const LEN: usize = 4096;
        let ram = RamTier::new(Bytes::new(1 << 20), Completions::new(|| {})).expect("memory");
        let keys: Vec<_> = (0..100).map(key).collect();
        for (fill, key) in (0_u8..).zip(&keys) {
            ram.write_from(key, &[fill; LEN]);
        }
        for _ in 0..50 {
            let buffer = Arc::new(BufferPool::new(Bytes::new(1 << 20), Arc::default())).lend(100 * LEN);
            buffer.ensure_mapped().expect("memory");
            let pins = keys.iter().enumerate().map(|(at, key)| (ram.pin(key).expect("held"), at * LEN));
            // SAFETY: the destinations are disjoint, and the threads below have ended before the bytes are read.
            let gather = unsafe { Gather::new(Arc::clone(&buffer), pins.collect()) };
            assert!(!gather.is_done());
            let last = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| gather.help())).collect();
                threads.into_iter().map(|thread| usize::from(thread.join().expect("ends"))).sum::<usize>()
            });
            assert_eq!((last, gather.is_done()), (1, true));
            // SAFETY: all copies have ended.
            let bytes = unsafe { buffer.slice_mut(0, 100 * LEN) };
            assert!((0_u8..).zip(bytes.chunks(LEN)).all(|(fill, chunk)| chunk == [fill; LEN]));
        }
        assert_eq!(ram.pinned_bytes(), Bytes::ZERO);
    }
}
