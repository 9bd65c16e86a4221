// SPDX-License-Identifier: Apache-2.0
//! The index file of a data set, which a consumer passes to a host that lacks it.
//!
//! The host maps only memory that nobody can change or shorten any more. It copies other files, because a file that
//! becomes shorter under a mapping ends the process that reads it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use foresee_units::Bytes;
use rustix::fs::{MemfdFlags, SealFlags};

use super::mapping::Mapping;
use super::sealed::{self, CONTROL_SEALS};
use crate::error::NodeError;

/// The largest index file, in bytes.
pub const INDEX_BYTES_MAX: u64 = 16 << 30;

/// Seals without which a memory file is copied like any other.
const REQUIRED_SEALS: SealFlags = SealFlags::WRITE.union(SealFlags::SHRINK);
/// Bytes that are copied at a time.
const COPY_BYTES: usize = 1 << 20;
/// Unit of the number of allocated blocks of a file, whatever the block size is (`stat(3type)`).
const BLOCK: u64 = 512;

/// The reason why a descriptor is not the index file of a data set.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages show the fields by their names")]
#[non_exhaustive]
pub enum IndexFault {
    /// A pipe, a socket, a directory or another file without a fixed content.
    #[error("it is neither sealed memory nor a regular file")]
    Kind,
    /// A size that no index has.
    #[error("it has {found}, and an index has 1 byte to {most}", most = Bytes::new(INDEX_BYTES_MAX))]
    Size { found: Bytes },
    /// Memory with holes, which would be allocated and charged to the host when it reads them.
    #[error("it has {found} of memory, and {allocated} of them are allocated")]
    Sparse { found: Bytes, allocated: Bytes },
    /// A file that can change or become shorter, where only sealed memory is accepted.
    #[error("it is not sealed against changes")]
    Unsealed,
}

/// The bytes of an index file, mapped read-only. Nobody can change them.
#[derive(Debug)]
pub struct IndexMapping {
    mapping: Mapping,
    len: usize,
}

impl AsRef<[u8]> for IndexMapping {
    /// # Panics
    /// In a forked child, which does not have the mapping.
    fn as_ref(&self) -> &[u8] {
        let start = self.mapping.at(0).expect("a forked child does not read the indexes of its parent");
        // SAFETY: the whole mapping, which lives as long as `self`. Its file is sealed against writing and shrinking,
        // and has that size, so the bytes never change and every access succeeds.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.len) }
    }
}

/// Copy the `bytes` of an index into sealed memory, for a host that lacks it.
///
/// # Errors
/// [`NodeError::Index`]: it is empty or larger than [`INDEX_BYTES_MAX`]. [`NodeError::NoMemory`]; [`NodeError::Io`].
pub fn index_file(bytes: &[u8]) -> Result<OwnedFd, NodeError> {
    let memory = create(bytes.len() as u64)?;
    memory.write_all_at(bytes, 0).map_err(NodeError::io("copying an index"))?;
    seal(memory)
}

/// Map the index behind a descriptor that a consumer has sent. Sealed memory is mapped as it is; a regular file is copied
/// into memory of this process.
///
/// Reading a file may take as long as its file system does, so this is no call for a thread that serves consumers. The
/// caller compares the fingerprint.
///
/// # Errors
/// [`NodeError::Index`]: it is no index file. [`NodeError::NoMemory`]. [`NodeError::Io`]: reading fails, or the file
/// becomes shorter meanwhile.
pub fn map_index(file: OwnedFd) -> Result<IndexMapping, NodeError> {
    let file = File::from(file);
    let (len, is_sealed) = inspect(&file)?;
    if is_sealed { map(&file.into(), len) } else { map(&copy(&file, len as u64)?, len) }
}

/// Check that `file` is sealed memory with bytes that never change, so that any mapping of it can be read.
///
/// # Errors
/// [`NodeError::Index`], [`NodeError::Io`].
pub fn check_sealed_index(file: &File) -> Result<(), NodeError> {
    let (_, is_sealed) = inspect(file)?;
    if is_sealed { Ok(()) } else { Err(IndexFault::Unsealed.into()) }
}

/// The length of an index, and whether its bytes can never change.
fn inspect(file: &File) -> Result<(usize, bool), NodeError> {
    let found = file.metadata().map_err(NodeError::io("reading the size of an index"))?;
    if !found.is_file() {
        return Err(IndexFault::Kind.into());
    }
    let len = check_size(found.len())?;
    // Other files than those of memory have no seals.
    let seals = rustix::fs::fcntl_get_seals(file).unwrap_or(SealFlags::empty());
    if !seals.contains(REQUIRED_SEALS) {
        return Ok((len, false));
    }
    let allocated = found.blocks().saturating_mul(BLOCK);
    if allocated < found.len() {
        let (found, allocated) = (Bytes::new(found.len()), Bytes::new(allocated));
        return Err(IndexFault::Sparse { found, allocated }.into());
    }
    Ok((len, true))
}

fn check_size(found: u64) -> Result<usize, NodeError> {
    let len = usize::try_from(found).ok().filter(|_| (1..=INDEX_BYTES_MAX).contains(&found));
    Ok(len.ok_or(IndexFault::Size { found: Bytes::new(found) })?)
}

fn map(file: &OwnedFd, len: usize) -> Result<IndexMapping, NodeError> {
    Ok(IndexMapping { mapping: Mapping::new(file.as_fd(), len, false)?, len })
}

/// Copy a file of `len` bytes, whose position other processes may share, into sealed memory.
fn copy(file: &File, len: u64) -> Result<OwnedFd, NodeError> {
    let memory = create(len)?;
    let mut buffer = vec![0; COPY_BYTES];
    let mut at = 0;
    while at < len {
        let part = &mut buffer[..COPY_BYTES.min(usize::try_from(len - at).unwrap_or(usize::MAX))];
        file.read_exact_at(part, at).map_err(NodeError::io("reading an index file"))?;
        memory.write_all_at(part, at).map_err(NodeError::io("copying an index file"))?;
        at += part.len() as u64;
    }
    seal(memory)
}

/// Create memory of `len` bytes, which is charged to this process.
fn create(len: u64) -> Result<File, NodeError> {
    check_size(len)?;
    let refused = |why: io::Error| NodeError::NoMemory { bytes: Bytes::new(len), why };
    let memory = sealed::create("foresee-index", MemfdFlags::empty()).map_err(|why| refused(why.into()))?;
    let memory = File::from(memory);
    memory.set_len(len).map_err(refused)?;
    sealed::allocate(memory.as_fd(), 0, len)?;
    Ok(memory)
}

fn seal(memory: File) -> Result<OwnedFd, NodeError> {
    rustix::fs::fcntl_add_seals(&memory, CONTROL_SEALS | SealFlags::WRITE)
        .map_err(NodeError::io("sealing the memory of an index"))?;
    Ok(memory.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(file: OwnedFd) -> IndexFault {
        match map_index(file).unwrap_err() {
            NodeError::Index(fault) => fault,
            other => panic!("{other}"),
        }
    }

    fn sealed_memory(len: u64, seals: SealFlags) -> OwnedFd {
        let memory = File::from(sealed::create("test", MemfdFlags::empty()).unwrap());
        memory.set_len(len).unwrap();
        rustix::fs::fcntl_add_seals(&memory, seals).unwrap();
        memory.into()
    }

    #[test]
    fn a_host_maps_what_a_consumer_sealed() {
        let bytes: Vec<_> = (0..10_000_u32).flat_map(u32::to_le_bytes).collect();
        let file = index_file(&bytes).unwrap();
        let other = File::from(file.try_clone().unwrap());
        let mapping = map_index(file).unwrap();
        assert_eq!(mapping.as_ref(), bytes);
        assert!(other.write_at(b"x", 0).is_err() && other.set_len(1).is_err());
        let shared: std::sync::Arc<dyn AsRef<[u8]> + Send + Sync> = std::sync::Arc::new(mapping);
        assert_eq!((*shared).as_ref(), bytes);
    }

    #[test]
    fn only_sealed_memory_may_be_mapped_by_its_receiver() {
        check_sealed_index(&index_file(b"the index").unwrap().into()).unwrap();
        let regular = tempfile::tempfile().unwrap();
        regular.write_all_at(b"x", 0).unwrap();
        for file in [regular, sealed_memory(5, SealFlags::WRITE).into()] {
            let refused = check_sealed_index(&file).unwrap_err();
            assert!(matches!(refused, NodeError::Index(IndexFault::Unsealed)), "{refused}");
        }
    }

    #[test]
    fn a_regular_file_is_copied_and_may_change_afterwards() {
        let bytes = vec![7; COPY_BYTES + 3];
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        let mapping = map_index(file.try_clone().unwrap().into()).unwrap();
        file.set_len(0).unwrap();
        assert_eq!(mapping.as_ref(), bytes);
        // Memory that its writer can still shorten is such a file too.
        let memory = sealed_memory(5, SealFlags::WRITE);
        assert_eq!(map_index(memory).unwrap().as_ref(), [0; 5]);
    }

    #[test]
    fn a_file_that_becomes_shorter_while_it_is_copied_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(10).unwrap();
        let refused = copy(&file, 11).unwrap_err();
        assert!(matches!(refused, NodeError::Io { doing: "reading an index file", .. }), "{refused}");
    }

    #[test]
    fn other_descriptors_are_refused_with_the_reason() {
        assert!(matches!(fault(io::pipe().unwrap().0.into()), IndexFault::Kind));
        let directory = tempfile::tempdir().unwrap();
        assert!(matches!(fault(File::open(directory.path()).unwrap().into()), IndexFault::Kind));
        assert!(matches!(fault(tempfile::tempfile().unwrap().into()), IndexFault::Size { .. }));
        for len in [0, INDEX_BYTES_MAX + 1] {
            let fault = fault(sealed_memory(len, REQUIRED_SEALS));
            assert!(matches!(fault, IndexFault::Size { found } if found.get() == len));
        }
        let sparse = fault(sealed_memory(INDEX_BYTES_MAX, REQUIRED_SEALS));
        assert!(matches!(sparse, IndexFault::Sparse { allocated: Bytes::ZERO, .. }), "{sparse}");
        assert!(matches!(index_file(&[]), Err(NodeError::Index(IndexFault::Size { .. }))));
    }
}
