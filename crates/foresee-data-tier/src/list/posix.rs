// SPDX-License-Identifier: Apache-2.0
//! Walks a directory tree with several threads.
//!
//! Apart from other listings: here a name is bytes, links exist, and the cost is one `stat` per file, which a
//! network file system answers slowly but many at a time. Refuses to skip what it cannot read.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::{Listed, Tally};
use crate::origin::{OriginError, safe_key, tag_of};

/// Threads of one walk: stats on a network file system overlap well, on a local one the cores are the limit.
const THREADS: usize = 8;
/// Files between two looks at the cancel flag.
const FILES_PER_CHECK: usize = 1024;

/// Every file below `root`, in no order; whether the inode number counts in its tag.
pub(super) fn walk(root: &Path, with_inode: bool, tally: &Tally<'_>) -> Result<Vec<Listed>, OriginError> {
    let top = open_dir(rustix::fs::CWD, root.as_os_str().as_bytes())
        .map_err(|errno| OriginError::from_io(root.display().to_string(), &errno.into()))?;
    let walk = Walk { root: &top, with_inode, tally, state: Mutex::default(), work: Condvar::new() };
    walk.state().ready.push(Pending { key: Vec::new(), above: None });
    let parts = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| walk.run())).collect();
        threads.into_iter().map(|thread| thread.join().expect("a walking thread does not panic")).collect()
    });
    let parts: Vec<Vec<Listed>> = parts;
    match walk.state.into_inner().unwrap_or_else(PoisonError::into_inner).failed {
        Some(error) => Err(error),
        None => Ok(parts.into_iter().flatten().collect()),
    }
}

struct Walk<'a> {
    root: &'a OwnedFd,
    /// Whether tags contain the inode number.
    with_inode: bool,
    tally: &'a Tally<'a>,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    ready: Vec<Pending>,
    busy: usize,
    failed: Option<OriginError>,
}

/// A directory yet to be read; `key` is empty for the root.
struct Pending {
    key: Vec<u8>,
    above: Option<Arc<Above>>,
}

/// The directories over one, to recognise a link that leads back up.
struct Above {
    identity: (u64, u64),
    above: Option<Arc<Above>>,
}

impl Walk<'_> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes directories until none is left or one fails.
    fn run(&self) -> Vec<Listed> {
        let mut files = Vec::new();
        while let Some(pending) = self.take() {
            let mut below = Vec::new();
            let outcome = self.read_dir(&pending, &mut files, &mut below);
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

    fn take(&self) -> Option<Pending> {
        let mut state = self.state();
        loop {
            if state.failed.is_some() {
                return None;
            }
            if let Some(pending) = state.ready.pop() {
                state.busy += 1;
                return Some(pending);
            }
            if state.busy == 0 {
                return None;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn read_dir(
        &self,
        pending: &Pending,
        files: &mut Vec<Listed>,
        below: &mut Vec<Pending>,
    ) -> Result<(), OriginError> {
        self.tally.check()?;
        let failed = |key: &[u8], errno: Errno| {
            OriginError::from_io(self.tally.uri.join(key), &std::io::Error::from(errno))
        };
        let here = |errno| failed(&pending.key, errno);
        let name: &[u8] = if pending.key.is_empty() { b"." } else { &pending.key };
        let dir = open_dir(self.root, name).map_err(here)?;
        let identity = identity_of(&rustix::fs::fstat(&dir).map_err(here)?);
        if pending.leads_back(identity) {
            return Ok(());
        }
        let above = Arc::new(Above { identity, above: pending.above.clone() });
        let first = files.len();
        let mut entries = Dir::read_from(&dir).map_err(here)?;
        while let Some(entry) = entries.read() {
            let entry = entry.map_err(here)?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let key = join(&pending.key, name);
            // A directory needs no stat, a file needs its size, anything else must first be looked at.
            if entry.file_type() == FileType::Directory {
                below.push(Pending { key, above: Some(Arc::clone(&above)) });
                continue;
            }
            let stat = rustix::fs::statat(&dir, entry.file_name(), AtFlags::empty())
                .map_err(|errno| failed(&key, errno))?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => below.push(Pending { key, above: Some(Arc::clone(&above)) }),
                FileType::RegularFile => {
                    let size = u64::try_from(stat.st_size).unwrap_or(0);
                    files.push(Listed { key, size, tag: tag_of(&stat, self.with_inode) });
                    if (files.len() - first).is_multiple_of(FILES_PER_CHECK) {
                        self.tally.check()?;
                    }
                }
                _ => {}
            }
        }
        self.tally.step(&files[first..]);
        if pending.key.is_empty() {
            // A class without a file is still a class: folders of the first level are told like a bucket's stand-ins.
            files.extend(below.iter().map(|folder| stand_in(&folder.key)));
        }
        Ok(())
    }
}

fn stand_in(folder: &[u8]) -> Listed {
    Listed { key: [folder, b"/"].concat(), size: 0, tag: Vec::new() }
}

/// Size and tag of each of `keys` below `root`, in their order.
pub(super) fn ask_each(
    root: &Path,
    keys: &[Vec<u8>],
    with_inode: bool,
    tally: &Tally<'_>,
) -> Result<Vec<Listed>, OriginError> {
    let top = open_dir(rustix::fs::CWD, root.as_os_str().as_bytes())
        .map_err(|errno| OriginError::from_io(root.display().to_string(), &errno.into()))?;
    let mut listed = Vec::with_capacity(keys.len());
    for key in keys {
        tally.check()?;
        let failed = |error: std::io::Error| OriginError::from_io(tally.uri.join(key), &error);
        if !safe_key(key) {
            return Err(failed(std::io::ErrorKind::InvalidFilename.into()));
        }
        let stat = rustix::fs::statat(&top, std::ffi::OsStr::from_bytes(key), AtFlags::empty())
            .map_err(|errno| failed(errno.into()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(failed(std::io::ErrorKind::IsADirectory.into()));
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        listed.push(Listed { key: key.clone(), size, tag: tag_of(&stat, with_inode) });
        tally.step(&listed[listed.len() - 1..]);
    }
    Ok(listed)
}

impl Pending {
    fn leads_back(&self, identity: (u64, u64)) -> bool {
        let mut above = self.above.as_deref();
        while let Some(directory) = above {
            if directory.identity == identity {
                return true;
            }
            above = directory.above.as_deref();
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
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use crate::{ListProgress, Listed, OriginError, OriginOptions, Uri, list};

    fn listed(root: &Path) -> Result<Vec<Listed>, OriginError> {
        let uri = Uri::from_path(root)?;
        list(&uri, &OriginOptions::default(), None, &|_| {}, &AtomicBool::new(false))
    }

    fn keys(root: &Path) -> Vec<Vec<u8>> {
        let all = listed(root).expect("a listing").into_iter().map(|listed| listed.key);
        all.filter(|key| !key.ends_with(b"/")).collect()
    }

    fn tree(files: &[&[u8]]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        for file in files {
            let path = root.path().join(std::ffi::OsStr::from_bytes(file));
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            std::fs::write(path, file).expect("a file");
        }
        root
    }

    #[test]
    fn files_come_sorted_by_the_bytes_of_their_keys_with_size_and_tag() {
        let root = tree(&[b"b/1", b"a/2", b"a-b", b"a/\xff\xfe", b"z"]);
        assert_eq!(keys(root.path()), [b"a-b".as_slice(), b"a/2", b"a/\xff\xfe", b"b/1", b"z"]);
        let first = &listed(root.path()).expect("a listing")[0];
        let stat = rustix::fs::stat(root.path().join("a-b")).expect("a file");
        assert_eq!((first.size, first.tag.as_slice()), (3, &crate::origin::tag_of(&stat, false)[..]));
    }

    #[test]
    fn folders_of_the_first_level_are_told_even_when_they_are_empty() {
        let root = tree(&[b"a/1", b"b/below/2", b"z"]);
        std::fs::create_dir(root.path().join("empty")).expect("a directory");
        let all = listed(root.path()).expect("a listing").into_iter().map(|listed| listed.key);
        let folders: Vec<_> = all.filter(|key| key.ends_with(b"/")).collect();
        assert_eq!(folders, [b"a/".as_slice(), b"b/", b"empty/"]);
    }

    #[test]
    fn named_keys_are_asked_for_and_nothing_else_is_looked_at() {
        let root = tree(&[b"a/1", b"a/2", b"z"]);
        let uri = Uri::from_path(root.path()).expect("a path");
        let ask = |keys: &[Vec<u8>]| {
            list(&uri, &OriginOptions::default(), Some(keys), &|_| {}, &AtomicBool::new(false))
        };
        let found = ask(&[b"z".to_vec(), b"a/1".to_vec()]).expect("both are there");
        assert_eq!(found.iter().map(|one| one.key.as_slice()).collect::<Vec<_>>(), [b"a/1".as_slice(), b"z"]);
        assert_eq!(found[1], *listed(root.path()).expect("a listing").last().expect("z is last"));
        for wrong in [b"missing".as_slice(), b"a", b"../z"] {
            let said = ask(&[wrong.to_vec()]).expect_err("no such file").to_string();
            assert!(said.contains(&*String::from_utf8_lossy(wrong)), "{said}");
        }
    }

    #[test]
    fn links_are_followed_and_a_link_back_up_is_not_entered_again() {
        let root = tree(&[b"a/1", b"elsewhere/2"]);
        symlink(root.path().join("elsewhere"), root.path().join("a/there")).expect("a link");
        symlink(root.path(), root.path().join("a/back")).expect("a link");
        symlink("1", root.path().join("a/same")).expect("a link");
        assert_eq!(keys(root.path()), [b"a/1".as_slice(), b"a/same", b"a/there/2", b"elsewhere/2"]);
    }

    #[test]
    fn a_link_to_nowhere_is_an_error_that_names_it() {
        let root = tree(&[b"a/1"]);
        symlink("nowhere", root.path().join("a/lost")).expect("a link");
        let error = listed(root.path()).expect_err("a broken link").to_string();
        assert!(error.contains("/a/lost does not exist"), "{error}");
    }

    #[test]
    fn pipes_are_left_out_and_empty_directories_hold_nothing() {
        let root = tree(&[]);
        std::fs::create_dir(root.path().join("empty")).expect("a directory");
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, root.path().join("p"), rustix::fs::FileType::Fifo, mode, 0)
            .expect("a pipe");
        assert_eq!(keys(root.path()), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn a_missing_root_and_a_raised_flag_end_the_listing_with_a_name() {
        let gone = listed(Path::new("/no/such/root")).expect_err("missing").to_string();
        assert!(gone.contains("/no/such/root does not exist"), "{gone}");
        let root = tree(&[b"a"]);
        let uri = Uri::from_path(root.path()).expect("a path");
        let raised = AtomicBool::new(true);
        let stopped = list(&uri, &OriginOptions::default(), None, &|_| {}, &raised);
        assert!(matches!(stopped, Err(OriginError::Cancelled { .. })));
        raised.store(false, Ordering::Relaxed);
        assert_eq!(list(&uri, &OriginOptions::default(), None, &|_| {}, &raised).expect("one").len(), 1);
    }

    #[test]
    fn progress_ends_at_the_sums() {
        let root = tree(&[b"a/1", b"b/22", b"c/d/333"]);
        let last = Mutex::new(ListProgress::default());
        let note = |now: ListProgress| {
            let mut last = last.lock().expect("no panic");
            if now.steps > last.steps {
                *last = now;
            }
        };
        let uri = Uri::from_path(root.path()).expect("a path");
        list(&uri, &OriginOptions::default(), None, &note, &AtomicBool::new(false)).expect("a listing");
        let last = *last.lock().expect("no panic");
        assert_eq!(last.steps, 5);
        assert!(last.objects <= 3 && last.bytes <= 14, "{last:?}");
    }
}
