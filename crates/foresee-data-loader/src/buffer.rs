// SPDX-License-Identifier: Apache-2.0
//! Memory of batches: mapped once, filled by tiers, lent to Python, used again.
//!
//! A buffer gets its memory when the first byte is about to come, not when its batch is opened: until then the memory
//! would be idle, and the buffer returned last, which is still in the processor's caches, is used first. A batch that was
//! handed out belongs to the consumer, and its memory comes back when the consumer drops it, even after the loader is
//! gone. When a batch may be opened is decided by `staging`.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use foresee_data_tier::{Dest, Keeper, Payload};
use foresee_units::Bytes;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::errors::LoaderError;
use crate::waker::Waker;

/// The smallest buffer; smaller batches share its size.
const SMALLEST: usize = 1 << 16;
/// A free buffer serves a batch of at least two thirds of its size.
const REUSE: (usize, usize) = (3, 2);

/// Lends out buffers and takes them back.
#[derive(Debug)]
pub(crate) struct BufferPool {
    free: Mutex<Vec<Mapping>>,
    /// Bytes of lent buffers.
    lent: AtomicU64,
    /// Free buffers are kept mapped while all buffers together stay within this.
    mapped_max: Bytes,
    /// Wakes the driver at the next return, if it waits for one.
    waker: Arc<Waker>,
    awaited: AtomicBool,
}

impl BufferPool {
    /// A pool for a staging buffer of `staging` bytes: it keeps as much as that mapped, and an eighth for sizes that
    /// are rounded up.
    pub(crate) fn new(staging: Bytes, waker: Arc<Waker>) -> Self {
        let mapped_max = staging.saturating_add(Bytes::new(staging.get() / 8));
        Self {
            free: Mutex::default(),
            lent: AtomicU64::new(0),
            mapped_max,
            waker,
            awaited: AtomicBool::new(false),
        }
    }

    /// Wakes the driver when the next buffer comes back.
    pub(crate) fn wake_when_returned(&self) {
        self.awaited.store(true, Ordering::Release);
    }

    /// A buffer of `len` bytes, without memory as yet.
    pub(crate) fn lend(self: &Arc<Self>, len: usize) -> Arc<Buffer> {
        Arc::new(Buffer { mapping: OnceLock::new(), len, home: Arc::downgrade(self) })
    }

    /// At least `len` bytes, all of them initialised (zero or an earlier batch's).
    fn give(&self, len: usize) -> Result<Mapping, LoaderError> {
        let size = size_for(len);
        let reused = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            let fits = |mapping: &Mapping| mapping.size >= len && mapping.size / REUSE.0 <= size / REUSE.1;
            // The last one returned is the warmest.
            free.iter().rposition(fits).map(|place| free.remove(place))
        };
        let mapping = reused.map_or_else(|| Mapping::new(size), Ok)?;
        self.lent.fetch_add(mapping.size as u64, Ordering::Relaxed);
        Ok(mapping)
    }

    /// Bytes of the buffers now lent out.
    pub(crate) fn lent(&self) -> Bytes {
        Bytes::new(self.lent.load(Ordering::Relaxed))
    }

    /// Keeps the newest buffers and unmaps the oldest: when the batch size changes, the old size drains.
    fn take_back(&self, mapping: Mapping) {
        let lent = self.lent.fetch_sub(mapping.size as u64, Ordering::Relaxed) - mapping.size as u64;
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(mapping);
        let mut mapped = Bytes::new(lent) + free.iter().map(|mapping| Bytes::new(mapping.size as u64)).sum();
        let mut drained = 0;
        while mapped > self.mapped_max && drained < free.len() {
            mapped = mapped.saturating_sub(Bytes::new(free[drained].size as u64));
            drained += 1;
        }
        let drained: Vec<_> = free.drain(..drained).collect();
        drop(free);
        drop(drained);
    }
}

/// Rounded up by at most an eighth, so that batches of like size use the same buffers.
const fn size_for(len: usize) -> usize {
    if len <= SMALLEST {
        return SMALLEST;
    }
    let step = 1_usize << (len.ilog2() - 3);
    len.div_ceil(step).saturating_mul(step)
}

/// One lent buffer; goes home when its last owner is gone.
#[derive(Debug)]
pub(crate) struct Buffer {
    mapping: OnceLock<Mapping>,
    len: usize,
    home: Weak<BufferPool>,
}

impl Buffer {
    /// Takes memory, unless it has some: to be called before the first of the functions below.
    pub(crate) fn take_memory(&self) -> Result<(), LoaderError> {
        if self.mapping.get().is_some() {
            return Ok(());
        }
        let mapping = match self.home.upgrade() {
            Some(pool) => pool.give(self.len)?,
            None => Mapping::new(size_for(self.len))?,
        };
        self.mapping.set(mapping).expect("one thread, the driver's, gives buffers their memory");
        Ok(())
    }

    fn mapping(&self) -> &Mapping {
        self.mapping.get().expect("a buffer takes memory before it is used")
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
            if home.awaited.swap(false, Ordering::AcqRel) {
                home.waker.wake();
            }
        }
    }
}

/// Ordinary pages: batches are filled and read from front to back and their memory is used again, so that huge ones would
/// save little, and cost much where the system has none at hand.
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
    fn new(size: usize) -> Result<Self, LoaderError> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice aliases nothing.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), size, protection, MapFlags::PRIVATE) };
        let start = start.map_err(|errno| LoaderError::NoMemory {
            wanted: Bytes::new(size as u64),
            why: errno.to_string(),
        })?;
        let start = NonNull::new(start.cast::<u8>()).expect("mmap never returns null");
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

    fn pool() -> Arc<BufferPool> {
        Arc::new(BufferPool::new(Bytes::new(1 << 30), Arc::default()))
    }

    fn filled(pool: &Arc<BufferPool>, len: usize) -> Arc<Buffer> {
        let buffer = pool.lend(len);
        buffer.take_memory().expect("memory");
        buffer
    }

    #[test]
    fn a_returned_buffer_is_lent_again_with_the_same_memory() {
        let pool = pool();
        let first = filled(&pool, 100_000);
        let start = first.start();
        assert_eq!(pool.lent(), Bytes::new(106_496));
        drop(first);
        assert_eq!(pool.lent(), Bytes::ZERO);
        assert_eq!(filled(&pool, 90_000).start(), start);
    }

    #[test]
    fn memory_is_taken_when_it_is_needed_and_once() {
        let pool = pool();
        let buffer = pool.lend(100_000);
        assert_eq!(pool.lent(), Bytes::ZERO);
        buffer.take_memory().expect("memory");
        let start = buffer.start();
        buffer.take_memory().expect("memory");
        assert_eq!((buffer.start(), pool.lent()), (start, Bytes::new(106_496)));
    }

    #[test]
    fn a_size_is_rounded_by_an_eighth_at_most() {
        for len in [1, SMALLEST, SMALLEST + 1, 100_000, 7_040_000, 12 << 20, (1 << 40) + 1] {
            let size = size_for(len);
            assert!(size >= len && (size == SMALLEST || size <= len + len / 8), "{len} -> {size}");
        }
    }

    #[test]
    fn what_the_budget_does_not_cover_is_given_back_to_the_system() {
        let pool = Arc::new(BufferPool::new(Bytes::new(4 << 20), Arc::default()));
        let lent: Vec<_> = (0..20).map(|_| filled(&pool, 1 << 20)).collect();
        drop(lent);
        let free = pool.free.lock().expect("nobody panicked");
        assert_eq!(free.len(), 4);
    }

    #[test]
    fn a_driver_that_waits_for_memory_is_woken_when_some_comes_back() {
        let waker = Arc::new(Waker::default());
        let pool = Arc::new(BufferPool::new(Bytes::new(1 << 20), Arc::clone(&waker)));
        let buffer = filled(&pool, 10);
        pool.wake_when_returned();
        drop(buffer);
        waker.wait(None);
    }

    #[test]
    fn a_batch_that_outlives_its_loader_keeps_its_memory() {
        let pool = pool();
        let buffer = filled(&pool, 10);
        drop(pool);
        // SAFETY: the only user of the buffer.
        unsafe { buffer.slice_mut(0, 10) }.fill(7);
        // SAFETY: nobody writes any more.
        assert_eq!(unsafe { buffer.payload(0, 10) }.as_slice(), [7; 10]);
    }

    #[test]
    #[should_panic(expected = "a range inside its buffer")]
    fn a_range_outside_the_buffer_is_refused() {
        let buffer = filled(&pool(), 1);
        // SAFETY: refused before any access.
        let _ = unsafe { buffer.dest(SMALLEST, 1) };
    }
}
