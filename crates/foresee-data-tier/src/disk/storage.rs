// SPDX-License-Identifier: Apache-2.0
//! The few things that the disk tier asks of the kernel about a segment.
//!
//! A trait, so that a test can be the disk that is full, read-only, or that fails in the middle. A failure is passed on
//! as the kernel reported it.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsFd;

use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate, fdatasync, ftruncate};
use rustix::io::{Errno, preadv, pwritev};

use super::folder::Folder;

pub(super) trait Storage: Send + Sync {
    /// Fails with the reason if no file can be created in a folder.
    fn check_writable(&self, folder: &Folder) -> io::Result<()> {
        folder.check_writable()
    }

    /// Gives a new file its length and the room for it.
    fn allocate(&self, file: &File, len: u64) -> io::Result<()>;

    /// Writes `parts`, one after the other, at `offset`.
    fn write(&self, file: &File, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()>;

    /// Fills `parts`, one after the other, from `offset`; a file that ends before is an error.
    fn read(&self, file: &File, parts: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()>;

    /// Sends what was written to the device and its pages out of memory.
    fn settle(&self, file: &File) -> io::Result<()>;
}

/// The real one.
#[derive(Debug)]
pub(super) struct Kernel;

impl Storage for Kernel {
    fn allocate(&self, file: &File, len: u64) -> io::Result<()> {
        match fallocate(file, FallocateFlags::empty(), 0, len) {
            // Some network file systems cannot promise room; a write then tells when it is out.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(ftruncate(file, len)?),
            done => Ok(done?),
        }
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

    fn settle(&self, file: &File) -> io::Result<()> {
        fdatasync(file)?;
        // Only advice: a kernel that keeps the pages costs memory that it can take back at any time.
        let _ = fadvise(file, 0, None, Advice::DontNeed);
        Ok(())
    }
}
