// SPDX-License-Identifier: Apache-2.0
//! Memory of batches: mapped once, filled by tiers, lent to Python, used again.
//!
//! Apart from the staging limit: that bounds what is *on its way* to the consumer; a batch that has been
//! handed out belongs to the consumer for as long as he likes, so keeping every batch costs memory, which is
//! counted, but never stalls the loader. Refuses to know what lies in a buffer.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use foresee_data_tier::{Dest, Keeper, Payload};
use foresee_units::Bytes;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::errors::LoaderError;

/// Buffers come in powers of two from here up, so that batches of like size use the same ones.
const SMALLEST: usize = 1 << 16;
/// How many free buffers are kept mapped; more are given back to the system.
const FREE_MAX: usize = 12;

/// Lends out buffers and takes them back.
#[derive(Debug, Default)]
pub(crate) struct BufferPool {
    free: Mutex<Vec<Mapping>>,
    mapped: AtomicU64,
}

impl BufferPool {
    /// A buffer of at least `len` bytes, all of them initialised (zero or an earlier batch's).
    pub(crate) fn lend(self: &Arc<Self>, len: usize) -> Result<Arc<Buffer>, LoaderError> {
        let size = len.max(SMALLEST).checked_next_power_of_two().unwrap_or(len);
        let reused = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            free.iter().position(|mapping| mapping.size == size).map(|place| free.swap_remove(place))
        };
        let mapping = match reused {
            Some(mapping) => mapping,
            None => Mapping::new(size).map_err(|error| LoaderError::NoMemory {
                wanted: Bytes::new(size as u64),
                why: error.to_string(),
            })?,
        };
        self.mapped.fetch_add(size as u64, Ordering::Relaxed);
        Ok(Arc::new(Buffer { mapping: Some(mapping), home: Arc::downgrade(self) }))
    }

    /// Bytes of the buffers now lent out.
    pub(crate) fn lent(&self) -> Bytes {
        Bytes::new(self.mapped.load(Ordering::Relaxed))
    }

    fn take_back(&self, mapping: Mapping) {
        self.mapped.fetch_sub(mapping.size as u64, Ordering::Relaxed);
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < FREE_MAX {
            free.push(mapping);
            return;
        }
        // The oldest goes, not the newest: when the batch size changes, the buffers of the old size drain.
        let oldest = std::mem::replace(&mut free[0], mapping);
        free.rotate_left(1);
        drop(free);
        drop(oldest);
    }
}

/// One lent buffer; goes home when its last owner is gone.
#[derive(Debug)]
pub(crate) struct Buffer {
    mapping: Option<Mapping>,
    home: Weak<BufferPool>,
}

impl Buffer {
    fn mapping(&self) -> &Mapping {
        self.mapping.as_ref().expect("only drop takes the mapping")
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.mapping().start
    }

    fn range(&self, offset: usize, len: usize) -> NonNull<u8> {
        let mapping = self.mapping();
        assert!(offset.checked_add(len).is_some_and(|end| end <= mapping.size), "a range inside its buffer");
        // SAFETY: the offset lies inside the mapping, as just checked.
        unsafe { mapping.start.add(offset) }
    }

    /// The right to fill a range.
    ///
    /// # Safety
    /// Nobody else may touch the range while the `Dest` lives.
    pub(crate) unsafe fn dest(self: &Arc<Self>, offset: usize, len: usize) -> Dest {
        let start = self.range(offset, len);
        // SAFETY: mapped and initialised as long as the keeper lives; exclusive by the caller's promise.
        unsafe { Dest::new(start, len, Arc::clone(self) as Keeper) }
    }

    /// The bytes of a range, to be kept.
    ///
    /// # Safety
    /// Nobody may write the range while the payload lives.
    pub(crate) unsafe fn payload(self: &Arc<Self>, offset: usize, len: usize) -> Payload {
        let start = self.range(offset, len);
        // SAFETY: mapped as long as the keeper lives; unchanging by the caller's promise.
        unsafe { Payload::new(start, len, Arc::clone(self) as Keeper) }
    }

    /// Fills a range now.
    ///
    /// # Safety
    /// Nobody else may touch the range during the call.
    #[expect(clippy::mut_from_ref, reason = "disjoint ranges of one buffer are filled by different owners")]
    pub(crate) unsafe fn slice_mut(&self, offset: usize, len: usize) -> &mut [u8] {
        // SAFETY: inside the mapping; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.range(offset, len).as_ptr(), len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let (Some(mapping), Some(home)) = (self.mapping.take(), self.home.upgrade()) {
            home.take_back(mapping);
        }
    }
}

#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    size: usize,
}

// SAFETY: a mapping is plain memory of the process; who may touch which range is `Buffer`'s contract.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(size: usize) -> rustix::io::Result<Self> {
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice aliases nothing.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
        };
        let start = NonNull::new(start.cast::<u8>()).expect("mmap never returns null");
        if size >= 1 << 21 {
            // SAFETY: the range was mapped above. Advice only: fewer page faults where huge pages exist.
            let _ = unsafe {
                rustix::mm::madvise(start.as_ptr().cast(), size, rustix::mm::Advice::LinuxHugepage)
            };
        }
        Ok(Self { start, size })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this size; the last owner is gone.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.size) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_returned_buffer_is_lent_again_with_the_same_memory() {
        let pool = Arc::new(BufferPool::default());
        let first = pool.lend(100_000).expect("memory");
        let start = first.start();
        assert_eq!(pool.lent(), Bytes::new(131_072));
        drop(first);
        assert_eq!(pool.lent(), Bytes::ZERO);
        assert_eq!(pool.lend(120_000).expect("memory").start(), start);
    }

    #[test]
    fn a_batch_that_outlives_its_loader_keeps_its_memory() {
        let pool = Arc::new(BufferPool::default());
        let buffer = pool.lend(10).expect("memory");
        drop(pool);
        // SAFETY: the only user of the buffer.
        unsafe { buffer.slice_mut(0, 10) }.fill(7);
        // SAFETY: nobody writes any more.
        assert_eq!(unsafe { buffer.payload(0, 10) }.as_slice(), [7; 10]);
    }

    #[test]
    #[should_panic(expected = "a range inside its buffer")]
    fn a_range_outside_the_buffer_is_refused() {
        let buffer = Arc::new(BufferPool::default()).lend(1).expect("memory");
        // SAFETY: refused before any access.
        let _ = unsafe { buffer.dest(SMALLEST, 1) };
    }
}
