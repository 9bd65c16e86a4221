// SPDX-License-Identifier: Apache-2.0
//! A disk with faults, for the tests of the tier and of the files of samples.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::disk::folder::Folder;
use crate::disk::storage::{Kernel, Storage};

/// A disk that fails after some calls, or cannot be written at all, and counts its writes.
pub(in crate::disk) struct FailingDisk {
    is_writable: bool,
    allocations_left: AtomicU64,
    writes_left: AtomicU64,
    reads_left: AtomicU64,
    pub(in crate::disk) writes: Arc<AtomicU64>,
}

impl FailingDisk {
    pub(in crate::disk) fn after(allocations: u64, writes: u64, reads: u64) -> Self {
        let left = AtomicU64::new;
        Self {
            is_writable: true,
            allocations_left: left(allocations),
            writes_left: left(writes),
            reads_left: left(reads),
            writes: Arc::default(),
        }
    }

    pub(in crate::disk) fn read_only() -> Self {
        Self { is_writable: false, ..Self::after(0, 0, u64::MAX) }
    }

    fn spend(left: &AtomicU64, errno: rustix::io::Errno) -> io::Result<()> {
        let spent = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        spent.map(drop).map_err(|_| errno.into())
    }
}

impl Storage for FailingDisk {
    fn check_writable(&self, folder: &Folder) -> io::Result<()> {
        if self.is_writable { folder.check_writable() } else { Err(io::ErrorKind::ReadOnlyFilesystem.into()) }
    }

    fn allocate(&self, file: &File, len: u64) -> io::Result<()> {
        Self::spend(&self.allocations_left, rustix::io::Errno::NOSPC)?;
        Kernel.allocate(file, len)
    }

    fn write(&self, file: &File, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        Self::spend(&self.writes_left, rustix::io::Errno::IO)?;
        Kernel.write(file, parts, offset)
    }

    fn read(&self, file: &File, parts: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        Self::spend(&self.reads_left, rustix::io::Errno::IO)?;
        Kernel.read(file, parts, offset)
    }

    fn flush(&self, file: &File) -> io::Result<()> {
        Kernel.flush(file)
    }
}
