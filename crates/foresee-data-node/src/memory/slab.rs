// SPDX-License-Identifier: Apache-2.0
//! The slab as its host sees it: allocation, generations, and the bytes of samples.
//!
//! A slot is a number with a generation. The host chooses which bytes a slot describes, and raises the generation
//! before it overwrites them. Memory is never returned to the system before the slab ends: the seal that keeps
//! consumers from writing also forbids punching holes.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use foresee_units::Bytes;
use rustix::fs::MemfdFlags;

use super::layout::{CHUNK, SlabLayout};
use super::mapping::Mapping;
use super::sealed::{self, SLAB_SEALS};
use crate::error::NodeError;
use crate::fork::Descriptor;

/// Size and kind of a slab.
#[derive(Clone, Copy, Debug)]
pub struct SlabOptions {
    /// Slots, 1 or more; each takes 8 bytes.
    pub slots: u64,
    /// Bytes of samples, 1 or more.
    pub data: Bytes,
    /// Memory that the host may still use: the limit of its control group less the group's usage. `None` is unlimited.
    pub available: Option<Bytes>,
    /// Whether to use huge pages if enough of them are reserved (`vm.nr_hugepages`). The control group's limit does
    /// not apply to them.
    pub huge_pages: bool,
}

/// The slab of a node's cache, owned by its host.
#[derive(Debug)]
pub struct SlabMemory {
    mapping: Mapping,
    file: Descriptor,
    layout: SlabLayout,
    has_huge_pages: bool,
    /// Whether each chunk is allocated.
    committed: Box<[AtomicBool]>,
}

impl SlabMemory {
    /// Create a slab. Its size is fixed, and nothing is allocated.
    ///
    /// # Errors
    /// [`NodeError::SlabShape`], [`NodeError::SlabTooLarge`], [`NodeError::NoMemory`].
    pub fn create(options: &SlabOptions) -> Result<Self, NodeError> {
        let layout = SlabLayout::new(options.slots, options.data)?;
        let huge = if options.huge_pages { Self::map(layout, true).ok() } else { None };
        let has_huge_pages = huge.is_some();
        // Without them: too few reserved pages, or a kernel that has none.
        let (file, mapping) = match huge {
            Some(mapped) => mapped,
            None => Self::map_small_pages(layout, options.available)?,
        };
        rustix::fs::fcntl_add_seals(file.get()?, SLAB_SEALS)
            .map_err(NodeError::io("sealing the memory of the node's cache (which needs Linux 5.1)"))?;
        let committed = (0..layout.len / CHUNK).map(|_| AtomicBool::new(false)).collect();
        Ok(Self { mapping, file, layout, has_huge_pages, committed })
    }

    fn map_small_pages(
        layout: SlabLayout,
        available: Option<Bytes>,
    ) -> Result<(Descriptor, Mapping), NodeError> {
        let bytes = Bytes::new(layout.len);
        if let Some(available) = available.filter(|available| *available < bytes) {
            return Err(NodeError::SlabTooLarge { bytes, available });
        }
        let (file, mapping) = Self::map(layout, false)?;
        mapping.prefer_huge_pages();
        Ok((file, mapping))
    }

    fn map(layout: SlabLayout, is_huge: bool) -> Result<(Descriptor, Mapping), NodeError> {
        let refused =
            |why: rustix::io::Errno| NodeError::NoMemory { bytes: Bytes::new(layout.len), why: why.into() };
        let pages = if is_huge { MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB } else { MemfdFlags::empty() };
        let file = Descriptor::new(sealed::create("foresee-slab", pages).map_err(refused)?)?;
        rustix::fs::ftruncate(file.get()?, layout.len).map_err(refused)?;
        let len = SlabLayout::index(layout.len);
        // With huge pages, the system reserves all of them here or refuses.
        let mapping = Mapping::new(file.get()?, len, true)?;
        Ok((file, mapping))
    }

    /// Number of slots.
    pub fn slots(&self) -> u64 {
        self.layout.slots
    }

    /// Bytes of data, allocated or not.
    pub fn data_bytes(&self) -> Bytes {
        Bytes::new(self.layout.data)
    }

    /// Allocated bytes, with those of the table of generations. They are charged to the host.
    pub fn committed_bytes(&self) -> Bytes {
        let chunks = self.committed.iter().filter(|chunk| chunk.load(Ordering::Relaxed)).count();
        Bytes::new(chunks as u64 * CHUNK)
    }

    /// Whether it has reserved huge pages.
    pub fn has_huge_pages(&self) -> bool {
        self.has_huge_pages
    }

    /// The descriptor that consumers receive.
    pub(crate) fn file(&self) -> Result<BorrowedFd<'_>, NodeError> {
        self.file.get()
    }

    /// Allocate the pages of a `range` of the data, in units of 2 MiB. Pages that are allocated already cost nothing.
    ///
    /// The kernel charges a page to the process that touches it first, so this comes before bytes are handed out.
    ///
    /// # Errors
    /// [`NodeError::OutsideSlab`]; [`NodeError::NoMemory`], after which a part of the range may be allocated.
    pub fn commit(&self, range: Range<u64>) -> Result<(), NodeError> {
        self.allocate(&self.mapped(&range)?)
    }

    /// Allocate the page of the generation of `slot`, like [`commit`](Self::commit).
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn commit_slot(&self, slot: u64) -> Result<(), NodeError> {
        self.layout.locate(slot, 0, 0)?;
        let word = SlabLayout::word(slot) as u64;
        self.allocate(&(word..word + 1))
    }

    fn allocate(&self, mapped: &Range<u64>) -> Result<(), NodeError> {
        for chunk in SlabLayout::chunks(mapped) {
            let committed = &self.committed[SlabLayout::index(chunk)];
            if committed.load(Ordering::Acquire) {
                continue;
            }
            let bytes = chunk * CHUNK..(chunk + 1) * CHUNK;
            sealed::allocate(self.file.get()?, bytes.start, CHUNK)?;
            self.mapping.populate(SlabLayout::index(bytes.start)..SlabLayout::index(bytes.end));
            committed.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// The range of the mapping for a `range` of the data.
    fn mapped(&self, range: &Range<u64>) -> Result<Range<u64>, NodeError> {
        let length = range.end.saturating_sub(range.start);
        let start = self.layout.locate(0, range.start, length)? as u64;
        Ok(start..start + length)
    }

    /// Return the memory of a committed `range` of the data, to read an object or a file into it.
    ///
    /// Consumers that hold an older generation may read these bytes at any time, and discard them. The caller gives a
    /// range to one writer at a time, and calls [`invalidate`](Self::invalidate) first.
    ///
    /// # Errors
    /// [`NodeError::OutsideSlab`], [`NodeError::NotCommitted`], [`NodeError::Forked`].
    pub fn data(&self, range: Range<u64>) -> Result<NonNull<[u8]>, NodeError> {
        let mapped = self.mapped(&range)?;
        let is_committed = |chunk| self.committed[SlabLayout::index(chunk)].load(Ordering::Acquire);
        if !SlabLayout::chunks(&mapped).all(is_committed) {
            return Err(NodeError::NotCommitted { offset: range.start, end: range.end });
        }
        let start = self.mapping.at(SlabLayout::index(mapped.start))?;
        Ok(NonNull::slice_from_raw_parts(start, SlabLayout::index(mapped.end - mapped.start)))
    }

    /// The generation of `slot`, 0 at the start.
    ///
    /// # Errors
    /// [`NodeError::OutsideSlab`], [`NodeError::Forked`].
    pub fn generation(&self, slot: u64) -> Result<u64, NodeError> {
        Ok(self.word(slot)?.load(Ordering::Relaxed))
    }

    /// Raise the generation of `slot` and return it. Afterwards its bytes may be overwritten: no reader accepts them
    /// under an older generation.
    ///
    /// # Errors
    /// [`NodeError::OutsideSlab`], [`NodeError::Forked`].
    pub fn invalidate(&self, slot: u64) -> Result<u64, NodeError> {
        let before = self.word(slot)?.fetch_add(1, Ordering::Relaxed);
        // A reader that sees one of the later bytes also sees the generation.
        fence(Ordering::Release);
        Ok(before.wrapping_add(1))
    }

    /// Invalidate `slot`, copy `bytes` to `offset` of the data, and return the generation under which to publish them.
    ///
    /// # Errors
    /// [`NodeError::OutsideSlab`], [`NodeError::NotCommitted`], [`NodeError::Forked`]; the slot keeps its generation.
    ///
    /// # Safety
    /// No other thread of this process accesses that range of the data during the call.
    pub unsafe fn write(&self, slot: u64, offset: u64, bytes: &[u8]) -> Result<u64, NodeError> {
        let to = self.data(offset..offset.saturating_add(bytes.len() as u64))?;
        let generation = self.invalidate(slot)?;
        // SAFETY: within the mapping; the caller excludes other writers, and `bytes` are no part of it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast().as_ptr(), bytes.len()) };
        Ok(generation)
    }

    fn word(&self, slot: u64) -> Result<&AtomicU64, NodeError> {
        self.layout.locate(slot, 0, 0)?;
        let place = self.mapping.at(SlabLayout::word(slot))?;
        // SAFETY: in the table, aligned, and accessed only through atomics.
        Ok(unsafe { place.cast::<AtomicU64>().as_ref() })
    }
}
