// SPDX-License-Identifier: Apache-2.0
//! Why a cache directory cannot be used, and what to do about it.
//!
//! Only opening fails: once a partition is open, every fault makes the tier smaller.

use std::io;
use std::path::{Path, PathBuf};

use foresee_units::Bytes;

/// Why a cache directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// No permission.
    #[error("cache directory {path}: {source}; choose one that this user may write, or set `disk_size` to 0",
        path = path.display())]
    Denied {
        /// The file or directory.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// Mounted read-only.
    #[error("cache directory {path} is on a read-only file system; choose another, or set `disk_size` to 0",
        path = path.display())]
    ReadOnly {
        /// The file or directory.
        path: PathBuf,
    },
    /// Something in the way.
    #[error("cache directory {path} is, or lies below, a file; remove the file or choose another directory",
        path = path.display())]
    NotADirectory {
        /// The file.
        path: PathBuf,
    },
    /// Too small to hold anything. In bytes, since 1 MB and 1 MiB are the same when rounded.
    #[error("a disk cache of {} bytes is too small; give `disk_size` {} or more, or 0 for none",
        capacity.get(), least.get())]
    TooSmall {
        /// As given.
        capacity: Bytes,
        /// The least that works.
        least: Bytes,
    },
    /// A number outside of its range.
    #[error("{name} is {value}, but goes from {least} to {most}")]
    OutOfRange {
        /// Which number.
        name: &'static str,
        /// As given.
        value: u64,
        /// The smallest.
        least: u64,
        /// The largest.
        most: u64,
    },
    /// Every partition is locked.
    #[error("all {partitions} partitions of {path} are in use; choose another cache directory", path = path.display())]
    NoPartition {
        /// The data set's folder.
        path: PathBuf,
        /// How many there are.
        partitions: u32,
    },
    /// Another process does not release the directory's lock.
    #[error("cache directory: another process holds the lock {path} for more than 10 s; end it (a stopped process, say), \
        or choose another directory", path = path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// A file or folder that another user may have planted.
    #[error("cache directory: {path} {what}; remove it, or choose another directory", path = path.display())]
    Untrusted {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// No thread to do the I/O.
    #[error("cannot start a thread for disk I/O: {source}; raise the limit of processes (`ulimit -u`)")]
    Thread {
        /// The kernel's reason.
        source: io::Error,
    },
    /// Anything else.
    #[error("cache directory: {path}: {source}; repair it, or choose another directory", path = path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
}

impl DiskError {
    /// What a failed call on `path` means to the user.
    pub(super) fn at(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::PermissionDenied => Self::Denied { path, source },
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly { path },
            io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => Self::NotADirectory { path },
            _ => Self::Io { path, source },
        }
    }
}
