// SPDX-License-Identifier: Apache-2.0
//! Errors of a cache directory. Only opening fails: afterwards, every fault makes the tier smaller.

use std::io;
use std::path::{Path, PathBuf};

use foresee_units::Bytes;

/// Why a cache directory is unusable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// No permission.
    #[error("cache directory {path}: {source}; choose one that this user may write, or set `disk_size` to 0",
        path = path.display())]
    Denied {
        /// The file or directory.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Mounted read-only.
    #[error("cache directory {path} is on a read-only file system; choose another, or set `disk_size` to 0",
        path = path.display())]
    ReadOnly {
        /// The file or directory.
        path: PathBuf,
    },
    /// A file in place of a directory.
    #[error("cache directory {path} is a file or below a file; remove the file or choose another directory",
        path = path.display())]
    NotADirectory {
        /// The file.
        path: PathBuf,
    },
    /// A capacity below the minimum, in bytes, because 1 MB and 1 MiB are equal when rounded.
    #[error("a disk cache of {} bytes is too small; give `disk_size` {} or more, or 0 for none",
        capacity.get(), least.get())]
    TooSmall {
        /// The given capacity.
        capacity: Bytes,
        /// The minimum.
        least: Bytes,
    },
    /// A number outside of its range.
    #[error("{name} is {value}, but must be from {least} to {most}")]
    OutOfRange {
        /// The parameter.
        name: &'static str,
        /// The given value.
        value: u64,
        /// The minimum.
        least: u64,
        /// The maximum.
        most: u64,
    },
    /// Every partition is locked.
    #[error("all {partitions} partitions of {path} are in use; choose another cache directory", path = path.display())]
    NoPartition {
        /// The data set's folder.
        path: PathBuf,
        /// Number of partitions.
        partitions: u32,
    },
    /// Another process holds the directory's lock.
    #[error("cache directory: another process holds the lock {path} for more than 10 s; end it, or continue it if it is stopped, \
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
        /// The fault.
        what: &'static str,
    },
    /// The host refused an I/O thread.
    #[error("cannot start a thread for disk I/O: {source}; raise the limit of processes (`ulimit -u`)")]
    Thread {
        /// The kernel's error.
        source: io::Error,
    },
    /// Any other error.
    #[error("cache directory: {path}: {source}; repair it, or choose another directory", path = path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

impl DiskError {
    /// Convert a failed call on `path`.
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
