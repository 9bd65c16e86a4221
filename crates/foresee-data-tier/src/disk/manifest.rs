// SPDX-License-Identifier: Apache-2.0
//! The list of a partition's entries, written at an orderly end so that the next start need not search for them.
//!
//! It exists only while its partition is closed: opening a partition removes it, so after a crash there is none, and
//! never one that names entries that were overwritten since. It is a hint all the same: what it says is checked against
//! the files, and each entry proves itself when it is read.

use std::io::{self, Read, Write};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::entry::layout;
use super::folder::Folder;
use super::partition::{MANIFEST, NEW_MANIFEST};
use crate::identity::EntryKey;

const VERSION: u32 = 2;

/// The file: this, in postcard, then its crc32c in four bytes, little end first.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    version: u32,
    /// The next entry's sequence number.
    pub(super) sequence: u64,
    pub(super) segments: Vec<SegmentList>,
}

/// The entries of one segment, by address.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SegmentList {
    /// The number in the file's name.
    pub(super) number: u64,
    entries: Vec<Line>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Line {
    /// Granules since the end of the entry before: mostly 0, one byte.
    gap: u64,
    key: [u8; 16],
    len: u64,
    unused_runs: u64,
}

/// Bytes that one entry takes in the file, seldom more.
pub(super) const LINE_BYTES: u64 = 24;

/// An entry that a manifest names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ManifestEntry {
    /// First granule in its segment.
    pub(super) at: u64,
    pub(super) key: EntryKey,
    pub(super) len: u64,
    /// How many runs ended since one whose data set contained it.
    pub(super) unused_runs: u64,
}

impl SegmentList {
    /// Of the entries of segment `number`, sorted by address.
    pub(super) fn new(number: u64, entries: impl IntoIterator<Item = ManifestEntry>) -> Self {
        let mut end = 0;
        let lines = entries.into_iter().map(|ManifestEntry { at, key, len, unused_runs }| {
            let gap = at - end;
            end = at + layout(len).0;
            Line { gap, key: key.0, len, unused_runs }
        });
        Self { number, entries: lines.collect() }
    }

    /// The entries up to the first whose address is impossible.
    pub(super) fn entries(&self) -> impl Iterator<Item = ManifestEntry> + '_ {
        let mut end = 0_u64;
        self.entries.iter().map_while(move |line| {
            let at = end.checked_add(line.gap)?;
            end = at.checked_add(layout(line.len).0)?;
            Some(ManifestEntry { at, key: EntryKey(line.key), len: line.len, unused_runs: line.unused_runs })
        })
    }
}

impl Manifest {
    pub(super) fn new(sequence: u64, segments: Vec<SegmentList>) -> Self {
        Self { version: VERSION, sequence, segments }
    }

    /// Read a partition's manifest. `None` if there is none, or it is damaged or of another version.
    pub(super) fn read(folder: &Folder) -> Option<Self> {
        let mut bytes = Vec::new();
        folder.open_file(MANIFEST, OFlags::RDONLY).ok()??.read_to_end(&mut bytes).ok()?;
        Self::decode(&bytes)
    }

    /// Read and remove a partition's manifest.
    pub(super) fn take(folder: &Folder) -> Option<Self> {
        let _ = folder.remove_file(NEW_MANIFEST);
        let manifest = Self::read(folder);
        // If it cannot be removed it may be out of date one day: better none now than a wrong one then.
        folder.remove_file(MANIFEST).ok()?;
        manifest
    }

    /// The file's bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = postcard::to_stdvec(self).expect("numbers and arrays of them always encode");
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Write the encoded manifest. Whole or not at all: a new file takes the name once its bytes are on the device.
    pub(super) fn write(folder: &Folder, bytes: &[u8]) -> io::Result<()> {
        folder.remove_file(NEW_MANIFEST)?;
        let mut file = folder.create_file(NEW_MANIFEST)?;
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        written.inspect_err(|_| drop(folder.remove_file(NEW_MANIFEST)))?;
        folder.rename(NEW_MANIFEST, folder, MANIFEST)?;
        folder.sync()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, crc) = bytes.split_last_chunk::<4>()?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
            return None;
        }
        let (manifest, rest) = postcard::take_from_bytes::<Self>(body).ok()?;
        (rest.is_empty() && manifest.version == VERSION).then_some(manifest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foresee_testkit::property;
    use proptest::prelude::*;

    fn entries() -> Vec<ManifestEntry> {
        let entry =
            |at, id, len| ManifestEntry { at, key: EntryKey([id; 16]), len, unused_runs: u64::from(id) };
        vec![entry(0, 1, 100), entry(3, 9, 0), entry(64, 70, 65_536)]
    }

    fn manifest() -> Manifest {
        Manifest::new(77, vec![SegmentList::new(4, entries())])
    }

    #[test]
    fn a_manifest_comes_back_as_it_was() {
        let back = Manifest::decode(&manifest().encode()).unwrap();
        assert_eq!(back, manifest());
        assert_eq!(back.segments[0].entries().collect::<Vec<_>>(), entries());
    }

    #[test]
    fn an_address_beyond_all_bounds_ends_the_list() {
        let line = |gap, len| Line { gap, key: [0; 16], len, unused_runs: 0 };
        let list = SegmentList { number: 0, entries: vec![line(1, 5), line(u64::MAX, 1), line(0, 5)] };
        assert_eq!(list.entries().count(), 1);
        let list = SegmentList { number: 0, entries: vec![line(1, u64::MAX), line(0, u64::MAX)] };
        assert!(list.entries().count() <= 2);
    }

    proptest! {
        #![proptest_config(property(256))]

        #[test]
        fn a_manifest_that_was_changed_or_cut_is_none(at in any::<prop::sample::Index>(), flip in 1_u8..) {
            let whole = manifest().encode();
            let at = at.index(whole.len());
            let mut changed = whole.clone();
            changed[at] ^= flip;
            prop_assert_eq!(Manifest::decode(&changed), None);
            prop_assert_eq!(Manifest::decode(&whole[..at]), None);
        }

        #[test]
        fn no_bytes_make_it_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = body;
            let crc = crc32c::crc32c(&bytes);
            bytes.extend_from_slice(&crc.to_le_bytes());
            if let Some(manifest) = Manifest::decode(&bytes) {
                manifest.segments.iter().for_each(|list| drop(list.entries().collect::<Vec<_>>()));
            }
        }
    }
}
