// SPDX-License-Identifier: Apache-2.0
//! A file of entries, and its place in the tier's one address space.

use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};

use super::entry::GRANULE;

/// Granules from one segment's first to the next one's. Far more than a file has, so that free room at the
/// end of one never joins with free room at the start of the next.
const STRIDE: u64 = 1 << 40;

/// After this many bytes a segment is sent to the device and its pages leave memory: enough to keep a disk
/// busy, little enough that a dirty page does not wait for long.
const SETTLE: u64 = 32 << 20;

#[derive(Debug)]
pub(super) struct Segment {
    file: File,
    number: u64,
    nth: usize,
    granules: u64,
    unsettled: AtomicU64,
}

impl Segment {
    /// The `nth` segment of its tier, `len` bytes long.
    pub(super) fn new(file: File, number: u64, nth: usize, len: u64) -> Self {
        Self { file, number, nth, granules: (len / GRANULE).min(STRIDE - 1), unsettled: AtomicU64::new(0) }
    }

    /// Which of a tier's segments an address lies in.
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

    /// Where an address lies in the file, in bytes.
    pub(super) const fn offset(&self, at: u64) -> u64 {
        (at - self.base()) * GRANULE
    }

    /// Counts what was written; whether it is time to settle.
    pub(super) fn wrote(&self, bytes: u64) -> bool {
        let before = self.unsettled.fetch_add(bytes, Ordering::Relaxed);
        let due = before < SETTLE && before + bytes >= SETTLE;
        if due {
            self.unsettled.store(0, Ordering::Relaxed);
        }
        due
    }
}
