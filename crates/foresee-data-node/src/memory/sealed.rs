// SPDX-License-Identifier: Apache-2.0
//! Creation and verification of sealed memory files.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use foresee_units::Bytes;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;

use crate::error::NodeError;

/// The reason why a descriptor is not the expected memory.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages show the fields by their names")]
#[non_exhaustive]
pub enum SealFault {
    /// Another kind of file, which has no seals.
    #[error("it is no memory file: {0}")]
    Kind(#[source] io::Error),
    /// Other seals than required.
    #[error("its seals are {found:#x} instead of {required:#x}")]
    Seals {
        /// `F_GET_SEALS` of the file.
        found: u32,
        required: u32,
    },
    /// Another size than announced.
    #[error("it has {found} instead of {expected}")]
    Size { found: Bytes, expected: Bytes },
}

/// Seals of control memory.
pub(super) const CONTROL_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
/// Seals of a slab: nobody can map it for writing after the host did.
pub(super) const SLAB_SEALS: SealFlags = CONTROL_SEALS.union(SealFlags::FUTURE_WRITE);

/// Create an unsealed, empty memory file. `extra` selects the kind of pages.
pub(crate) fn create(name: &str, extra: MemfdFlags) -> rustix::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | extra;
    // Kernels before 6.3 do not know the flag; later ones may be set to require it (`vm.memfd_noexec`).
    match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        outcome => outcome,
    }
}

/// Allocate the pages of `length` bytes at `offset`, which are charged to this process. A signal undoes the allocation,
/// which is then repeated.
///
/// # Errors
/// [`NodeError::NoMemory`].
pub(super) fn allocate(file: BorrowedFd<'_>, offset: u64, length: u64) -> Result<(), NodeError> {
    rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, FallocateFlags::empty(), offset, length))
        .map_err(|why| NodeError::NoMemory { bytes: Bytes::new(length), why: why.into() })
}

/// Check that `file` is a memory file of `len` bytes with exactly the `required` seals.
///
/// # Errors
/// [`NodeError::NotSealed`] with `what` was expected.
pub(super) fn verify(
    file: BorrowedFd<'_>,
    len: u64,
    required: SealFlags,
    what: &'static str,
) -> Result<(), NodeError> {
    let refused = |fault| NodeError::NotSealed { what, fault };
    let kind = |why: Errno| refused(SealFault::Kind(why.into()));
    let seals = rustix::fs::fcntl_get_seals(file.as_fd()).map_err(kind)?;
    // The system adds this one to every memory file that may not be executed.
    if seals.difference(SealFlags::EXEC) != required {
        return Err(refused(SealFault::Seals { found: seals.bits(), required: required.bits() }));
    }
    let found = rustix::fs::fstat(file).map_err(kind)?.st_size.cast_unsigned();
    if found != len {
        return Err(refused(SealFault::Size { found: Bytes::new(found), expected: Bytes::new(len) }));
    }
    Ok(())
}
