// SPDX-License-Identifier: Apache-2.0
//! Memory of batches: mapped once, filled by tiers, lent to Python, and reused.
//!
//! A buffer gets memory before its first byte arrives, and not when its batch is opened: until then the memory would be
//! idle. The buffer returned last, which is still in the processor's caches, is reused first. A delivered batch belongs
//! to the consumer, and its memory is returned when the consumer drops it, or unmapped if the loader is gone by then.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use foresee_data_tier::{Dest, MemoryOwner, Payload};
use foresee_units::Bytes;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::errors::LoaderError;
use crate::origin_reads::ReadMemory;
use crate::waker::Waker;

/// Size of the smallest buffer.
const SIZE_MIN: usize = 1 << 16;
/// A free buffer is reused for a batch of at least two thirds of its size.
const REUSE: (usize, usize) = (3, 2);

/// Lends buffers and reuses returned ones.
#[derive(Debug)]
pub(crate) struct BufferPool {
    free: Mutex<Vec<Mapping>>,
    /// Bytes of lent buffers.
    lent: AtomicU64,
    /// Free buffers stay mapped while all buffers together do not exceed this.
    mapped_max: Bytes,
    waker: Arc<Waker>,
    /// Whether the next return wakes the driver.
    is_awaited: AtomicBool,
}

impl BufferPool {
    /// Create the pool of a staging buffer of `staging` bytes. That much stays mapped, and an eighth for rounded sizes.
    pub(crate) fn new(staging: Bytes, waker: Arc<Waker>) -> Self {
        let mapped_max = staging.saturating_add(Bytes::new(staging.get() / 8));
        Self {
            free: Mutex::default(),
            lent: AtomicU64::new(0),
            mapped_max,
            waker,
            is_awaited: AtomicBool::new(false),
        }
    }

    /// Wake the driver when the next buffer is returned.
    pub(crate) fn wake_when_returned(&self) {
        self.is_awaited.store(true, Ordering::Release);
    }

    /// Lend a buffer of `len` bytes that is not mapped yet.
    pub(crate) fn lend(self: &Arc<Self>, len: usize) -> Arc<Buffer> {
        Arc::new(Buffer { mapping: OnceLock::new(), len, pool: Arc::downgrade(self) })
    }

    /// A mapping of at least `len` bytes, all of them initialised (zero or an earlier batch's).
    fn acquire(&self, len: usize) -> Result<Mapping, LoaderError> {
        let size = size_for(len);
        let reused = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            let fits = |mapping: &Mapping| mapping.size >= len && mapping.size / REUSE.0 <= size / REUSE.1;
            // The one returned last is most likely in the caches.
            free.iter().rposition(fits).map(|index| free.remove(index))
        };
        let mapping = reused.map_or_else(|| Mapping::new(size), Ok)?;
        self.lent.fetch_add(mapping.size as u64, Ordering::Relaxed);
        Ok(mapping)
    }

    /// Bytes of lent buffers.
    pub(crate) fn lent(&self) -> Bytes {
        Bytes::new(self.lent.load(Ordering::Relaxed))
    }

    /// Add a returned mapping, and unmap the oldest ones beyond the limit: buffers of an old batch size disappear.
    fn release(&self, mapping: Mapping) {
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

/// Round up by at most an eighth, so that batches of similar size share buffers.
const fn size_for(len: usize) -> usize {
    if len <= SIZE_MIN {
        return SIZE_MIN;
    }
    let step = 1_usize << (len.ilog2() - 3);
    len.div_ceil(step).saturating_mul(step)
}

/// One lent buffer; its memory returns to the pool when its last owner is gone.
#[derive(Debug)]
pub(crate) struct Buffer {
    mapping: OnceLock<Mapping>,
    len: usize,
    pool: Weak<BufferPool>,
}

impl Buffer {
    /// Map memory, unless it is mapped already. Required before the functions below.
    pub(crate) fn ensure_mapped(&self) -> Result<(), LoaderError> {
        if self.mapping.get().is_some() {
            return Ok(());
        }
        let mapping = match self.pool.upgrade() {
            Some(pool) => pool.acquire(self.len)?,
            None => Mapping::new(size_for(self.len))?,
        };
        self.mapping.set(mapping).expect("only the driver's thread maps buffers");
        Ok(())
    }

    fn mapping(&self) -> &Mapping {
        self.mapping.get().expect("a buffer is mapped before it is used")
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.mapping().start
    }

    fn range(&self, offset: usize, len: usize) -> NonNull<u8> {
        let mapping = self.mapping();
        assert!(offset.checked_add(len).is_some_and(|end| end <= mapping.size), "a range inside its buffer");
        // SAFETY: the offset is inside the mapping, as just checked.
        unsafe { mapping.start.add(offset) }
    }

    /// A range as the destination of a read.
    ///
    /// # Safety
    /// Nothing else may access the range while the `Dest` lives.
    pub(crate) unsafe fn dest(self: &Arc<Self>, offset: usize, len: usize) -> Dest {
        let start = self.range(offset, len);
        // SAFETY: mapped and initialised while the keeper lives; exclusive by the caller's contract.
        unsafe { Dest::new(start, len, Arc::clone(self) as MemoryOwner) }
    }

    /// A range as the payload of a write.
    ///
    /// # Safety
    /// Nothing may write the range while the payload lives.
    pub(crate) unsafe fn payload(self: &Arc<Self>, offset: usize, len: usize) -> Payload {
        let start = self.range(offset, len);
        // SAFETY: mapped while the keeper lives; unchanging by the caller's contract.
        unsafe { Payload::new(start, len, Arc::clone(self) as MemoryOwner) }
    }

    /// A range to access directly.
    ///
    /// # Safety
    /// Nothing else may access the range while the slice lives.
    #[expect(clippy::mut_from_ref, reason = "disjoint ranges of one buffer are filled by different owners")]
    pub(crate) unsafe fn slice_mut(&self, offset: usize, len: usize) -> &mut [u8] {
        // SAFETY: inside the mapping; exclusive by the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.range(offset, len).as_ptr(), len) }
    }
}

/// A range of a buffer, filled by one read.
#[derive(Debug)]
pub(crate) struct BufferRange {
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

impl BufferRange {
    /// The bytes.
    ///
    /// # Safety
    /// As [`Buffer::slice_mut`], for reading.
    pub(crate) unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: as required of the caller.
        unsafe { self.buffer.slice_mut(self.offset, self.len) }
    }
}

impl ReadMemory for BufferRange {
    fn ensure_mapped(&self) -> Result<(), LoaderError> {
        self.buffer.ensure_mapped()
    }

    unsafe fn dest(&self) -> Dest {
        // SAFETY: as required of the caller.
        unsafe { self.buffer.dest(self.offset, self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let (Some(mapping), Some(pool)) = (self.mapping.take(), self.pool.upgrade()) {
            pool.release(mapping);
            if pool.is_awaited.swap(false, Ordering::AcqRel) {
                pool.waker.wake();
            }
        }
    }
}

/// Memory in ordinary pages. Batches are written and read sequentially, and their memory is reused, so huge pages would
/// save little, and cost much on a system without free ones.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    size: usize,
}

// SAFETY: a mapping is plain memory of the process; access to its ranges is `Buffer`'s contract.
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
        // SAFETY: mapped by `new` with this size, and without owners.
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
        buffer.ensure_mapped().expect("memory");
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
    fn memory_is_mapped_when_it_is_needed_and_once() {
        let pool = pool();
        let buffer = pool.lend(100_000);
        assert_eq!(pool.lent(), Bytes::ZERO);
        buffer.ensure_mapped().expect("memory");
        let start = buffer.start();
        buffer.ensure_mapped().expect("memory");
        assert_eq!((buffer.start(), pool.lent()), (start, Bytes::new(106_496)));
    }

    #[test]
    fn a_size_is_rounded_by_an_eighth_at_most() {
        for len in [1, SIZE_MIN, SIZE_MIN + 1, 100_000, 7_040_000, 12 << 20, (1 << 40) + 1] {
            let size = size_for(len);
            assert!(size >= len && (size == SIZE_MIN || size <= len + len / 8), "{len} -> {size}");
        }
    }

    #[test]
    fn memory_beyond_the_budget_is_returned_to_the_system() {
        let pool = Arc::new(BufferPool::new(Bytes::new(4 << 20), Arc::default()));
        let lent: Vec<_> = (0..20).map(|_| filled(&pool, 1 << 20)).collect();
        drop(lent);
        let free = pool.free.lock().expect("no panic");
        assert_eq!(free.len(), 4);
    }

    #[test]
    fn a_driver_that_waits_for_memory_is_woken_by_a_return() {
        let waker = Arc::new(Waker::default());
        let pool = Arc::new(BufferPool::new(Bytes::new(1 << 20), Arc::clone(&waker)));
        let buffer = filled(&pool, 10);
        pool.wake_when_returned();
        drop(buffer);
        waker.wait(std::time::Duration::MAX);
    }

    #[test]
    fn a_batch_that_outlives_its_loader_keeps_its_memory() {
        let pool = pool();
        let buffer = filled(&pool, 10);
        drop(pool);
        // SAFETY: the only user of the buffer.
        unsafe { buffer.slice_mut(0, 10) }.fill(7);
        // SAFETY: the range is not written any more.
        assert_eq!(unsafe { buffer.payload(0, 10) }.as_slice(), [7; 10]);
    }

    #[test]
    #[should_panic(expected = "a range inside its buffer")]
    fn a_range_outside_the_buffer_is_refused() {
        let buffer = filled(&pool(), 1);
        // SAFETY: refused before any access.
        let _ = unsafe { buffer.dest(SIZE_MIN, 1) };
    }
}
