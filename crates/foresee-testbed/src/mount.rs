// SPDX-License-Identifier: Apache-2.0
//! The served folder as a file system, as slow as a network mount.
//!
//! A read is a request. It waits for its place under the limit on requests, for the latency, and for all of its
//! bytes in one piece, so that reads are served one after the other. Nothing stays in the page cache, so each
//! read arrives here; the kernel splits it at a mebibyte. Names and sizes cost nothing. The mount is read-only.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, Request,
};
use tokio::runtime::Handle;

use crate::body::read_at;
use crate::server::Origin;
use crate::sleep::sleep;

/// How long the kernel may cache a name or a size.
const ATTRIBUTE_TTL: Duration = Duration::from_secs(3600);

/// A mounted folder; dropping this value unmounts it, even if a file of it is open.
#[derive(Debug)]
pub(crate) struct Mount {
    at: PathBuf,
    _session: BackgroundSession,
}

impl Mount {
    /// Mount `root` at the folder `at`, read-only; this runtime serves the reads.
    pub(crate) fn new(root: PathBuf, at: PathBuf, origin: Arc<Origin>) -> io::Result<Self> {
        let mut config = Config::default();
        config.mount_options = vec![MountOption::RO, MountOption::FSName("foresee-testbed".to_owned())];
        let folder =
            ThrottledFolder { origin, runtime: Handle::current(), inodes: Mutex::new(Inodes::new(root)) };
        let session = fuser::spawn_mount(folder, &at, &config).map_err(|error| {
            let reason = format!("cannot mount at {}: {error}; it needs root and /dev/fuse", at.display());
            io::Error::new(error.kind(), reason)
        })?;
        Ok(Self { at, _session: session })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Already unmounted, or impossible to unmount: a report would have no recipient.
        let _ = rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::DETACH);
    }
}

/// The file system.
struct ThrottledFolder {
    origin: Arc<Origin>,
    runtime: Handle,
    inodes: Mutex<Inodes>,
}

/// The inodes known to the kernel.
struct Inodes {
    /// Paths that were looked up, by inode minus one.
    paths: Vec<PathBuf>,
    by_path: HashMap<PathBuf, u64>,
    open: HashMap<u64, Arc<File>>,
    opened: u64,
}

impl Inodes {
    fn new(root: PathBuf) -> Self {
        let by_path = HashMap::from([(root.clone(), INodeNo::ROOT.0)]);
        Self { paths: vec![root], by_path, open: HashMap::new(), opened: 0 }
    }

    fn path(&self, inode: INodeNo) -> io::Result<PathBuf> {
        let place = usize::try_from(inode.0 - 1).ok();
        place.and_then(|place| self.paths.get(place)).cloned().ok_or(io::ErrorKind::NotFound.into())
    }

    /// The inode of a path, assigned at its first look-up.
    fn inode(&mut self, path: &Path) -> INodeNo {
        if let Some(&inode) = self.by_path.get(path) {
            return INodeNo(inode);
        }
        self.paths.push(path.to_path_buf());
        let inode = self.paths.len() as u64;
        self.by_path.insert(path.to_path_buf(), inode);
        INodeNo(inode)
    }
}

impl ThrottledFolder {
    fn inodes(&self) -> MutexGuard<'_, Inodes> {
        self.inodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attributes(&self, path: &Path) -> io::Result<FileAttr> {
        let meta = fs::metadata(path)?;
        Ok(attributes(self.inodes().inode(path), &meta))
    }

    /// Names in a folder with their kinds, in order.
    fn names(&self, folder: INodeNo) -> io::Result<Vec<(PathBuf, FileType)>> {
        let folder = self.inodes().path(folder)?;
        let mut names = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let kind = if entry.file_type()?.is_dir() { FileType::Directory } else { FileType::RegularFile };
            names.push((entry.path(), kind));
        }
        names.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(names)
    }

    /// Read as many of the requested bytes as exist.
    fn read_now(&self, file: FileHandle, offset: u64, size: u32) -> io::Result<Bytes> {
        let file = self.inodes().open.get(&file.0).cloned().ok_or(io::ErrorKind::NotFound)?;
        let left = file.metadata()?.len().saturating_sub(offset);
        read_at(&file, offset, usize::try_from(left).map_or(size as usize, |left| left.min(size as usize)))
    }
}

fn attributes(inode: INodeNo, meta: &Metadata) -> FileAttr {
    let modified = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    FileAttr {
        ino: inode,
        size: meta.len(),
        blocks: meta.blocks(),
        atime: modified,
        mtime: modified,
        ctime: modified,
        crtime: modified,
        kind: if meta.is_dir() { FileType::Directory } else { FileType::RegularFile },
        perm: u16::try_from(meta.permissions().mode() & 0o555).unwrap_or_default(),
        nlink: 1,
        uid: meta.uid(),
        gid: meta.gid(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for ThrottledFolder {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &std::ffi::OsStr, reply: ReplyEntry) {
        let parent = self.inodes().path(parent);
        match parent.and_then(|parent| self.attributes(&parent.join(name))) {
            Ok(found) => reply.entry(&ATTRIBUTE_TTL, &found, Generation(0)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let path = self.inodes().path(inode);
        match path.and_then(|path| self.attributes(&path)) {
            Ok(found) => reply.attr(&ATTRIBUTE_TTL, &found),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readdir(&self, _: &Request, folder: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let names = match self.names(folder) {
            Ok(names) => names,
            Err(error) => return reply.error(errno(error)),
        };
        let own = [".", ".."].map(|name| (folder, FileType::Directory, name.into()));
        let others = names.into_iter().filter_map(|(path, kind)| {
            let name = path.file_name()?.to_owned();
            Some((self.inodes().inode(&path), kind, name))
        });
        for (next, (inode, kind, name)) in (1..).zip(own.into_iter().chain(others)) {
            if next > offset && reply.add(inode, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn open(&self, _: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let path = self.inodes().path(inode);
        match path.and_then(File::open) {
            Ok(file) => {
                let mut inodes = self.inodes();
                inodes.opened += 1;
                let handle = inodes.opened;
                inodes.open.insert(handle, Arc::new(file));
                drop(inodes);
                reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO);
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        file: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let bytes = match self.read_now(file, offset, size) {
            Ok(bytes) => bytes,
            Err(error) => return reply.error(errno(error)),
        };
        if bytes.is_empty() {
            // A read at the end returns no bytes, and costs no request to a device.
            return reply.data(&[]);
        }
        let origin = Arc::clone(&self.origin);
        self.runtime.spawn(async move {
            let flight = origin.counters.begin();
            origin.admit().await;
            let count = bytes.len() as u64;
            if let Some(wait) = origin.reserve_bytes(count) {
                sleep(wait).await;
            }
            origin.counters.answered("READ", Some(200), false);
            origin.counters.sent(count, true);
            reply.data(&bytes);
            drop(flight);
        });
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        file: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.inodes().open.remove(&file.0);
        reply.ok();
    }
}

fn errno(error: io::Error) -> Errno {
    if error.kind() == io::ErrorKind::NotFound { Errno::ENOENT } else { error.into() }
}
