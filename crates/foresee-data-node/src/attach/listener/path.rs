// SPDX-License-Identifier: Apache-2.0
//! The path of a listening socket: who may bind it, and who removes it.
//!
//! All hosts of a directory bind and unbind under one lock. So a socket that refuses a connection under the lock has
//! no host, and a host removes only its own.

use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use rustix::fs::{FlockOperation, Mode};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

use super::super::socket::MessageSocket;
use crate::address::{Access, NodeAddress, SocketDirectory};
use crate::error::NodeError;
use crate::fork::Creator;

/// Time to wait for the lock of a directory, and between two attempts.
const LOCK_WAIT: Duration = Duration::from_secs(10);
const LOCK_POLL: Duration = Duration::from_millis(2);

/// A path to which a socket of this process is bound; it is removed at drop if it still is.
#[derive(Debug)]
pub(super) struct BoundPath {
    path: PathBuf,
    directory: SocketDirectory,
    /// Device and inode of the socket.
    identity: (u64, u64),
    creator: Creator,
}

impl BoundPath {
    /// Create a socket that listens at `address`, with permissions for other users if `is_shared`.
    ///
    /// # Errors
    /// As [`NodeListener::bind`](super::NodeListener::bind).
    pub(super) fn bind(
        address: &NodeAddress,
        uid: u32,
        is_shared: bool,
        backlog: i32,
    ) -> Result<(MessageSocket, Self), NodeError> {
        let creator = Creator::this_process()?;
        let path = address.path().to_owned();
        let access = match (is_shared, address.is_explicit()) {
            (true, _) => Access::Shared,
            (false, true) => Access::Protected,
            (false, false) => Access::Private,
        };
        let directory = SocketDirectory::create(address.directory(), uid, access)?;
        let Some(_lock) = wait_for_lock(&directory)? else { return Err(NodeError::InUse { path }) };
        remove_stale(&path)?;
        if access == Access::Private {
            remove_all_stale(address.directory());
        }
        let socket = MessageSocket::create()?;
        let failed = NodeError::io::<Errno>("binding the socket of the node's cache");
        let name = SocketAddrUnix::new(&path).map_err(&failed)?;
        // Linux creates the file with the mode of the unbound socket, so it never has another one.
        let mode = Mode::from_raw_mode(if is_shared { 0o666 } else { 0o600 });
        rustix::fs::fchmod(socket.fd()?, mode).map_err(&failed)?;
        rustix::net::bind(socket.fd()?, &name).map_err(&failed)?;
        let identity = identity(&path).map_err(NodeError::io("finding the bound socket"))?;
        let bound = Self { path, directory, identity, creator };
        if is_shared {
            // The mask of the process applies at the creation.
            let shared = fs::Permissions::from_mode(0o666);
            fs::set_permissions(&bound.path, shared).map_err(NodeError::io("sharing the socket"))?;
        }
        rustix::net::listen(socket.fd()?, backlog).map_err(&failed)?;
        Ok((socket, bound))
    }

    pub(super) fn get(&self) -> &Path {
        &self.path
    }
}

impl Drop for BoundPath {
    fn drop(&mut self) {
        if !self.creator.is_current() {
            return;
        }
        // Without the lock another host is just replacing the socket, or a later one removes it.
        if let Ok(Some(_lock)) = lock(&self.directory)
            && identity(&self.path).is_ok_and(|found| found == self.identity)
        {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The lock of a directory.
struct DirectoryLock(OwnedFd);

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // Closing the file would leave the lock to children that were forked meanwhile.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// Lock a directory; `None` if other hosts have had the lock for long: each binds or removes a socket under it, in milliseconds.
fn wait_for_lock(directory: &SocketDirectory) -> Result<Option<DirectoryLock>, NodeError> {
    let since = Instant::now();
    loop {
        let found = lock(directory)?;
        if found.is_some() || since.elapsed() > LOCK_WAIT {
            return Ok(found);
        }
        std::thread::sleep(LOCK_POLL);
    }
}

/// Lock a directory; `None` while another host has the lock.
fn lock(directory: &SocketDirectory) -> Result<Option<DirectoryLock>, NodeError> {
    let file = directory.lock_file()?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(DirectoryLock(file))),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(why) => Err(NodeError::io("locking the directory of the node's cache")(why)),
    }
}

/// Remove a socket at `path` that refuses connections. The caller has the lock.
fn remove_stale(path: &Path) -> Result<(), NodeError> {
    let failed = NodeError::io::<io::Error>("removing the socket of an ended host");
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {}
        Ok(_) => return Err(NodeError::NotASocket { path: path.to_owned() }),
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(why) => return Err(failed(why)),
    }
    let probe = MessageSocket::create()?;
    let name = SocketAddrUnix::new(path).map_err(NodeError::io("naming a socket"))?;
    let flags = rustix::fs::OFlags::NONBLOCK;
    rustix::fs::fcntl_setfl(probe.fd()?, flags).map_err(NodeError::io("preparing a probe"))?;
    match rustix::net::connect(probe.fd()?, &name) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(failed),
        // Another kind of socket is no host of a cache, and may be in use.
        Err(Errno::PROTOTYPE) => Err(NodeError::NotASocket { path: path.to_owned() }),
        // A full queue has a host too.
        Ok(()) | Err(_) => Err(NodeError::InUse { path: path.to_owned() }),
    }
}

/// Remove the sockets that killed hosts of other runs have left in a directory of hosts alone. The caller has the lock.
fn remove_all_stale(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.extension().is_some_and(|extension| extension == "sock") {
            // A socket in use stays, and one that cannot be removed delays no host.
            let _ = remove_stale(&path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}
