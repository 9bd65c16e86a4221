// SPDX-License-Identifier: Apache-2.0
//! A nameless file on a disk, for measurements that bypass the page cache.
//!
//! `O_DIRECT` is used if the file system accepts it. Otherwise pages are written to the device and evicted, which is
//! advice only and affects clean pages. The file has no name once it is open, so nothing remains after the process.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use foresee_units::Bytes;
use rustix::fs::{
    Advice, FallocateFlags, OFlags, fadvise, fallocate, fdatasync, fstatfs, fstatvfs, ftruncate,
};
use rustix::io::Errno;

/// Alignment that `O_DIRECT` requires of offsets, lengths and memory, on any usual device.
const ALIGN: usize = 4096;

/// `TMPFS_MAGIC` and `RAMFS_MAGIC` of `statfs(2)`: no device is behind these.
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// A file that no other process can open.
#[derive(Debug)]
pub struct DirectFile {
    cached: File,
    direct: Option<File>,
}

impl DirectFile {
    /// Create a file in the directory `folder`, without a name.
    pub fn create(folder: &Path) -> io::Result<Self> {
        let (path, cached) = create_named(folder)?;
        let direct = File::options().read(true).write(true).custom_flags(direct_flag()).open(&path);
        std::fs::remove_file(&path)?;
        // Readahead would load neighbours that are read later.
        let _ = fadvise(&cached, 0, None, Advice::Random);
        let mut file = Self { cached, direct: direct.ok() };
        if file.direct.is_some() && !file.direct_works()? {
            file.direct = None;
        }
        Ok(file)
    }

    /// Whether reads and writes bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Whether the file system stores its files in memory.
    pub fn in_memory(&self) -> bool {
        in_memory(&self.cached)
    }

    /// Free bytes of the file system, for this user.
    pub fn free_bytes(&self) -> io::Result<Bytes> {
        let facts = fstatvfs(&self.cached)?;
        Ok(Bytes::new(facts.f_bavail.saturating_mul(facts.f_frsize)))
    }

    /// Set the file's length, and allocate its blocks if the file system can.
    pub fn allocate(&self, len: Bytes) -> io::Result<()> {
        allocate_blocks(&self.cached, len.get())
    }

    /// Write `bytes` at `offset`; both are multiples of 4096.
    pub fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.direct.as_ref().unwrap_or(&self.cached).write_all_at(bytes, offset)
    }

    /// Fill `into` from `offset`, from the device unless its pages are cached; both are multiples of 4096.
    pub fn read(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        self.direct.as_ref().unwrap_or(&self.cached).read_exact_at(into, offset)
    }

    /// Fill `into` from `offset`, through the page cache.
    pub fn read_cached(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        self.cached.read_exact_at(into, offset)
    }

    /// Write dirty pages to the device.
    pub fn sync(&self) -> io::Result<()> {
        Ok(fdatasync(&self.cached)?)
    }

    /// Evict the file's clean pages from memory.
    pub fn evict_pages(&self) -> io::Result<()> {
        Ok(fadvise(&self.cached, 0, None, Advice::DontNeed)?)
    }

    /// Whether transfers work: some file systems accept `O_DIRECT` and then refuse every transfer.
    fn direct_works(&self) -> io::Result<bool> {
        let mut block = AlignedBuffer::new(ALIGN);
        let tried = self.write(block.as_mut_slice(), 0).and_then(|()| self.read(block.as_mut_slice(), 0));
        match tried {
            Ok(()) => Ok(true),
            Err(why) if why.kind() == io::ErrorKind::InvalidInput => Ok(false),
            Err(why) => Err(why),
        }
    }
}

/// Memory that is aligned for `O_DIRECT`.
#[derive(Debug)]
pub struct AlignedBuffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    /// Allocate `len` bytes and touch their pages.
    pub fn new(len: usize) -> Self {
        let bytes = vec![1; len + ALIGN];
        let start = bytes.as_ptr().align_offset(ALIGN).min(ALIGN);
        Self { bytes, start, len }
    }

    /// The bytes.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// Set a file's length and allocate its blocks. Some network file systems cannot reserve blocks; a later write then
/// fails when the disk is full.
pub(crate) fn allocate_blocks(file: impl AsFd, len: u64) -> io::Result<()> {
    match fallocate(&file, FallocateFlags::empty(), 0, len) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(ftruncate(file, len)?),
        done => Ok(done?),
    }
}

/// Whether the file system of `file` has no device.
pub(crate) fn in_memory(file: impl AsFd) -> bool {
    fstatfs(file).is_ok_and(|facts| IN_MEMORY.contains(&facts.f_type))
}

/// Create a file with an unused name.
fn create_named(folder: &Path) -> io::Result<(std::path::PathBuf, File)> {
    let mut nth = 0_u32;
    loop {
        let path = folder.join(format!(".foresee-calibrate.{}-{nth}.tmp", std::process::id()));
        let made = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path);
        match made {
            Err(why) if why.kind() == io::ErrorKind::AlreadyExists => nth += 1,
            made => return made.map(|file| (path, file)),
        }
    }
}

fn direct_flag() -> i32 {
    i32::try_from(OFlags::DIRECT.bits()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bytes_are_read_directly_and_through_the_cache_and_the_file_has_no_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = DirectFile::create(folder.path()).expect("a file");
        file.allocate(Bytes::new(1 << 20)).expect("free blocks");
        let mut block = AlignedBuffer::new(2 * ALIGN);
        block.as_mut_slice().fill(7);
        file.write(block.as_mut_slice(), 8 * ALIGN as u64).expect("written");
        file.sync().expect("on the device");
        file.evict_pages().expect("dropped");
        for cached in [false, true] {
            block.as_mut_slice().fill(0);
            let into = block.as_mut_slice();
            let at = 8 * ALIGN as u64;
            if cached { file.read_cached(into, at) } else { file.read(into, at) }.expect("read");
            assert!(block.as_mut_slice().iter().all(|&byte| byte == 7), "cached: {cached}");
        }
        assert!(file.free_bytes().expect("facts") > Bytes::ZERO);
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0, "it has no name");
    }

    #[test]
    fn an_existing_name_is_not_reused() {
        let folder = tempfile::tempdir().expect("a folder");
        let taken = folder.path().join(format!(".foresee-calibrate.{}-0.tmp", std::process::id()));
        std::fs::write(&taken, "another's").expect("a file");
        DirectFile::create(folder.path()).expect("another name");
        assert_eq!(std::fs::read_to_string(&taken).expect("still there"), "another's");
    }

    #[test]
    fn a_missing_folder_is_the_error_of_the_system() {
        let error = DirectFile::create(Path::new("/proc/no such folder")).expect_err("no folder");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn an_aligned_buffer_has_its_alignment_and_length() {
        for len in [1, ALIGN, 3 * ALIGN + 1] {
            let mut buffer = AlignedBuffer::new(len);
            assert_eq!(buffer.as_mut_slice().len(), len);
            assert_eq!(buffer.as_mut_slice().as_ptr().addr() % ALIGN, 0);
        }
    }
}
