// SPDX-License-Identifier: Apache-2.0
//! Folders of the cache, opened one level at a time.
//!
//! Below the folder that the user names, no link is followed and no file of another user is used: a cache may be in a
//! directory that others can write, and a planted link would make a run overwrite a file of its own user. Every file
//! is opened relative to a checked folder, so a later exchange of a parent has no effect.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    Access, AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, accessat, fstat, mkdirat, openat, renameat,
    statat, unlinkat,
};
use rustix::io::Errno;

use super::error::DiskError;

/// Write permission of the group and of all others.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// An open directory.
#[derive(Debug)]
pub(super) struct Folder {
    fd: OwnedFd,
    path: PathBuf,
}

impl Folder {
    /// Open the directory that the user named, following links; create it with mode 0700 if it is missing.
    pub(super) fn open(path: &Path) -> Result<Self, DiskError> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        // A directory on a read-only file system exists already; otherwise the next call names the missing path.
        if let Err(source) = made
            && !path.is_dir()
        {
            return Err(DiskError::at(path, source));
        }
        Self::open_existing(path)
    }

    /// As [`Self::open`], without creating the directory.
    pub(super) fn open_existing(path: &Path) -> Result<Self, DiskError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd =
            openat(CWD, path, flags, Mode::empty()).map_err(|errno| DiskError::at(path, errno.into()))?;
        Ok(Self { fd, path: path.to_owned() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether only this user, or the superuser, can change its content.
    pub(super) fn is_private(&self) -> Result<bool, DiskError> {
        let stat = fstat(&self.fd).map_err(|errno| DiskError::at(&self.path, errno.into()))?;
        Ok(is_trusted(stat.st_uid) && stat.st_mode & WRITABLE_BY_OTHERS == 0)
    }

    /// Fails if no file can be created here: permissions, or a read-only mount.
    pub(super) fn check_writable(&self) -> io::Result<()> {
        let access = Access::WRITE_OK | Access::EXEC_OK;
        Ok(accessat(&self.fd, ".", access, AtFlags::EACCESS)?)
    }

    /// Enter an existing folder; `None` if it does not exist.
    pub(super) fn enter(&self, name: &str) -> Result<Option<Self>, DiskError> {
        let path = self.path.join(name);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP | Errno::NOTDIR) if self.is_link(name) => {
                return Err(DiskError::Untrusted { path, what: "is a link" });
            }
            Err(errno) => return Err(DiskError::at(&path, errno.into())),
        };
        let folder = Self { fd, path };
        let stat = fstat(&folder.fd).map_err(|errno| DiskError::at(&folder.path, errno.into()))?;
        check_owner(&folder.path, &stat)?;
        if stat.st_mode & WRITABLE_BY_OTHERS != 0 {
            return Err(DiskError::Untrusted { path: folder.path, what: "can be written by other users" });
        }
        Ok(Some(folder))
    }

    /// Enter a folder, created with mode 0700 if it is missing.
    pub(super) fn make(&self, name: &str) -> Result<Self, DiskError> {
        let path = self.path.join(name);
        match mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(DiskError::at(&path, errno.into())),
        }
        self.enter(name)?.ok_or_else(|| DiskError::at(&path, Errno::NOENT.into()))
    }

    /// Names of its content, without `.` and `..`, in no order. Names that are not UTF-8 do not belong to the cache.
    pub(super) fn names(&self) -> Result<Vec<String>, DiskError> {
        let at = |errno: Errno| DiskError::at(&self.path, errno.into());
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd).map_err(at)? {
            let entry = entry.map_err(at)?;
            if let Ok(name) = entry.file_name().to_str()
                && !matches!(name, "." | "..")
            {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Metadata of an entry, without following a link; `None` if it does not exist.
    pub(super) fn stat(&self, name: &str) -> Result<Option<Stat>, DiskError> {
        match statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(DiskError::at(&self.path.join(name), errno.into())),
        }
    }

    /// Open an existing file of this user without a second name; `None` if it does not exist.
    pub(super) fn open_file(&self, name: &str, access: OFlags) -> Result<Option<File>, DiskError> {
        let path = self.path.join(name);
        // Without NONBLOCK a planted named pipe would block the open.
        let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(fd) => File::from(fd),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(DiskError::Untrusted { path, what: "is a link" }),
            Err(errno) => return Err(DiskError::at(&path, errno.into())),
        };
        let stat = fstat(&file).map_err(|errno| DiskError::at(&path, errno.into()))?;
        check_file(&path, &stat)?;
        Ok(Some(file))
    }

    /// Create a file of mode 0600 that does not exist yet.
    pub(super) fn create_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(File::from(openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR)?))
    }

    /// Rename a file into a folder, possibly this one.
    pub(super) fn rename(&self, name: &str, to: &Self, new: &str) -> io::Result<()> {
        Ok(renameat(&self.fd, name, &to.fd, new)?)
    }

    /// Remove a file; no error if it is gone.
    pub(super) fn remove_file(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Remove an empty folder.
    pub(super) fn remove_folder(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.fd, name, AtFlags::REMOVEDIR)?)
    }

    /// Write its list of names to the device.
    pub(super) fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.fd)?)
    }

    /// Bytes of the folder itself on the disk, without its files.
    pub(super) fn own_bytes(&self) -> u64 {
        fstat(&self.fd).map_or(0, |stat| allocated(&stat))
    }

    fn is_link(&self, name: &str) -> bool {
        matches!(self.stat(name), Ok(Some(stat)) if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
    }
}

/// Bytes of a file on the disk. For a file system that allocates at the first write, this is its length.
pub(super) fn allocated(stat: &Stat) -> u64 {
    let blocks = u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
    blocks.max(u64::try_from(stat.st_size).unwrap_or(0))
}

/// Whether `uid` is this user or the superuser, who has all rights anyway.
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// Refuse anything but a regular file of this user with one name; a second name may be a file outside of the cache.
pub(super) fn check_file(path: &Path, stat: &Stat) -> Result<(), DiskError> {
    let refused = |what| Err(DiskError::Untrusted { path: path.to_owned(), what });
    check_owner(path, stat)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => refused("is a link"),
        FileType::RegularFile if stat.st_nlink == 1 => Ok(()),
        FileType::RegularFile => refused("has a second name (a hard link)"),
        _ => refused("is not a regular file"),
    }
}

fn check_owner(path: &Path, stat: &Stat) -> Result<(), DiskError> {
    if is_trusted(stat.st_uid) {
        return Ok(());
    }
    Err(DiskError::Untrusted { path: path.to_owned(), what: "belongs to another user" })
}
