// SPDX-License-Identifier: Apache-2.0
//! The content of a partition when it is opened: from its manifest after a clean end, otherwise from its entries.
//!
//! No file is trusted: each may be cut, damaged or of another data set. Invalid content is never an error; an
//! unusable directory is.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::hash::{BuildHasherDefault, Hasher};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use foresee_units::SampleId;
use rustix::fs::{SeekFrom, seek};

use super::Entries;
use super::entry::{Entry, GRANULE, HEADER, LARGE, layout};
use super::error::DiskError;
use super::folder::Folder;
use super::manifest::Manifest;
use super::partition::{
    Partition, filled_partitions, is_shared, open_segment, partition_name, segment_name, segments,
};
use super::segment::Segment;
use crate::identity::EntryKey;
use crate::op::SampleKey;
use crate::slab::Slab;

/// The recovered content.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) slab: Slab,
    /// Entries of other data sets or of old versions; the oldest last.
    pub(super) others: Vec<OtherEntry>,
    pub(super) segments: Vec<Arc<Segment>>,
    /// Bytes of all segments, at most the limit.
    pub(super) allocated: u64,
    /// The number of the next segment's file; unused in a read-only directory.
    pub(super) next_number: u64,
    /// The next entry's sequence number.
    pub(super) sequence: u64,
}

/// An entry that this run's data set does not need. It stays until its bytes are needed.
#[derive(Clone, Copy, Debug)]
pub(super) struct OtherEntry {
    pub(super) key: EntryKey,
    pub(super) at: u64,
    pub(super) len: u64,
    pub(super) unused_runs: u64,
}

/// An entry of a manifest or of a scan.
#[derive(Clone, Copy, Debug)]
struct FoundEntry {
    key: EntryKey,
    at: u64,
    len: u64,
    /// 0 for an entry of a manifest, which lists each key once.
    sequence: u64,
    unused_runs: u64,
}

/// Recover `partition`, then the part of `orphans` that fits, up to `limit` bytes. Segments of `partition` past the
/// limit are deleted; those of orphans stay in place.
pub(super) fn recover(
    partition: &Partition,
    orphans: &[Partition],
    entries: &dyn Entries,
    limit: u64,
    threads: usize,
) -> Result<Recovered, DiskError> {
    let own = segments(&partition.folder)?;
    let mut recovered = Recovered::new(own.last().map_or(0, |(number, _)| number + 1));
    let mut content = FoundContent::default();
    for orphan in std::iter::once(partition).chain(orphans) {
        let source = &orphan.folder;
        let manifest = Manifest::read_and_remove(source);
        let is_own = source.path() == partition.folder.path();
        for (number, len) in segments(source)? {
            if len < GRANULE || len > limit - recovered.allocated {
                if is_own {
                    let name = segment_name(number);
                    let path = source.path().join(&name);
                    source.remove_file(&name).map_err(|error| DiskError::at(&path, error))?;
                }
                continue;
            }
            let file = open_segment(source, number, false)?;
            let new = if is_own { number } else { recovered.next_number };
            if !is_own {
                let renamed = source.rename(&segment_name(number), &partition.folder, &segment_name(new));
                renamed.map_err(|error| DiskError::at(&source.path().join(segment_name(number)), error))?;
                recovered.next_number += 1;
            }
            content.add(recovered.adopt(file, new, len), number, manifest.as_ref(), false);
        }
        recovered.sequence = recovered.sequence.max(manifest.map_or(1, |manifest| manifest.sequence));
    }
    recovered.enter(content.all(threads), entries);
    Ok(recovered)
}

/// Read all partitions of `source` without changing anything.
pub(super) fn recover_read_only(
    source: &Folder,
    entries: &dyn Entries,
    threads: usize,
) -> Result<Recovered, DiskError> {
    let mut folders = Vec::new();
    for number in filled_partitions(source)? {
        folders.extend(source.enter(&partition_name(number))?);
    }
    read_partitions(&folders, entries, threads, true)
}

/// Read one partition without changing anything: all of its entries are [`Recovered::others`]. Its segments can be written
/// later unless `read_only`.
pub(super) fn read_partition(
    folder: &Folder,
    threads: usize,
    read_only: bool,
) -> Result<Recovered, DiskError> {
    read_partitions(std::slice::from_ref(folder), &NoSamples, threads, read_only)
}

fn read_partitions(
    folders: &[Folder],
    entries: &dyn Entries,
    threads: usize,
    read_only: bool,
) -> Result<Recovered, DiskError> {
    let mut recovered = Recovered::new(0);
    let mut content = FoundContent::default();
    for folder in folders {
        let manifest = Manifest::read(folder);
        recovered.sequence =
            recovered.sequence.max(manifest.as_ref().map_or(1, |manifest| manifest.sequence));
        let is_shared = is_shared(folder);
        for (number, len) in segments(folder)?.into_iter().filter(|&(_, len)| len >= GRANULE) {
            let file = open_segment(folder, number, read_only)?;
            let segment = recovered.adopt(file, number, len);
            content.add(segment, number, manifest.as_ref(), is_shared);
        }
    }
    recovered.enter(content.all(threads), entries);
    Ok(recovered)
}

/// A data set without samples.
#[derive(Debug)]
struct NoSamples;

impl Entries for NoSamples {
    fn count(&self) -> u64 {
        0
    }

    fn key(&self, id: SampleId) -> SampleKey {
        unreachable!("{id:?} of a data set without samples")
    }

    fn entry(&self, key: &SampleKey) -> EntryKey {
        unreachable!("{key:?} of a data set without samples")
    }
}

impl Recovered {
    fn new(next_number: u64) -> Self {
        Self {
            slab: Slab::new(layout),
            others: Vec::new(),
            segments: Vec::new(),
            allocated: 0,
            next_number,
            sequence: 1,
        }
    }

    /// Add a segment.
    fn adopt(&mut self, file: File, number: u64, len: u64) -> Arc<Segment> {
        let segment = Arc::new(Segment::new(file, number, self.segments.len(), len));
        self.slab.extend(segment.base(), segment.granules());
        self.segments.push(Arc::clone(&segment));
        self.allocated += len;
        segment
    }

    /// Insert the entries, the latest first: an entry that overlaps a later one, or is an older copy, is ignored.
    fn enter(&mut self, mut found: Vec<FoundEntry>, entries: &dyn Entries) {
        found.sort_unstable_by_key(|entry| (std::cmp::Reverse(entry.sequence), entry.at));
        let samples = samples_of(&found, entries);
        let mut present = HashSet::<EntryKey, BuildHasherDefault<KeyHasher>>::default();
        let mut others = Vec::new();
        for entry in found {
            self.sequence = self.sequence.max(entry.sequence.saturating_add(1));
            let granules = layout(entry.len).0;
            if present.contains(&entry.key) || !self.slab.allocate_at(entry.at, granules) {
                continue;
            }
            present.insert(entry.key);
            let sample = samples.get(&entry.key).copied().flatten();
            let pinned = sample.and_then(|id| self.slab.insert(entries.key(id), entry.len, entry.at));
            match pinned {
                Some(pinned) => {
                    self.slab.publish(pinned.slot);
                    self.slab.unpin(pinned.slot);
                }
                None => others.push(entry),
            }
        }
        // The last is evicted first: unused for the most runs, then written first.
        others
            .sort_unstable_by_key(|entry| (entry.unused_runs, std::cmp::Reverse((entry.sequence, entry.at))));
        let other = |FoundEntry { key, at, len, unused_runs, .. }| OtherEntry { key, at, len, unused_runs };
        self.others = others.into_iter().map(other).collect();
    }
}

/// A key is a hash already, so its first bytes are the hash of the tables.
#[derive(Default)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            self.0 = u64::from_le_bytes(*first);
        }
    }

    // The length of an array is hashed first; it is equal for all keys.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

type Samples = HashMap<EntryKey, Option<SampleId>, BuildHasherDefault<KeyHasher>>;

/// The samples of the keys in `found`.
fn samples_of(found: &[FoundEntry], entries: &dyn Entries) -> Samples {
    let mut samples: Samples = found.iter().map(|entry| (entry.key, None)).collect();
    if samples.is_empty() {
        return samples;
    }
    for id in (0..entries.count()).map(SampleId) {
        if let Some(sample) = samples.get_mut(&entries.entry(&entries.key(id))) {
            sample.get_or_insert(id);
        }
    }
    samples
}

/// Entries of manifests, and segments to be scanned.
#[derive(Default)]
struct FoundContent {
    found: Vec<FoundEntry>,
    /// Segments, each with its first granule that the manifest does not list.
    unlisted: Vec<(Arc<Segment>, u64)>,
}

impl FoundContent {
    /// Add a segment that had `number` when `manifest` was written. Where entries are only appended (`is_shared`), there
    /// may be later ones than those of the manifest.
    fn add(&mut self, segment: Arc<Segment>, number: u64, manifest: Option<&Manifest>, is_shared: bool) {
        let lists = manifest.into_iter().flat_map(|manifest| &manifest.segments);
        let Some(list) = lists.into_iter().find(|list| list.number == number) else {
            return self.unlisted.push((segment, 0));
        };
        let mut end = 0;
        for entry in list.entries() {
            end = entry.at.saturating_add(layout(entry.len).0);
            let at = segment.base() + entry.at;
            let (key, len, unused_runs) = (entry.key, entry.len, entry.unused_runs);
            self.found.push(FoundEntry { key, at, len, sequence: 0, unused_runs });
        }
        if is_shared {
            self.unlisted.push((segment, end));
        }
    }

    /// All entries; several threads scan the segments without a list.
    fn all(self, threads: usize) -> Vec<FoundEntry> {
        let Self { mut found, unlisted } = self;
        let next = AtomicUsize::new(0);
        let searched = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..threads.min(unlisted.len()) {
                scope.spawn(|| {
                    while let Some((segment, from)) = unlisted.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let found = scan(segment, *from);
                        searched.lock().unwrap_or_else(PoisonError::into_inner).extend(found);
                    }
                });
            }
        });
        found.extend(searched.into_inner().unwrap_or_else(PoisonError::into_inner));
        found
    }
}

/// Scan a segment from granule `from` on, header to header. Between entries there may be freed or unused bytes, which the scan skips
/// granule by granule.
fn scan(segment: &Segment, from: u64) -> Vec<FoundEntry> {
    const WINDOW: usize = 1 << 20;
    let end = segment.granules();
    let (mut found, mut at, mut window) = (Vec::new(), from, HEADER);
    let mut bytes = Vec::new();
    while let Some(start) = next_data(segment.file(), at).filter(|start| *start < end) {
        at = start;
        let rest = usize::try_from((end - at) * GRANULE).unwrap_or(usize::MAX);
        bytes.resize(window.min(rest), 0);
        if segment.file().read_exact_at(&mut bytes, at * GRANULE).is_err() {
            break;
        }
        let (headers, _) = bytes.as_chunks::<HEADER>();
        let first = at;
        window = (window * 2).min(WINDOW);
        while let Some(header) = usize::try_from(at - first).ok().and_then(|nth| headers.get(nth)) {
            let Some(entry) = Entry::decode(header) else {
                at += 1;
                continue;
            };
            let (granules, align) = layout(entry.len);
            if granules > end - at || at % align != 0 {
                at += 1;
                continue;
            }
            found.push(FoundEntry {
                key: entry.key,
                at: segment.base() + at,
                len: entry.len,
                sequence: entry.sequence,
                unused_runs: 0,
            });
            at += granules;
            if entry.len >= LARGE {
                // Only the header of the next page is needed.
                window = HEADER;
            }
        }
    }
    found
}

/// The first granule from `at` on that has data in the file; `at` where the file system does not report it.
fn next_data(file: &File, at: u64) -> Option<u64> {
    match seek(file, SeekFrom::Data(at * GRANULE)) {
        Ok(offset) => Some((offset / GRANULE).max(at)),
        Err(rustix::io::Errno::NXIO) => None,
        Err(_) => Some(at),
    }
}
