// SPDX-License-Identifier: Apache-2.0
//! The directory of sockets: created private, and refused if another user could replace its content.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::error::NodeError;
use crate::fork::Descriptor;

/// Magic number of NFS in `statfs(2)`. Nodes that share a directory would replace one another's sockets.
const NFS_MAGIC: u64 = 0x6969;

/// The file by which hosts of one directory start and end one after the other.
const LOCK_FILE: &str = "foresee.lock";

/// The reason why a directory is refused.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages show the fields by their names")]
#[non_exhaustive]
pub enum DirectoryFault {
    /// A symbolic link has its name.
    #[error("it is a symbolic link of uid {owner}, and may lead anywhere; remove it, or set FORESEE_NODE")]
    Link { owner: u32 },
    /// Another kind of file has its name.
    #[error("it is no directory, and belongs to uid {owner}; remove it, or set FORESEE_NODE")]
    Kind { owner: u32 },
    /// It belongs to another user.
    #[error(
        "it belongs to uid {owner} instead of {expected}; ask uid {owner} to remove it, or set FORESEE_NODE"
    )]
    Owner { owner: u32, expected: u32 },
    /// Other users have too many permissions.
    #[error(
        "its mode is {mode:04o}, and others may have no permission beyond {allowed:04o}; run `chmod {allowed:04o}` on it"
    )]
    Mode {
        /// Its permissions.
        mode: u32,
        allowed: u32,
    },
    /// It is on a network file system.
    #[error("it is on NFS, which other nodes share; set FORESEE_NODE to a socket on a local file system")]
    Network,
    /// It cannot be created or opened.
    #[error("{0}; create its parent directory, or set FORESEE_NODE")]
    Io(#[source] io::Error),
}

/// Permissions of other users in a directory of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// None: it has a known name, and is used by its owner alone.
    Private,
    /// They create and remove nothing there: the user named it. It is created private.
    Protected,
    /// As [`Protected`](Self::Protected), and they reach the sockets in it: it is created so.
    Shared,
}

impl Access {
    /// The mode of a new directory.
    fn initial_mode(self) -> u32 {
        match self {
            Self::Private | Self::Protected => 0o700,
            Self::Shared => 0o755,
        }
    }

    /// The largest mode of an existing one.
    fn allowed_mode(self) -> u32 {
        match self {
            Self::Private => 0o700,
            Self::Protected | Self::Shared => 0o755,
        }
    }
}

/// A checked directory.
#[derive(Debug)]
pub(crate) struct SocketDirectory(Descriptor);

impl SocketDirectory {
    /// Create the directory if it is missing, and check it. Its parent exists.
    ///
    /// # Errors
    /// [`NodeError::Directory`].
    pub(crate) fn create(path: &Path, uid: u32, access: Access) -> Result<Self, NodeError> {
        match rustix::fs::mkdir(path, Mode::from_raw_mode(access.initial_mode())) {
            Ok(()) => {
                let directory = Self::open(path, uid, access)?;
                // The mask of the process applied at the creation.
                rustix::fs::fchmod(directory.0.get()?, Mode::from_raw_mode(access.initial_mode()))
                    .map_err(|why| refused(path, DirectoryFault::Io(why.into())))?;
                Ok(directory)
            }
            Err(Errno::EXIST) => Self::open(path, uid, access),
            Err(why) => Err(refused(path, DirectoryFault::Io(why.into()))),
        }
    }

    /// Open an existing directory and check it.
    ///
    /// # Errors
    /// [`NodeError::Directory`].
    pub(crate) fn open(path: &Path, uid: u32, access: Access) -> Result<Self, NodeError> {
        let failed = |why: Errno| refused(path, DirectoryFault::Io(why.into()));
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let directory = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(directory) => directory,
            Err(why) => {
                // The name is not followed here either; it only explains the failure.
                let fault = rustix::fs::lstat(path).ok().and_then(|found| check(&found, uid, access));
                return Err(fault.map_or_else(|| failed(why), |fault| refused(path, fault)));
            }
        };
        // Checked on the open directory and not by name, which another process could replace in between.
        let found = rustix::fs::fstat(&directory).map_err(failed)?;
        if let Some(fault) = check(&found, uid, access) {
            return Err(refused(path, fault));
        }
        let system = rustix::fs::fstatfs(&directory).map_err(failed)?;
        if is_network(system.f_type) {
            return Err(refused(path, DirectoryFault::Network));
        }
        Ok(Self(Descriptor::new(directory)?))
    }

    /// Open its lock file. It stays when all hosts have ended, because removing a lock file is a race.
    pub(crate) fn lock_file(&self) -> Result<OwnedFd, NodeError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(self.0.get()?, LOCK_FILE, flags, Mode::from_raw_mode(0o600))
            .map_err(NodeError::io("opening the lock file of the node's cache"))
    }
}

/// Whether a file system of this type of `statfs(2)` is on the network.
pub(super) fn is_network(system: impl TryInto<u64>) -> bool {
    system.try_into().is_ok_and(|system| system == NFS_MAGIC)
}

/// What is wrong with a file at the directory's name.
pub(super) fn check(found: &Stat, uid: u32, access: Access) -> Option<DirectoryFault> {
    let (owner, mode, allowed) = (found.st_uid, found.st_mode & 0o7777, access.allowed_mode());
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Symlink => Some(DirectoryFault::Link { owner }),
        FileType::Directory if owner != uid => Some(DirectoryFault::Owner { owner, expected: uid }),
        FileType::Directory if mode & 0o777 & !allowed != 0 => Some(DirectoryFault::Mode { mode, allowed }),
        FileType::Directory => None,
        _ => Some(DirectoryFault::Kind { owner }),
    }
}

fn refused(path: &Path, fault: DirectoryFault) -> NodeError {
    NodeError::Directory { path: path.to_owned(), fault }
}
