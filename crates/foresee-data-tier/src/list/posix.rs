// SPDX-License-Identifier: Apache-2.0
//! Listing of a directory tree with several threads.
//!
//! The cost is one `stat` per file, which a network file system answers slowly but many at a time. Unreadable entries
//! are reported with their error.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::{ListContext, Listing, OriginObject, Unreadable, suggest};
use crate::origin::{OriginError, safe_key, tag_of};

/// Threads of one listing: `stat` calls on a network file system overlap; on a local one the cores are the limit.
const THREADS: usize = 8;
/// Files between two checks of the cancel flag.
const FILES_PER_CHECK: usize = 1024;

/// Every file below `root`, in no order; `with_inode`: tags contain the inode number.
pub(super) fn walk(root: &Path, with_inode: bool, context: &ListContext<'_>) -> Result<Listing, OriginError> {
    let top = open_root_folder(root)?;
    let walk =
        DirectoryWalk { root: &top, with_inode, context, state: Mutex::default(), work: Condvar::new() };
    walk.state().ready.push(QueuedFolder { key: Vec::new(), parent: None });
    let parts = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| walk.run())).collect();
        threads.into_iter().map(|thread| thread.join().expect("a walking thread does not panic")).collect()
    });
    let parts: Vec<Vec<OriginObject>> = parts;
    let state = walk.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    match state.failed {
        Some(error) => Err(error),
        None => Ok(Listing { objects: parts.into_iter().flatten().collect(), unreadable: state.unreadable }),
    }
}

struct DirectoryWalk<'a> {
    root: &'a OwnedFd,
    /// Whether tags contain the inode number.
    with_inode: bool,
    context: &'a ListContext<'a>,
    state: Mutex<WalkState>,
    work: Condvar,
}

#[derive(Default)]
struct WalkState {
    ready: Vec<QueuedFolder>,
    busy: usize,
    failed: Option<OriginError>,
    unreadable: Vec<Unreadable>,
}

/// A directory to be read; `key` is empty for the root.
struct QueuedFolder {
    key: Vec<u8>,
    parent: Option<Arc<Ancestor>>,
}

/// The parents of a directory, to detect a link to one of them.
struct Ancestor {
    identity: (u64, u64),
    parent: Option<Arc<Ancestor>>,
}

impl DirectoryWalk<'_> {
    fn state(&self) -> MutexGuard<'_, WalkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Read directories until none is left or one fails.
    fn run(&self) -> Vec<OriginObject> {
        let mut files = Vec::new();
        while let Some(queued) = self.next_folder() {
            let mut below = Vec::new();
            let outcome = self.read_dir(&queued, &mut files, &mut below);
            let mut state = self.state();
            state.busy -= 1;
            match outcome {
                Ok(()) => state.ready.append(&mut below),
                Err(error) => {
                    state.failed.get_or_insert(error);
                    state.ready.clear();
                }
            }
            drop(state);
            self.work.notify_all();
        }
        files
    }

    fn next_folder(&self) -> Option<QueuedFolder> {
        let mut state = self.state();
        loop {
            if state.failed.is_some() {
                return None;
            }
            if let Some(queued) = state.ready.pop() {
                state.busy += 1;
                return Some(queued);
            }
            if state.busy == 0 {
                return None;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn read_dir(
        &self,
        queued: &QueuedFolder,
        files: &mut Vec<OriginObject>,
        below: &mut Vec<QueuedFolder>,
    ) -> Result<(), OriginError> {
        self.context.check_cancelled()?;
        let is_excluded = self.context.is_excluded;
        let failed = |errno: Errno| OriginError::from_io(self.context.uri.to_string(), &errno.into());
        let name: &[u8] = if queued.key.is_empty() { b"." } else { &queued.key };
        let opened =
            open_dir(self.root, name).and_then(|dir| Ok((identity_of(&rustix::fs::fstat(&dir)?), dir)));
        let (identity, dir) = match opened {
            Ok(opened) => opened,
            Err(errno) if queued.key.is_empty() => return Err(failed(errno)),
            Err(errno) => {
                self.add_unreadable(with_slash(&queued.key), errno);
                return Ok(());
            }
        };
        if queued.is_cycle(identity) {
            return Ok(());
        }
        let parent = Arc::new(Ancestor { identity, parent: queued.parent.clone() });
        let first = files.len();
        let mut entries = Dir::read_from(&dir).map_err(failed)?;
        while let Some(entry) = entries.read() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(errno) if queued.key.is_empty() => return Err(failed(errno)),
                Err(errno) => {
                    self.add_unreadable(with_slash(&queued.key), errno);
                    break;
                }
            };
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let key = join(&queued.key, name);
            // A directory needs no `stat`, a file needs its size, and other types are unknown without it.
            let mut add_folder = |key: Vec<u8>| {
                if !is_excluded(&with_slash(&key)) {
                    below.push(QueuedFolder { key, parent: Some(Arc::clone(&parent)) });
                }
            };
            if entry.file_type() == FileType::Directory {
                add_folder(key);
                continue;
            }
            if is_excluded(&key) {
                continue;
            }
            let stat = match rustix::fs::statat(&dir, entry.file_name(), AtFlags::empty()) {
                Ok(stat) => stat,
                Err(errno) => {
                    self.add_unreadable(key, errno);
                    continue;
                }
            };
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => add_folder(key),
                FileType::RegularFile => {
                    let size = u64::try_from(stat.st_size).unwrap_or(0);
                    files.push(OriginObject { key, size, tag: tag_of(&stat, self.with_inode) });
                    if (files.len() - first).is_multiple_of(FILES_PER_CHECK) {
                        self.context.check_cancelled()?;
                    }
                }
                _ => {}
            }
        }
        self.context.record_step(&files[first..]);
        if queued.key.is_empty() {
            // A class without a file is still a class: folders of the first level are listed like a bucket's
            // placeholders.
            files.extend(below.iter().map(|folder| folder_placeholder(&folder.key)));
        }
        Ok(())
    }

    fn add_unreadable(&self, key: Vec<u8>, errno: Errno) {
        let kind = std::io::Error::from(errno).kind();
        let link = "repair or remove the link";
        let (kind, cause, remedy) = match errno {
            Errno::NOENT => (kind, "a link that leads nowhere".to_owned(), link),
            Errno::LOOP => (std::io::ErrorKind::NotFound, "a link that leads to itself".to_owned(), link),
            Errno::ACCESS | Errno::PERM => (kind, errno.to_string(), "grant permission to read it"),
            _ => (kind, errno.to_string(), "repair it"),
        };
        let error = OriginError::Unreadable { uri: self.context.uri.join(&key), cause, remedy, kind };
        self.state().unreadable.push(Unreadable { key, error });
    }
}

fn open_root_folder(root: &Path) -> Result<OwnedFd, OriginError> {
    open_dir(rustix::fs::CWD, root.as_os_str().as_bytes()).map_err(|errno| {
        let uri = root.display().to_string();
        match errno {
            Errno::NOENT => OriginError::NoFile { uri, remedy: suggest::for_directory(root) },
            _ => OriginError::from_io(uri, &errno.into()),
        }
    })
}

fn folder_placeholder(folder: &[u8]) -> OriginObject {
    OriginObject { key: with_slash(folder), size: 0, tag: Vec::new() }
}

fn with_slash(folder: &[u8]) -> Vec<u8> {
    [folder, b"/"].concat()
}

/// Size and tag of each of `keys` below `root`, in no order, from several threads.
pub(super) fn look_up_each(
    root: &Path,
    keys: &[Vec<u8>],
    with_inode: bool,
    context: &ListContext<'_>,
) -> Result<Listing, OriginError> {
    let top = open_root_folder(root)?;
    let look_up = |key: &Vec<u8>| {
        let failed = |error: std::io::Error| OriginError::from_io(context.uri.join(key), &error);
        if !safe_key(key) {
            return Err(failed(std::io::ErrorKind::InvalidFilename.into()));
        }
        let stat = rustix::fs::statat(&top, std::ffi::OsStr::from_bytes(key), AtFlags::empty())
            .map_err(|errno| failed(errno.into()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(failed(std::io::ErrorKind::IsADirectory.into()));
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        Ok(OriginObject { key: key.clone(), size, tag: tag_of(&stat, with_inode) })
    };
    let look_up_some = |keys: &[Vec<u8>]| {
        let mut some = Listing::default();
        for keys in keys.chunks(FILES_PER_CHECK) {
            context.check_cancelled()?;
            let first = some.objects.len();
            for key in keys {
                match look_up(key) {
                    Ok(found) => some.objects.push(found),
                    Err(error) => some.unreadable.push(Unreadable { key: key.clone(), error }),
                }
            }
            context.record_step(&some.objects[first..]);
        }
        Ok(some)
    };
    let share = keys.len().div_ceil(THREADS).max(FILES_PER_CHECK);
    let parts: Vec<Result<Listing, OriginError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = keys.chunks(share).map(|keys| scope.spawn(|| look_up_some(keys))).collect();
        threads.into_iter().map(|thread| thread.join().expect("an asking thread does not panic")).collect()
    });
    let mut listing = Listing::default();
    for part in parts {
        let Listing { objects, unreadable } = part?;
        listing.objects.extend(objects);
        listing.unreadable.extend(unreadable);
    }
    Ok(listing)
}

impl QueuedFolder {
    fn is_cycle(&self, identity: (u64, u64)) -> bool {
        let mut parent = self.parent.as_deref();
        while let Some(directory) = parent {
            if directory.identity == identity {
                return true;
            }
            parent = directory.parent.as_deref();
        }
        false
    }
}

fn open_dir(base: impl std::os::fd::AsFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    let path = std::ffi::OsStr::from_bytes(path);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(base, path, flags, Mode::empty())
}

#[allow(clippy::useless_conversion, reason = "st_dev is not u64 on every platform")]
fn identity_of(stat: &Stat) -> (u64, u64) {
    (u64::from(stat.st_dev), stat.st_ino)
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() {
        return name.to_vec();
    }
    let mut key = Vec::with_capacity(directory.len() + 1 + name.len());
    key.extend_from_slice(directory);
    key.push(b'/');
    key.extend_from_slice(name);
    key
}

#[cfg(test)]
mod tests;
