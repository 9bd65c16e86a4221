// SPDX-License-Identifier: Apache-2.0
//! The list of a partition's entries, written at an orderly end so that the next start need not scan for them.
//!
//! It exists only while its partition is closed: opening a partition removes it, unless its entries are only appended. So there is none after a crash, and
//! none that lists overwritten entries. It is only a hint: its content is checked against the files, and each entry
//! is verified when it is read.

use std::io::{self, Read, Write};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::entry::layout;
use super::folder::Folder;
use super::partition::{MANIFEST, NEW_MANIFEST};
use crate::identity::EntryKey;

const VERSION: u32 = 2;

/// The file: this struct in postcard, then its CRC-32C in four bytes, little-endian.
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
    entries: Vec<ManifestLine>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ManifestLine {
    /// Granules since the end of the previous entry: mostly 0, one byte.
    gap: u64,
    key: [u8; 16],
    len: u64,
    unused_runs: u64,
}

/// Bytes of one entry in the file, rarely more.
pub(super) const ENTRY_BYTES: u64 = 24;

/// An entry in a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ManifestEntry {
    /// First granule in its segment.
    pub(super) at: u64,
    pub(super) key: EntryKey,
    pub(super) len: u64,
    /// Number of finished runs since one whose data set contained it.
    pub(super) unused_runs: u64,
}

impl SegmentList {
    /// The list for segment `number` of `entries`, which are sorted by address.
    pub(super) fn new(number: u64, entries: impl IntoIterator<Item = ManifestEntry>) -> Self {
        let mut end = 0;
        let lines = entries.into_iter().map(|ManifestEntry { at, key, len, unused_runs }| {
            let gap = at - end;
            end = at + layout(len).0;
            ManifestLine { gap, key: key.0, len, unused_runs }
        });
        Self { number, entries: lines.collect() }
    }

    /// The entries up to the first invalid address.
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

    /// Read a partition's manifest; `None` if it is missing, damaged or of another version.
    pub(super) fn read(folder: &Folder) -> Option<Self> {
        let mut bytes = Vec::new();
        folder.open_file(MANIFEST, OFlags::RDONLY).ok()??.read_to_end(&mut bytes).ok()?;
        Self::decode(&bytes)
    }

    /// Read and remove a partition's manifest.
    pub(super) fn read_and_remove(folder: &Folder) -> Option<Self> {
        let _ = folder.remove_file(NEW_MANIFEST);
        let manifest = Self::read(folder);
        // A manifest that cannot be removed would become outdated, so it is not used.
        folder.remove_file(MANIFEST).ok()?;
        manifest
    }

    /// Encode the manifest.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = postcard::to_stdvec(self).expect("numbers and arrays of them always encode");
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Write the encoded manifest atomically: a new file is renamed once its bytes are on the device.
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
    fn a_manifest_is_decoded_unchanged() {
        let back = Manifest::decode(&manifest().encode()).unwrap();
        assert_eq!(back, manifest());
        assert_eq!(back.segments[0].entries().collect::<Vec<_>>(), entries());
    }

    #[test]
    fn an_overflowing_address_ends_the_list() {
        let line = |gap, len| ManifestLine { gap, key: [0; 16], len, unused_runs: 0 };
        let list = SegmentList { number: 0, entries: vec![line(1, 5), line(u64::MAX, 1), line(0, 5)] };
        assert_eq!(list.entries().count(), 1);
        let list = SegmentList { number: 0, entries: vec![line(1, u64::MAX), line(0, u64::MAX)] };
        assert!(list.entries().count() <= 2);
    }

    proptest! {
        #![proptest_config(property(256))]

        #[test]
        fn a_changed_or_cut_manifest_is_not_decoded(at in any::<prop::sample::Index>(), flip in 1_u8..) {
            let whole = manifest().encode();
            let at = at.index(whole.len());
            let mut changed = whole.clone();
            changed[at] ^= flip;
            prop_assert_eq!(Manifest::decode(&changed), None);
            prop_assert_eq!(Manifest::decode(&whole[..at]), None);
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = body;
            let crc = crc32c::crc32c(&bytes);
            bytes.extend_from_slice(&crc.to_le_bytes());
            if let Some(manifest) = Manifest::decode(&bytes) {
                manifest.segments.iter().for_each(|list| drop(list.entries().collect::<Vec<_>>()));
            }
        }
    }
}
