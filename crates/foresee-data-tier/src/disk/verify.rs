// SPDX-License-Identifier: Apache-2.0
//! Verification of a partition: every entry that the next tier would find in it is read and checked.
//!
//! Corrupt entries stay: a tier checks each read itself, removes an entry that fails, and fetches its sample again.

use std::io::{self, IoSliceMut};
use std::sync::atomic::{AtomicBool, Ordering};

use foresee_units::Bytes;

use super::entry::{Entry, GRANULE, HEADER, layout};
use super::error::DiskError;
use super::inspect::PartitionUser;
use super::partition::Partition;
use super::recover::{OtherEntry, read_partition};
use super::segment::Segment;
use super::storage::{Kernel, Storage};

/// Threads that scan segments without a manifest: enough for a fast device.
const THREADS: usize = 4;
/// Maximum bytes of a payload that are in memory at once.
const WINDOW: usize = 1 << 20;

/// The result of a verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verification {
    /// Not verified, because a process uses it.
    InUse(PartitionUser),
    /// All entries were read.
    Complete {
        /// Number of entries.
        entries: u64,
        /// Bytes of their payloads.
        bytes: Bytes,
        /// Entries that failed, by segment and offset.
        corrupt: Vec<CorruptEntry>,
    },
    /// The caller ended it.
    Cancelled,
}

/// An entry that fails its checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorruptEntry {
    /// The number in the name of its segment's file.
    pub segment: u64,
    /// Its position in that file, in bytes.
    pub offset: u64,
    /// Bytes of its header, payload and padding.
    pub bytes: Bytes,
    /// The check that failed.
    pub fault: EntryFault,
}

/// A check of an entry that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryFault {
    /// The header is damaged or belongs to another entry than the manifest lists.
    Header,
    /// The payload does not have its checksum.
    Payload,
    /// The kernel's error.
    Unreadable(String),
}

/// Check all entries of a locked partition.
pub(super) fn verify_partition(
    partition: &Partition,
    on_progress: &dyn Fn(u64, u64),
    cancel: &AtomicBool,
) -> Result<Verification, DiskError> {
    let mut recovered = read_partition(&partition.folder, THREADS, true)?;
    recovered.others.sort_unstable_by_key(|entry| entry.at);
    let (mut entries, mut bytes, mut corrupt) = (0, 0_u64, Vec::new());
    let mut window = Vec::new();
    for entry in &recovered.others {
        if cancel.load(Ordering::Relaxed) {
            return Ok(Verification::Cancelled);
        }
        let segment = &recovered.segments[Segment::nth_of(entry.at)];
        if let Some(fault) = check(segment, entry, &mut window) {
            let bytes = Bytes::new(layout(entry.len).0 * GRANULE);
            let offset = segment.offset(entry.at);
            corrupt.push(CorruptEntry { segment: segment.number(), offset, bytes, fault });
        }
        (entries, bytes) = (entries + 1, bytes + entry.len);
        on_progress(entries, bytes);
    }
    Ok(Verification::Complete { entries, bytes: Bytes::new(bytes), corrupt })
}

fn check(segment: &Segment, listed: &OtherEntry, window: &mut Vec<u8>) -> Option<EntryFault> {
    let at = segment.offset(listed.at);
    let mut header = [0; HEADER];
    if let Err(error) = read(segment, &mut header, at) {
        return Some(error);
    }
    let Some(entry) =
        Entry::decode(&header).filter(|entry| entry.key == listed.key && entry.len == listed.len)
    else {
        return Some(EntryFault::Header);
    };
    let (mut done, mut crc) = (0, 0);
    while done < entry.len {
        let len = usize::try_from(entry.len - done).map_or(WINDOW, |rest| rest.min(WINDOW));
        window.resize(len, 0);
        if let Err(error) = read(segment, window, at + HEADER as u64 + done) {
            return Some(error);
        }
        crc = crc32c::crc32c_append(crc, window);
        done += len as u64;
    }
    (crc != entry.payload_crc).then_some(EntryFault::Payload)
}

fn read(segment: &Segment, bytes: &mut [u8], at: u64) -> Result<(), EntryFault> {
    let read = Kernel.read(segment.file(), &mut [IoSliceMut::new(bytes)], at);
    read.map_err(|error| match error.kind() {
        // The file is shorter than when it was listed.
        io::ErrorKind::UnexpectedEof => EntryFault::Payload,
        _ => EntryFault::Unreadable(error.to_string()),
    })
}
