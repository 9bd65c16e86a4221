// SPDX-License-Identifier: Apache-2.0
//! Where the samples are in the segments that processes share, as far as this process has seen.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::hash::BuildHasherDefault;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::disk::entry::{Entry, GRANULE, HEADER, LARGE, PAGE, layout};
use crate::disk::manifest::{Manifest, ManifestEntry, SegmentList};
use crate::disk::recover::{KeyHasher, Recovered};
use crate::disk::segment::Segment;
use crate::identity::EntryKey;

/// The entries of a partition, and the end of the last one.
#[derive(Debug)]
pub(super) struct SampleIndex {
    /// Address and length of each sample.
    places: HashMap<EntryKey, (u64, u64), BuildHasherDefault<KeyHasher>>,
    segments: Vec<Arc<Segment>>,
    /// The address after the last entry.
    tail: u64,
    /// The next entry's sequence number.
    sequence: u64,
    /// The number of the next segment.
    next_number: u64,
    /// Bytes of all segments.
    allocated: u64,
    /// Number of entries in the manifest.
    listed: u64,
    /// Whether there may be entries that the manifest does not list.
    has_changed: bool,
}

/// The place of an entry.
#[derive(Debug)]
pub(super) struct SamplePlace {
    pub(super) segment: Arc<Segment>,
    pub(super) at: u64,
    /// Bytes of the payload.
    pub(super) len: u64,
    /// Of a new entry.
    pub(super) sequence: u64,
}

impl SampleIndex {
    /// The index of a partition that was read.
    pub(super) fn new(recovered: Recovered, has_manifest: bool) -> Self {
        let places: HashMap<_, _, _> =
            recovered.others.iter().map(|entry| (entry.key, (entry.at, entry.len))).collect();
        let start = recovered.segments.last().map_or(0, |segment| segment.base());
        // Addresses of the last segment are above all others.
        let ends = places.values().map(|&(at, len)| at + layout(len).0);
        let count = places.len() as u64;
        Self {
            tail: ends.max().map_or(start, |end| end.max(start)),
            sequence: recovered.sequence,
            next_number: recovered.segments.last().map_or(0, |segment| segment.number() + 1),
            allocated: recovered.allocated,
            segments: recovered.segments,
            listed: if has_manifest { count } else { 0 },
            has_changed: !has_manifest && count > 0,
            places,
        }
    }

    /// The place of a sample.
    pub(super) fn get(&self, key: &EntryKey) -> Option<SamplePlace> {
        let &(at, len) = self.places.get(key)?;
        let segment = Arc::clone(&self.segments[Segment::nth_of(at)]);
        Some(SamplePlace { segment, at, len, sequence: 0 })
    }

    /// The place for a new entry with a payload of `len` bytes; `None` if the last segment has no space for it.
    pub(super) fn next_place(&self, len: u64) -> Option<SamplePlace> {
        let segment = self.segments.last()?;
        let (granules, align) = layout(len);
        let at = self.tail.next_multiple_of(align);
        let is_inside = granules <= end_of(segment).saturating_sub(at);
        is_inside.then(|| SamplePlace { segment: Arc::clone(segment), at, len, sequence: self.sequence })
    }

    /// Add an entry that has been written at an address.
    pub(super) fn enter(&mut self, entry: &Entry, at: u64) {
        self.places.insert(entry.key, (at, entry.len));
        self.tail = self.tail.max(at + layout(entry.len).0);
        self.sequence = self.sequence.max(entry.sequence.saturating_add(1));
        self.has_changed = true;
    }

    /// Remove the entry at an address, which is damaged.
    pub(super) fn remove(&mut self, key: &EntryKey, at: u64) {
        if self.places.get(key).is_some_and(|&(known, _)| known == at) {
            self.places.remove(key);
            self.has_changed = true;
        }
    }

    /// Add the entries that follow in the last segment.
    pub(super) fn follow_tail(&mut self) {
        while let Some(segment) = self.segments.last() {
            // A large entry begins at the next page.
            let aligned = self.tail.next_multiple_of(PAGE / GRANULE);
            let found = entry_at(segment, self.tail).map(|entry| (entry, self.tail)).or_else(|| {
                let entry = entry_at(segment, aligned).filter(|entry| entry.len >= LARGE);
                entry.map(|entry| (entry, aligned))
            });
            let Some((entry, at)) = found else { return };
            self.enter(&entry, at);
        }
    }

    /// Add the next segment, whose file has `len` bytes.
    pub(super) fn adopt(&mut self, file: File, len: u64) {
        let segment = Segment::new(file, self.next_number, self.segments.len(), len);
        self.next_number += 1;
        self.allocated += len;
        self.tail = segment.base();
        self.segments.push(Arc::new(segment));
    }

    /// Bytes of all segments.
    pub(super) const fn allocated(&self) -> u64 {
        self.allocated
    }

    /// The number of the next segment.
    pub(super) const fn next_number(&self) -> u64 {
        self.next_number
    }

    /// Number of entries that the manifest does not list.
    pub(super) fn unlisted(&self) -> u64 {
        (self.places.len() as u64).saturating_sub(self.listed)
    }

    /// The manifest lists this many entries.
    pub(super) const fn set_listed(&mut self, listed: u64) {
        self.listed = listed;
    }

    /// Whether there may be entries that the manifest does not list.
    pub(super) const fn has_changed(&self) -> bool {
        self.has_changed
    }

    /// The manifest of all entries.
    pub(super) fn manifest(&self) -> Manifest {
        let mut all: Vec<_> = self.places.iter().map(|(&key, &(at, len))| (at, key, len)).collect();
        all.sort_unstable();
        let mut by_segment: BTreeMap<usize, Vec<ManifestEntry>> = BTreeMap::new();
        for (at, key, len) in all {
            let nth = Segment::nth_of(at);
            let at = at - self.segments[nth].base();
            by_segment.entry(nth).or_default().push(ManifestEntry { at, key, len, unused_runs: 0 });
        }
        let lists = self.segments.iter().enumerate().map(|(nth, segment)| {
            SegmentList::new(segment.number(), by_segment.remove(&nth).unwrap_or_default())
        });
        Manifest::new(self.sequence, lists.collect())
    }

    /// A manifest of all entries was written.
    pub(super) fn note_manifest(&mut self) {
        self.listed = self.places.len() as u64;
        self.has_changed = false;
    }
}

/// The entry at an address, if there is one that fits the segment.
fn entry_at(segment: &Segment, at: u64) -> Option<Entry> {
    let space = end_of(segment).checked_sub(at)?;
    let mut header = [0; HEADER];
    segment.file().read_exact_at(&mut header, segment.offset(at)).ok()?;
    let entry = Entry::decode(&header)?;
    let (granules, align) = layout(entry.len);
    (granules <= space && at.is_multiple_of(align)).then_some(entry)
}

/// The address after a segment.
const fn end_of(segment: &Segment) -> u64 {
    segment.base() + segment.granules()
}
