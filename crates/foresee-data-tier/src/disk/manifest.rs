// SPDX-License-Identifier: Apache-2.0
//! The list of a lane's cells, left behind by a clean end so that the next start need not look for them.
//!
//! It exists only while its lane is closed: opening a lane takes it away, so after a crash there is none, and
//! never one that tells of cells that have been overwritten since. A hint all the same: what it says is
//! checked against the files, and each cell proves itself when it is read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use foresee_units::SampleId;
use serde::{Deserialize, Serialize};

use super::cell::layout;
use super::lane::Lane;
use crate::op::{Fingerprint, TagHash};

const VERSION: u32 = 1;

/// The file: this, in postcard, then its crc32c in four bytes, little end first.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    version: u32,
    fingerprint: [u8; 16],
    /// The next cell's sequence number.
    pub(super) sequence: u64,
    pub(super) segments: Vec<SegmentList>,
}

/// The cells of one segment, by address.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SegmentList {
    /// The number in the file's name.
    pub(super) number: u64,
    entries: Vec<Entry>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    /// Granules since the end of the cell before: mostly 0, one byte.
    gap: u64,
    id: u64,
    /// Eight bytes as they are: a hash does not get shorter.
    tag: [u8; 8],
    len: u64,
}

/// A cell that a list tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    /// First granule in its segment.
    pub(super) at: u64,
    pub(super) id: SampleId,
    pub(super) tag: TagHash,
    pub(super) len: u64,
}

impl SegmentList {
    /// Of the cells of segment `number`, sorted by address.
    pub(super) fn new(number: u64, cells: impl IntoIterator<Item = Listed>) -> Self {
        let mut end = 0;
        let entries = cells.into_iter().map(|Listed { at, id, tag, len }| {
            let gap = at - end;
            end = at + layout(len).0;
            Entry { gap, id: id.0, tag: tag.0.to_le_bytes(), len }
        });
        Self { number, entries: entries.collect() }
    }

    /// The cells up to the first whose address cannot be.
    pub(super) fn cells(&self) -> impl Iterator<Item = Listed> + '_ {
        let mut end = 0_u64;
        self.entries.iter().map_while(move |entry| {
            let at = end.checked_add(entry.gap)?;
            end = at.checked_add(layout(entry.len).0)?;
            let (id, tag) = (SampleId(entry.id), TagHash(u64::from_le_bytes(entry.tag)));
            Some(Listed { at, id, tag, len: entry.len })
        })
    }
}

impl Manifest {
    pub(super) fn new(fingerprint: Fingerprint, sequence: u64, segments: Vec<SegmentList>) -> Self {
        Self { version: VERSION, fingerprint: fingerprint.0, sequence, segments }
    }

    /// Reads and removes a lane's list. `None` if there is none, or none that is whole and of this version.
    pub(super) fn take(lane: &Lane, fingerprint: Fingerprint) -> Option<Self> {
        let path = lane.manifest_path();
        let _ = fs::remove_file(path.with_extension("tmp"));
        let bytes = fs::read(&path).ok()?;
        // If it cannot be removed it may be out of date one day: better none now than a wrong one then.
        fs::remove_file(&path).ok()?;
        Self::decode(&bytes).filter(|manifest| manifest.fingerprint == fingerprint.0)
    }

    /// Leaves the list behind if it takes `room` bytes or less; whether it did. Whole or not at all: a new
    /// file takes the name once its bytes are on the device.
    pub(super) fn leave(&self, lane: &Lane, room: u64) -> io::Result<bool> {
        let bytes = self.encode();
        if bytes.len() as u64 > room {
            return Ok(false);
        }
        let path = lane.manifest_path();
        let fresh = path.with_extension("tmp");
        write_through(&fresh, &bytes).inspect_err(|_| drop(fs::remove_file(&fresh)))?;
        fs::rename(&fresh, &path)?;
        File::open(&lane.dir)?.sync_all()?;
        Ok(true)
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = postcard::to_stdvec(self).expect("numbers and arrays of them always encode");
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
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

fn write_through(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use foresee_testkit::property;
    use proptest::prelude::*;

    fn cells() -> Vec<Listed> {
        let cell = |at, id, len| Listed { at, id: SampleId(id), tag: TagHash(id << 50), len };
        vec![cell(0, 1, 100), cell(3, 9, 0), cell(64, 70_000, 65_536)]
    }

    fn manifest() -> Manifest {
        Manifest::new(Fingerprint([5; 16]), 77, vec![SegmentList::new(4, cells())])
    }

    #[test]
    fn a_list_comes_back_as_it_was() {
        let back = Manifest::decode(&manifest().encode()).unwrap();
        assert_eq!(back, manifest());
        assert_eq!(back.segments[0].cells().collect::<Vec<_>>(), cells());
    }

    #[test]
    fn an_address_beyond_all_bounds_ends_the_list() {
        let entry = |gap, len| Entry { gap, id: 0, tag: [0; 8], len };
        let list = SegmentList { number: 0, entries: vec![entry(1, 5), entry(u64::MAX, 1), entry(0, 5)] };
        assert_eq!(list.cells().count(), 1);
        let list = SegmentList { number: 0, entries: vec![entry(1, u64::MAX), entry(0, u64::MAX)] };
        assert!(list.cells().count() <= 2);
    }

    proptest! {
        #![proptest_config(property(256))]

        #[test]
        fn a_list_that_was_changed_or_cut_is_none(at in any::<prop::sample::Index>(), flip in 1_u8..) {
            let whole = manifest().encode();
            let at = at.index(whole.len());
            let mut changed = whole.clone();
            changed[at] ^= flip;
            prop_assert_eq!(Manifest::decode(&changed), None);
            prop_assert_eq!(Manifest::decode(&whole[..at]), None);
        }

        #[test]
        fn no_bytes_at_all_make_it_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = body;
            let crc = crc32c::crc32c(&bytes);
            bytes.extend_from_slice(&crc.to_le_bytes());
            if let Some(manifest) = Manifest::decode(&bytes) {
                manifest.segments.iter().for_each(|list| drop(list.cells().collect::<Vec<_>>()));
            }
        }
    }
}
