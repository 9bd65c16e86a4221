// SPDX-License-Identifier: Apache-2.0
//! Directories of the cache: who may use which, and the files in them.
//!
//! `<dir>/<fingerprint>/lane-<k>/` belongs to whoever holds the lock of its file `lock`. The lock goes with its
//! process, however that ends, so nothing is ever stale. Refuses to look into files.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::error::DiskError;
use crate::op::Fingerprint;

const SEGMENT: &str = "seg";
const MANIFEST: &str = "manifest";
/// Far more than any node has ranks: reaching it means that locks fail for another reason.
const LANES: u32 = 4096;

/// A directory that is ours until the lock is dropped.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) dir: PathBuf,
    lock: File,
    /// Who claimed it: a forked child has the file too, and the lock is not its own to give up.
    process: u32,
}

/// `<dir>/<fingerprint>`, made if need be.
pub(super) fn open_root(dir: &Path, fingerprint: Fingerprint) -> Result<PathBuf, DiskError> {
    let root = dir.join(format!("{:032x}", u128::from_be_bytes(fingerprint.0)));
    make_dir(&root)?;
    Ok(root)
}

impl Lane {
    /// A lane of our own: one with samples in it that nobody uses, else the first free number.
    pub(super) fn claim(root: &Path) -> Result<Self, DiskError> {
        for (number, filled) in existing(root)? {
            if filled && let Some(lane) = Self::try_lock(root, number)? {
                return Ok(lane);
            }
        }
        for number in 0..LANES {
            if let Some(lane) = Self::try_lock(root, number)? {
                return Ok(lane);
            }
        }
        Err(DiskError::NoLane { path: root.to_owned(), lanes: LANES })
    }

    /// Filled lanes that no rank of this run will claim (number `ranks` and above) and nobody uses.
    pub(super) fn claim_orphans(root: &Path, ranks: u32) -> Result<Vec<Self>, DiskError> {
        let mut orphans = Vec::new();
        for (number, filled) in existing(root)? {
            if filled && number >= ranks {
                orphans.extend(Self::try_lock(root, number)?);
            }
        }
        Ok(orphans)
    }

    /// Numbers and sizes of the segments, in order.
    pub(super) fn segments(&self) -> Result<Vec<(u64, u64)>, DiskError> {
        let mut segments = Vec::new();
        for entry in read_dir(&self.dir)? {
            if let Some(number) = segment_number(&entry) {
                let metadata = fs::metadata(&entry).map_err(|source| DiskError::at(&entry, source))?;
                segments.push((number, metadata.len()));
            }
        }
        segments.sort_unstable();
        Ok(segments)
    }

    pub(super) fn segment_path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{number:08}.{SEGMENT}"))
    }

    pub(super) fn manifest_path(&self) -> PathBuf {
        self.dir.join(MANIFEST)
    }

    fn try_lock(root: &Path, number: u32) -> Result<Option<Self>, DiskError> {
        let dir = root.join(format!("lane-{number}"));
        make_dir(&dir)?;
        let path = dir.join("lock");
        let lock = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|source| DiskError::at(&path, source))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { dir, lock, process: std::process::id() })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(DiskError::at(&path, errno.into())),
        }
    }
}

impl Drop for Lane {
    /// Gives the lock up by name. Closing the file would leave it to every child that was forked meanwhile, until that
    /// child runs a program of its own or ends, and the next start would find the lane taken.
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // What fails here is given up with the file all the same.
            let _ = flock(&self.lock, FlockOperation::Unlock);
        }
    }
}

/// A new file for a segment.
pub(super) fn create_segment(path: &Path) -> io::Result<File> {
    OpenOptions::new().create_new(true).read(true).write(true).mode(0o600).open(path)
}

pub(super) fn open_segment(path: &Path) -> Result<File, DiskError> {
    OpenOptions::new().read(true).write(true).open(path).map_err(|source| DiskError::at(path, source))
}

/// Numbers of the lanes there are, and whether they have segments.
fn existing(root: &Path) -> Result<Vec<(u32, bool)>, DiskError> {
    let mut lanes = Vec::new();
    for dir in read_dir(root)? {
        let number = dir.file_name().and_then(|name| name.to_str()?.strip_prefix("lane-")?.parse().ok());
        if let Some(number) = number {
            lanes.push((number, read_dir(&dir)?.iter().any(|entry| segment_number(entry).is_some())));
        }
    }
    lanes.sort_unstable();
    Ok(lanes)
}

fn segment_number(path: &Path) -> Option<u64> {
    if path.extension()? != SEGMENT {
        return None;
    }
    path.file_stem()?.to_str()?.parse().ok()
}

fn read_dir(dir: &Path) -> Result<Vec<PathBuf>, DiskError> {
    let entries = fs::read_dir(dir).and_then(|entries| {
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()
    });
    entries.map_err(|source| DiskError::at(dir, source))
}

fn make_dir(dir: &Path) -> Result<(), DiskError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|source| DiskError::at(dir, source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_is_free_though_a_child_still_has_its_file() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let lane = Lane::claim(root.path()).expect("a lane");
        // As a fork does it: another descriptor of the same open file.
        let inherited = lane.lock.try_clone().expect("a descriptor");
        let dir = lane.dir.clone();
        drop(lane);
        assert_eq!(Lane::claim(root.path()).expect("a lane").dir, dir);
        drop(inherited);
    }

    #[test]
    fn a_child_gives_nothing_up() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let lane = Lane::claim(root.path()).expect("a lane");
        let lock = lane.lock.try_clone().expect("a descriptor");
        // What a child drops says that another process claimed it.
        drop(Lane { dir: lane.dir.clone(), lock, process: lane.process + 1 });
        assert_ne!(Lane::claim(root.path()).expect("a lane").dir, lane.dir);
    }
}
