// SPDX-License-Identifier: Apache-2.0
//! The content of a partition when it is opened: from its manifest after a clean end, else from the entries themselves.
//!
//! Nothing in the files is trusted: they may be cut, damaged or of other data sets. Content is never an error; only a
//! directory that cannot be used is one.

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
use super::partition::{Partition, filled, name_of, open_segment, segment_name, segments};
use super::segment::Segment;
use crate::identity::EntryKey;
use crate::slab::Slab;

/// The state to start from.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) slab: Slab,
    /// Entries of other data sets, or of versions that are gone; the oldest last.
    pub(super) others: Vec<OtherEntry>,
    pub(super) segments: Vec<Arc<Segment>>,
    /// Bytes of all segments, at most the limit.
    pub(super) allocated: u64,
    /// The number for the next segment's file.
    pub(super) next_number: u64,
    /// The next entry's sequence number.
    pub(super) sequence: u64,
}

/// An entry that no sample of this run's data set needs. It stays until its bytes are needed.
#[derive(Clone, Copy, Debug)]
pub(super) struct OtherEntry {
    pub(super) key: EntryKey,
    pub(super) at: u64,
    pub(super) len: u64,
    pub(super) unused_runs: u64,
}

/// An entry that is said, or was seen, to be there.
#[derive(Clone, Copy, Debug)]
struct Found {
    key: EntryKey,
    at: u64,
    len: u64,
    /// 0 if a manifest names it: a manifest names each key once.
    sequence: u64,
    unused_runs: u64,
}

/// Take over `partition`, then what fits of `orphans`, up to `limit` bytes. Segments of `partition` beyond the limit are
/// deleted; those of orphans stay where they are.
pub(super) fn recover(
    partition: &Partition,
    orphans: &[Partition],
    entries: &dyn Entries,
    limit: u64,
    threads: usize,
) -> Result<Recovered, DiskError> {
    let own = segments(&partition.folder)?;
    let mut recovered = Recovered::new(own.last().map_or(0, |(number, _)| number + 1));
    let mut content = Content::default();
    for orphan in std::iter::once(partition).chain(orphans) {
        let source = &orphan.folder;
        let manifest = Manifest::take(source);
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
            content.add(recovered.adopt(file, new, len), number, manifest.as_ref());
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
    let mut recovered = Recovered::new(0);
    let mut content = Content::default();
    for number in filled(source)? {
        let Some(folder) = source.enter(&name_of(number))? else { continue };
        let manifest = Manifest::read(&folder);
        for (number, len) in segments(&folder)?.into_iter().filter(|&(_, len)| len >= GRANULE) {
            let file = open_segment(&folder, number, true)?;
            let segment = recovered.adopt(file, recovered.next_number, len);
            recovered.next_number += 1;
            content.add(segment, number, manifest.as_ref());
        }
    }
    recovered.enter(content.all(threads), entries);
    Ok(recovered)
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

    /// Add a segment's bytes.
    fn adopt(&mut self, file: File, number: u64, len: u64) -> Arc<Segment> {
        let segment = Arc::new(Segment::new(file, number, self.segments.len(), len));
        self.slab.extend(segment.base(), segment.granules());
        self.segments.push(Arc::clone(&segment));
        self.allocated += len;
        segment
    }

    /// Enter what was found, the latest first: an entry that overlaps a later one, or is an older copy, does not exist.
    fn enter(&mut self, mut found: Vec<Found>, entries: &dyn Entries) {
        found.sort_unstable_by_key(|entry| (std::cmp::Reverse(entry.sequence), entry.at));
        let samples = samples_of(&found, entries);
        let mut present = HashSet::<EntryKey, BuildHasherDefault<KeyHasher>>::default();
        let mut others = Vec::new();
        for entry in found {
            self.sequence = self.sequence.max(entry.sequence.saturating_add(1));
            let granules = layout(entry.len).0;
            if present.contains(&entry.key) || !self.slab.take_at(entry.at, granules) {
                continue;
            }
            present.insert(entry.key);
            let sample = samples.get(&entry.key).copied().flatten();
            let pinned = sample.and_then(|id| self.slab.enter(entries.key(id), entry.len, entry.at));
            match pinned {
                Some(pinned) => {
                    self.slab.publish(pinned.slot);
                    self.slab.unpin(pinned.slot);
                }
                None => others.push(entry),
            }
        }
        // The last leaves first: unused for the most runs, then written first.
        others
            .sort_unstable_by_key(|entry| (entry.unused_runs, std::cmp::Reverse((entry.sequence, entry.at))));
        let other = |Found { key, at, len, unused_runs, .. }| OtherEntry { key, at, len, unused_runs };
        self.others = others.into_iter().map(other).collect();
    }
}

/// A key is a hash already: its first bytes are the hash of the tables.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            self.0 = u64::from_le_bytes(*first);
        }
    }

    // Of an array the length is hashed first, which is the same for all.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

type Samples = HashMap<EntryKey, Option<SampleId>, BuildHasherDefault<KeyHasher>>;

/// The samples that the keys of `found` belong to.
fn samples_of(found: &[Found], entries: &dyn Entries) -> Samples {
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

/// What manifests name, and segments whose entries have to be searched.
#[derive(Default)]
struct Content {
    found: Vec<Found>,
    unlisted: Vec<Arc<Segment>>,
}

impl Content {
    /// Add a segment that had `number` when `manifest` was written.
    fn add(&mut self, segment: Arc<Segment>, number: u64, manifest: Option<&Manifest>) {
        let lists = manifest.into_iter().flat_map(|manifest| &manifest.segments);
        match lists.into_iter().find(|list| list.number == number) {
            Some(list) => self.found.extend(list.entries().map(|entry| Found {
                key: entry.key,
                at: segment.base() + entry.at,
                len: entry.len,
                sequence: 0,
                unused_runs: entry.unused_runs,
            })),
            None => self.unlisted.push(segment),
        }
    }

    /// All entries; segments without a list are searched by several threads.
    fn all(self, threads: usize) -> Vec<Found> {
        let Self { mut found, unlisted } = self;
        let next = AtomicUsize::new(0);
        let searched = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..threads.min(unlisted.len()) {
                scope.spawn(|| {
                    while let Some(segment) = unlisted.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let found = scan(segment);
                        searched.lock().unwrap_or_else(PoisonError::into_inner).extend(found);
                    }
                });
            }
        });
        found.extend(searched.into_inner().unwrap_or_else(PoisonError::into_inner));
        found
    }
}

/// The entries that a walk from header to header meets. Where there is no header, the walk goes on in steps of a
/// granule: freed or never used bytes lie between entries.
fn scan(segment: &Segment) -> Vec<Found> {
    const WINDOW: usize = 1 << 20;
    let end = segment.granules();
    let (mut found, mut at, mut window) = (Vec::new(), 0, HEADER);
    let mut bytes = Vec::new();
    while let Some(start) = next_data(segment.file(), at).filter(|start| *start < end) {
        at = start;
        let room = usize::try_from((end - at) * GRANULE).unwrap_or(usize::MAX);
        bytes.resize(window.min(room), 0);
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
            found.push(Found {
                key: entry.key,
                at: segment.base() + at,
                len: entry.len,
                sequence: entry.sequence,
                unused_runs: 0,
            });
            at += granules;
            if entry.len >= LARGE {
                // The next header is all that is wanted of the next page.
                window = HEADER;
            }
        }
    }
    found
}

/// The first granule from `at` on that a file has bytes for; all of them where the file system does not say.
fn next_data(file: &File, at: u64) -> Option<u64> {
    match seek(file, SeekFrom::Data(at * GRANULE)) {
        Ok(offset) => Some((offset / GRANULE).max(at)),
        Err(rustix::io::Errno::NXIO) => None,
        Err(_) => Some(at),
    }
}
