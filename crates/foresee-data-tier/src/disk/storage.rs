// SPDX-License-Identifier: Apache-2.0
//! System calls of the disk tier on a segment, as a trait, so that tests can simulate a full, read-only or failing
//! disk.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsFd;

use rustix::fs::{Advice, fadvise, fdatasync};
use rustix::io::{Errno, preadv, pwritev};

use super::folder::Folder;
use crate::direct_file::allocate_blocks;

pub(super) trait Storage: Send + Sync {
    /// Fails if no file can be created in a folder.
    fn check_writable(&self, folder: &Folder) -> io::Result<()> {
        folder.check_writable()
    }

    /// Set the length of a new file, and allocate its blocks.
    fn allocate(&self, file: &File, len: u64) -> io::Result<()>;

    /// Write `parts`, one after the other, at `offset`.
    fn write(&self, file: &File, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()>;

    /// Fill `parts`, one after the other, from `offset`; an earlier end of the file is an error.
    fn read(&self, file: &File, parts: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()>;

    /// Write dirty pages to the device and evict them from memory.
    fn flush(&self, file: &File) -> io::Result<()>;
}

/// The real system calls.
#[derive(Debug)]
pub(super) struct Kernel;

impl Storage for Kernel {
    fn allocate(&self, file: &File, len: u64) -> io::Result<()> {
        allocate_blocks(file, len)
    }

    fn write(&self, file: &File, mut parts: &mut [IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            match pwritev(file.as_fd(), parts, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(moved) => {
                    offset += moved as u64;
                    IoSlice::advance_slices(&mut parts, moved);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn read(&self, file: &File, mut parts: &mut [IoSliceMut<'_>], mut offset: u64) -> io::Result<()> {
        IoSliceMut::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            match preadv(file.as_fd(), parts, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(moved) => {
                    offset += moved as u64;
                    IoSliceMut::advance_slices(&mut parts, moved);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn flush(&self, file: &File) -> io::Result<()> {
        fdatasync(file)?;
        // Advice only: the kernel can reclaim pages that it keeps.
        let _ = fadvise(file, 0, None, Advice::DontNeed);
        Ok(())
    }
}
