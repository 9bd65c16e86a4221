// SPDX-License-Identifier: Apache-2.0
//! Where the samples of a data set are in the slab: a table in shared memory with one word per sample.
//!
//! The host writes the table, and consumers map it read-only. A consumer reads the word of a sample, copies the bytes, and
//! reads the word again: if it has changed, the bytes may be those of another sample, and the copy is discarded. So a
//! sample in memory is found and copied without a message, and the host never waits for a copy.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use foresee_units::{Bytes, SampleId};
use rustix::fs::MemfdFlags;

use super::mapping::Mapping;
use super::sealed::{self, SLAB_SEALS};
use super::view::SlabView;
use crate::error::NodeError;
use crate::fork::Descriptor;

/// Alignment of samples in the slab: a cache line.
pub const SAMPLE_ALIGN: u64 = 64;
/// Bytes of the length, a little-endian number, that is before the bytes of a sample where the slab alone knows it.
pub const LENGTH_BYTES: usize = size_of::<u64>();
/// Bits of the sequence number.
const SEQUENCE_BITS: u32 = 24;
/// Bytes of data that a word can address: 64 TiB.
pub(crate) const SLAB_BYTES_MAX: u64 = SAMPLE_ALIGN << (u64::BITS - SEQUENCE_BITS);
const WORD: u64 = size_of::<u64>() as u64;
const PAGE: u64 = 4096;

/// The word of a sample: the place of its first byte in units of [`SAMPLE_ALIGN`], and a sequence number in the 24 low
/// bits, which the host raises when it publishes the sample and when it withdraws it. It is odd while the sample is there.
///
/// A copy would have to last for 2^23 publications of its sample for the same word to return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlabLocation(u64);

impl SlabLocation {
    /// A word of another process, which may be any.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The word.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether the sample is in the slab.
    pub const fn is_valid(self) -> bool {
        self.0 & 1 == 1
    }

    /// The first byte, from the start of the slab; meaningless without the sample.
    pub const fn offset(self) -> u64 {
        (self.0 >> SEQUENCE_BITS) * SAMPLE_ALIGN
    }

    /// The word after this one, with the sample at `offset`, or without it.
    const fn next(self, offset: u64) -> Self {
        let sequence = (self.0 + 1) & ((1 << SEQUENCE_BITS) - 1);
        Self((offset / SAMPLE_ALIGN) << SEQUENCE_BITS | sequence)
    }
}

/// The table of a data set as the host of the cache sees it, with its memory, which is allocated as a whole.
#[derive(Debug)]
pub struct LocationTable {
    words: Words,
    file: Descriptor,
}

/// A read-only view of the table of a data set.
#[derive(Debug)]
pub struct LocationView(Words);

/// The mapped words.
#[derive(Debug)]
struct Words {
    mapping: Mapping,
    samples: u64,
}

impl LocationTable {
    /// Create the table of a data set of `samples` samples, none of which is in the slab. It takes 8 bytes per sample, which
    /// are charged to this process.
    ///
    /// # Errors
    /// [`NodeError::NoMemory`], [`NodeError::TooManyDescriptors`], [`NodeError::Io`].
    pub fn create(samples: u64) -> Result<Self, NodeError> {
        let len = table_bytes(samples);
        let refused =
            |why: rustix::io::Errno| NodeError::NoMemory { bytes: Bytes::new(len), why: why.into() };
        let file = sealed::create("foresee-locations", MemfdFlags::empty()).map_err(refused)?;
        let file = Descriptor::new(file)?;
        rustix::fs::ftruncate(file.get()?, len).map_err(refused)?;
        // Allocated now: a consumer's access would charge the page to the consumer.
        sealed::allocate(file.get()?, 0, len)?;
        let mapping = Mapping::new(file.get()?, index(len), true)?;
        rustix::fs::fcntl_add_seals(file.get()?, SLAB_SEALS)
            .map_err(NodeError::io("sealing the locations of a data set (which needs Linux 5.1)"))?;
        Ok(Self { words: Words { mapping, samples }, file })
    }

    /// The descriptor that consumers receive.
    pub(crate) fn file(&self) -> Result<BorrowedFd<'_>, NodeError> {
        self.file.get()
    }

    /// The location of a sample.
    ///
    /// # Errors
    /// [`NodeError::NoSample`], [`NodeError::Forked`].
    pub fn get(&self, sample: SampleId) -> Result<SlabLocation, NodeError> {
        Ok(SlabLocation(self.words.word(sample)?.load(Ordering::Relaxed)))
    }

    /// Publish a sample whose bytes are complete at `offset` of the data, a multiple of [`SAMPLE_ALIGN`]. They do not
    /// change until it is withdrawn.
    ///
    /// # Errors
    /// [`NodeError::NoSample`], [`NodeError::Forked`].
    pub fn publish(&self, sample: SampleId, offset: u64) -> Result<SlabLocation, NodeError> {
        debug_assert!(offset.is_multiple_of(SAMPLE_ALIGN) && offset < SLAB_BYTES_MAX, "a place in a slab");
        let word = self.words.word(sample)?;
        let before = SlabLocation(word.load(Ordering::Relaxed));
        debug_assert!(!before.is_valid(), "a sample is withdrawn before it is published again");
        let location = before.next(offset);
        word.store(location.0, Ordering::Release);
        Ok(location)
    }

    /// Withdraw a sample. Afterwards its bytes may be overwritten: no consumer accepts a copy that contains a later byte.
    /// Without effect if it is not published.
    ///
    /// # Errors
    /// [`NodeError::NoSample`], [`NodeError::Forked`].
    pub fn withdraw(&self, sample: SampleId) -> Result<(), NodeError> {
        let word = self.words.word(sample)?;
        let before = SlabLocation(word.load(Ordering::Relaxed));
        if before.is_valid() {
            word.store(before.next(0).0, Ordering::Relaxed);
            // A consumer that sees one of the later bytes also sees this word.
            fence(Ordering::Release);
        }
        Ok(())
    }
}

impl LocationView {
    /// Verify and map the table of `samples` samples behind `file`, which may be closed afterwards.
    ///
    /// # Errors
    /// [`NodeError::NotSealed`] if it is another file, has other seals, or another size; [`NodeError::NoMemory`].
    pub(crate) fn open(file: BorrowedFd<'_>, samples: u64) -> Result<Self, NodeError> {
        let len = table_bytes(samples);
        sealed::verify(file, len, SLAB_SEALS, "table of locations")?;
        Ok(Self(Words { mapping: Mapping::new(file, index(len), false)?, samples }))
    }

    /// The location of a sample now.
    ///
    /// # Errors
    /// [`NodeError::NoSample`], [`NodeError::Forked`].
    pub fn get(&self, sample: SampleId) -> Result<SlabLocation, NodeError> {
        Ok(SlabLocation(self.0.word(sample)?.load(Ordering::Acquire)))
    }

    /// Copy a sample from `location` in the slab into `dest`, if it is still there afterwards.
    ///
    /// On `false` the host has withdrawn the sample, and the content of `dest` is undefined.
    ///
    /// # Errors
    /// [`NodeError::OutsideSlab`], [`NodeError::NoSample`]: the location is invalid, so the attachment must end.
    /// [`NodeError::Forked`].
    pub fn copy(
        &self,
        slab: &SlabView,
        sample: SampleId,
        location: SlabLocation,
        dest: &mut [u8],
    ) -> Result<bool, NodeError> {
        self.copy_at(slab, sample, location, location.offset(), dest)
    }

    /// Copy a sample that follows its length in the slab ([`LENGTH_BYTES`]); `None` if it is not there.
    ///
    /// # Errors
    /// As [`copy`](Self::copy).
    pub(crate) fn copy_with_length(
        &self,
        slab: &SlabView,
        sample: SampleId,
    ) -> Result<Option<Vec<u8>>, NodeError> {
        let location = self.get(sample)?;
        let mut length = [0; LENGTH_BYTES];
        if !self.copy(slab, sample, location, &mut length)? {
            return Ok(None);
        }
        let (length, first) = (u64::from_le_bytes(length), location.offset() + LENGTH_BYTES as u64);
        // Before the memory for the copy is allocated.
        slab.data(first, length)?;
        let mut bytes = vec![0; index(length)];
        Ok(self.copy_at(slab, sample, location, first, &mut bytes)?.then_some(bytes))
    }

    /// Copy the bytes from `offset` of the data, if the sample is at `location` before and afterwards.
    fn copy_at(
        &self,
        slab: &SlabView,
        sample: SampleId,
        location: SlabLocation,
        offset: u64,
        dest: &mut [u8],
    ) -> Result<bool, NodeError> {
        let from = slab.data(offset, dest.len() as u64)?;
        let word = self.0.word(sample)?;
        if !location.is_valid() || word.load(Ordering::Acquire) != location.0 {
            return Ok(false);
        }
        // SAFETY: within the mapping, which `dest` is no part of. Another process may write there meanwhile: any
        // bytes are valid `u8`, and they are discarded if the word has changed.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), dest.as_mut_ptr(), dest.len()) };
        // If one of the copied bytes is newer, the load below sees the newer word.
        fence(Ordering::Acquire);
        Ok(word.load(Ordering::Relaxed) == location.0)
    }
}

impl Words {
    fn word(&self, sample: SampleId) -> Result<&AtomicU64, NodeError> {
        if sample.0 >= self.samples {
            return Err(NodeError::NoSample { sample: sample.0, samples: self.samples });
        }
        let place = self.mapping.at(index(sample.0 * WORD))?;
        // SAFETY: in the table, aligned, and accessed only through atomics; a load works on read-only memory.
        Ok(unsafe { place.cast::<AtomicU64>().as_ref() })
    }
}

/// Bytes of the table of `samples` samples. The system has no memory for numbers that do not fit.
fn table_bytes(samples: u64) -> u64 {
    samples.max(1).saturating_mul(WORD).checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("the table fits into the address space")
}
