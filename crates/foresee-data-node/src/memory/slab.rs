// SPDX-License-Identifier: Apache-2.0
//! The slab as its host sees it: allocation, and the bytes of samples.
//!
//! Memory is never returned to the system before the slab ends: the seal that keeps consumers from writing also forbids
//! punching holes.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

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
        let layout = SlabLayout::new(options.data)?;
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

    /// Bytes of data, allocated or not.
    pub fn data_bytes(&self) -> Bytes {
        Bytes::new(self.layout.data)
    }

    /// Allocated bytes, which are charged to the host.
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
        self.check(&range)?;
        for chunk in SlabLayout::chunks(&range) {
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

    /// Check that a `range` lies in the data, and return its start in the mapping.
    fn check(&self, range: &Range<u64>) -> Result<usize, NodeError> {
        self.layout.locate(range.start, range.end.saturating_sub(range.start))
    }

    /// Return the memory of a committed `range` of the data, to read an object or a file into it.
    ///
    /// Consumers that know an older location may read these bytes at any time, and discard them. The caller gives a range to
    /// one writer at a time, and [withdraws](super::LocationTable::withdraw) the sample that was there first.
    ///
    /// # Errors
    /// [`NodeError::OutsideSlab`], [`NodeError::NotCommitted`], [`NodeError::Forked`].
    pub fn data(&self, range: Range<u64>) -> Result<NonNull<[u8]>, NodeError> {
        let start = self.check(&range)?;
        let is_committed = |chunk| self.committed[SlabLayout::index(chunk)].load(Ordering::Acquire);
        if !SlabLayout::chunks(&range).all(is_committed) {
            return Err(NodeError::NotCommitted { offset: range.start, end: range.end });
        }
        let len = SlabLayout::index(range.end.saturating_sub(range.start));
        Ok(NonNull::slice_from_raw_parts(self.mapping.at(start)?, len))
    }
}
