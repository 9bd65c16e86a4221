// SPDX-License-Identifier: Apache-2.0
//! What a lane holds when it is opened: from its list after a clean end, from the cells themselves otherwise.
//!
//! Apart from the running tier, because here nothing is known and nothing believed: files may be cut, of
//! another data set, or rubbish. Refuses to fail over content; only a directory that cannot be used is an error.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{SeekFrom, seek};

use super::cell::{Cell, GRANULE, HEADER, LARGE, layout};
use super::error::DiskError;
use super::lane::{Lane, open_segment};
use super::manifest::Manifest;
use super::segment::Segment;
use crate::op::{Fingerprint, SampleKey};
use crate::slab::Slab;

/// The state to start from.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) slab: Slab,
    pub(super) segments: Vec<Arc<Segment>>,
    /// Bytes of all segments, at most the limit.
    pub(super) allocated: u64,
    /// The number for the next segment's file.
    pub(super) next_number: u64,
    /// The next cell's sequence number.
    pub(super) sequence: u64,
}

/// A cell that is said, or was seen, to be there.
#[derive(Clone, Copy, Debug)]
struct Found {
    key: SampleKey,
    at: u64,
    len: u64,
    /// 0 if a list tells of it: a list names each sample once.
    sequence: u64,
}

/// Takes over `lane`, then what fits of `orphans`, up to `limit` bytes. Segments of `lane` beyond the limit
/// are deleted; those of orphans stay where they are.
pub(super) fn recover(
    lane: &Lane,
    orphans: &[Lane],
    fingerprint: Fingerprint,
    limit: u64,
    threads: usize,
) -> Result<Recovered, DiskError> {
    let own = lane.segments()?;
    let mut state = Recovered {
        slab: Slab::new(layout),
        segments: Vec::new(),
        allocated: 0,
        next_number: own.last().map_or(0, |(number, _)| number + 1),
        sequence: 1,
    };
    let (mut found, mut unlisted) = (Vec::new(), Vec::new());
    for source in std::iter::once(lane).chain(orphans) {
        let manifest = Manifest::take(source, fingerprint);
        state.sequence = state.sequence.max(manifest.as_ref().map_or(1, |manifest| manifest.sequence));
        let ours = source.dir == lane.dir;
        for (number, len) in source.segments()? {
            let path = source.segment_path(number);
            let fits = len >= GRANULE && len <= limit - state.allocated;
            if !fits {
                if ours {
                    fs::remove_file(&path).map_err(|source| DiskError::at(&path, source))?;
                }
                continue;
            }
            let segment = state.adopt(lane, ours, source, number, len)?;
            let list =
                manifest.iter().flat_map(|manifest| &manifest.segments).find(|list| list.number == number);
            match list {
                Some(list) => found.extend(list.cells().map(|cell| Found {
                    key: SampleKey { fingerprint, id: cell.id, tag: cell.tag },
                    at: segment.base() + cell.at,
                    len: cell.len,
                    sequence: 0,
                })),
                None => unlisted.push(segment),
            }
        }
    }
    found.extend(scan_all(&unlisted, fingerprint, threads));
    state.enter(found);
    Ok(state)
}

impl Recovered {
    /// Opens a segment, renamed into `lane` if it was another's, and adds its room.
    fn adopt(
        &mut self,
        lane: &Lane,
        ours: bool,
        source: &Lane,
        number: u64,
        len: u64,
    ) -> Result<Arc<Segment>, DiskError> {
        let from = source.segment_path(number);
        let number = if ours { number } else { self.next_number };
        let path = lane.segment_path(number);
        if !ours {
            fs::rename(&from, &path).map_err(|source| DiskError::at(&from, source))?;
            self.next_number += 1;
        }
        let segment = Arc::new(Segment::new(open_segment(&path)?, number, self.segments.len(), len));
        self.slab.extend(segment.base(), segment.granules());
        self.segments.push(Arc::clone(&segment));
        self.allocated += len;
        Ok(segment)
    }

    /// Lists what was found, the latest first: what overlaps it, or is an older copy, is not there.
    fn enter(&mut self, mut found: Vec<Found>) {
        found.sort_unstable_by_key(|cell| (std::cmp::Reverse(cell.sequence), cell.at));
        let mut names = std::collections::HashSet::new();
        for Found { key, at, len, sequence } in found {
            self.sequence = self.sequence.max(sequence.saturating_add(1));
            let granules = layout(len).0;
            if names.contains(&key.id) || !self.slab.take_at(at, granules) {
                continue;
            }
            if let Some(pinned) = self.slab.enter(key, len, at) {
                self.slab.publish(pinned.slot);
                self.slab.unpin(pinned.slot);
                names.insert(key.id);
            } else {
                self.slab.give(at, granules);
            }
        }
    }
}

fn scan_all(segments: &[Arc<Segment>], fingerprint: Fingerprint, threads: usize) -> Vec<Found> {
    let next = AtomicUsize::new(0);
    let all = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.min(segments.len()) {
            scope.spawn(|| {
                while let Some(segment) = segments.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = scan(segment, fingerprint);
                    all.lock().unwrap_or_else(PoisonError::into_inner).extend(found);
                }
            });
        }
    });
    all.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The cells that a walk from header to header meets. Where there is no header, the walk goes on in steps of
/// a granule: room that was given back, or never used, lies between cells.
fn scan(segment: &Segment, fingerprint: Fingerprint) -> Vec<Found> {
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
            let Some(cell) = Cell::decode(header) else {
                at += 1;
                continue;
            };
            let (granules, align) = layout(cell.len);
            if cell.key.fingerprint != fingerprint || granules > end - at || at % align != 0 {
                at += 1;
                continue;
            }
            let global = segment.base() + at;
            found.push(Found { key: cell.key, at: global, len: cell.len, sequence: cell.sequence });
            at += granules;
            if cell.len >= LARGE {
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
