// SPDX-License-Identifier: Apache-2.0
//! A file of entries, and its position in the tier's address space.

use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};

use super::entry::GRANULE;

/// Granules between the first granules of two segments. Far more than a file has, so that free extents of two
/// segments never merge.
const STRIDE: u64 = 1 << 40;

/// After this many bytes a segment is written to the device and its pages leave memory: enough to keep a disk busy,
/// and few enough that a dirty page does not wait for long.
const FLUSH_BYTES: u64 = 32 << 20;

#[derive(Debug)]
pub(super) struct Segment {
    file: File,
    number: u64,
    nth: usize,
    granules: u64,
    unflushed: AtomicU64,
}

impl Segment {
    /// The `nth` segment of its tier, `len` bytes long.
    pub(super) fn new(file: File, number: u64, nth: usize, len: u64) -> Self {
        Self { file, number, nth, granules: (len / GRANULE).min(STRIDE - 1), unflushed: AtomicU64::new(0) }
    }

    /// The index of the segment that contains an address.
    pub(super) fn nth_of(at: u64) -> usize {
        usize::try_from(at / STRIDE).expect("as many segments as fit a Vec")
    }

    pub(super) const fn file(&self) -> &File {
        &self.file
    }

    /// The number in the file's name.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// The address of its first granule.
    pub(super) const fn base(&self) -> u64 {
        self.nth as u64 * STRIDE
    }

    pub(super) const fn granules(&self) -> u64 {
        self.granules
    }

    /// The position of an address in the file, in bytes.
    pub(super) const fn offset(&self, at: u64) -> u64 {
        (at - self.base()) * GRANULE
    }

    /// Count written bytes; return whether the segment is due for a flush.
    pub(super) fn count_written(&self, bytes: u64) -> bool {
        let before = self.unflushed.fetch_add(bytes, Ordering::Relaxed);
        let due = before < FLUSH_BYTES && before + bytes >= FLUSH_BYTES;
        if due {
            self.unflushed.store(0, Ordering::Relaxed);
        }
        due
    }
}
