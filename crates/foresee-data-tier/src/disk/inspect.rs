// SPDX-License-Identifier: Apache-2.0
//! The content of a cache directory for tools: its partitions, whether a process uses them, and their deletion.
//!
//! Tools hold the directory's lock while they test locks of partitions, as a process does that claims one; otherwise
//! the test would make a starting process take another partition. Nothing is created in a directory without a cache.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use foresee_units::Bytes;

use super::cache_root::{CacheRoot, PartitionUsage};
use super::error::DiskError;
use super::folder::Folder;
use super::lock_holder::lock_holder;
use super::manifest::Manifest;
use super::partition::{Partition, declared_by_user, last_declared};
use super::verify::{Verification, verify_partition};
use super::version_one;

/// An existing cache directory.
#[derive(Debug)]
pub struct CacheDirectory {
    /// `None` if other users can write to the directory, and this user has no folder in it.
    root: Option<CacheRoot>,
}

/// The partitions of a directory.
#[derive(Debug, Default)]
pub struct CacheContent {
    /// By source and partition.
    pub partitions: Vec<PartitionFacts>,
    /// Links and folders that another user may have planted, which are neither counted nor deleted: a message each.
    pub faults: Vec<String>,
}

/// One partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionFacts {
    /// Name of the folder of its data source.
    pub source: String,
    /// Name of its own folder.
    pub partition: String,
    /// Version of the format: 2, or 1, which no tier reads.
    pub version: u32,
    /// Bytes on the disk, including all overhead.
    pub disk_bytes: Bytes,
    /// Seconds since 1970 when it was last opened; 0 if unknown.
    pub last_used: i64,
    /// The capacity that its last process declared, if it is recorded.
    pub declared: Option<Bytes>,
    /// Number of entries and bytes of their payloads. `None` without a manifest: in use, after a crash, or version 1.
    pub entries: Option<(u64, Bytes)>,
    /// The process that uses it, if any.
    pub user: Option<PartitionUser>,
}

/// A process that uses a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionUser {
    /// Its id; `None` if the kernel does not report it, as for a process in another container.
    pub process: Option<u32>,
}

/// The result of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Bytes that were freed; 0 if there is no such partition.
    Freed(Bytes),
    /// Nothing was deleted.
    InUse(PartitionUser),
}

impl CacheDirectory {
    /// Open an existing directory. Below it, no link is followed.
    ///
    /// # Errors
    /// The directory is missing, unreadable, or has a folder that another user may have planted.
    pub fn open(path: &Path) -> Result<Self, DiskError> {
        Ok(Self { root: CacheRoot::new(Folder::open_existing(path)?, false)? })
    }

    /// List all partitions without reading a segment.
    ///
    /// # Errors
    /// Another process holds the directory's lock for more than 10 s, or its file is not a regular one.
    pub fn content(&self) -> Result<CacheContent, DiskError> {
        let Some(root) = &self.root else { return Ok(CacheContent::default()) };
        let mut faults = Vec::new();
        let _locked = root.lock_existing()?;
        let usages = root.usages(|error| faults.push(error.to_string()));
        let old = version_one::usages(root.named());
        let mut partitions: Vec<_> = usages.iter().map(|usage| facts(usage, 2)).collect();
        partitions.extend(old.iter().map(|usage| facts(usage, 1)));
        partitions.sort_by(|a, b| (&a.source, &a.partition).cmp(&(&b.source, &b.partition)));
        faults.sort();
        Ok(CacheContent { partitions, faults })
    }

    /// Read and check every entry of a partition of version 2, and change nothing. `on_progress` gets the number of
    /// entries and of payload bytes read so far; after `cancel` is set the result is [`Verification::Cancelled`].
    ///
    /// The partition is locked meanwhile, so a process that starts uses another one.
    ///
    /// # Errors
    /// There is no such partition, or it has a file that another user may have planted.
    pub fn verify(
        &self,
        source: &str,
        partition: &str,
        on_progress: &dyn Fn(u64, u64),
        cancel: &AtomicBool,
    ) -> Result<Verification, DiskError> {
        let usages = self.root.as_ref().map(|root| root.usages(|_| ())).unwrap_or_default();
        let Some(usage) = find(usages, source, partition) else {
            let path = Path::new(source).join(partition);
            return Err(DiskError::at(&path, std::io::ErrorKind::NotFound.into()));
        };
        let process = lock_holder(&usage.folder);
        match Partition::try_lock_shared(usage.folder)? {
            Some(locked) => verify_partition(&locked, on_progress, cancel),
            None => Ok(Verification::InUse(PartitionUser { process })),
        }
    }

    /// Delete a partition that no process uses, then its folders if they are empty. Files that the format does not
    /// know stay.
    ///
    /// # Errors
    /// A segment is a link or may belong to another user; then nothing is deleted. Or another process holds the
    /// directory's lock for more than 10 s.
    pub fn remove(&self, source: &str, partition: &str) -> Result<Removal, DiskError> {
        let Some(root) = &self.root else { return Ok(Removal::Freed(Bytes::ZERO)) };
        if let Some(usage) = find(version_one::usages(root.named()), source, partition) {
            let _locked = root.lock()?;
            let process = lock_holder(&usage.folder);
            return Ok(match version_one::remove_partition(root.named(), &usage) {
                Some(freed) => Removal::Freed(Bytes::new(freed)),
                None => Removal::InUse(PartitionUser { process }),
            });
        }
        let Some(usage) = find(root.usages(|_| ()), source, partition) else {
            return Ok(Removal::Freed(Bytes::ZERO));
        };
        let _locked = root.lock()?;
        let process = lock_holder(&usage.folder);
        let Some(locked) = Partition::try_lock(usage.folder)? else {
            return Ok(Removal::InUse(PartitionUser { process }));
        };
        Ok(Removal::Freed(Bytes::new(root.delete(source, partition, &locked, |_| true)?)))
    }
}

fn find(usages: Vec<PartitionUsage>, source: &str, partition: &str) -> Option<PartitionUsage> {
    usages.into_iter().find(|usage| usage.source == source && usage.partition == partition)
}

fn facts(usage: &PartitionUsage, version: u32) -> PartitionFacts {
    let folder = &usage.folder;
    let manifest = if version == 2 { Manifest::read(folder) } else { None };
    let entries = manifest.map(|manifest| {
        let lens =
            manifest.segments.iter().flat_map(|list| list.entries().map(|entry| Bytes::new(entry.len)));
        lens.fold((0, Bytes::ZERO), |(count, bytes), len| (count + 1, bytes.saturating_add(len)))
    });
    PartitionFacts {
        source: usage.source.clone(),
        partition: usage.partition.clone(),
        version,
        disk_bytes: Bytes::new(usage.bytes),
        last_used: usage.last_used.0,
        declared: last_declared(folder).map(Bytes::new),
        entries,
        user: declared_by_user(folder).map(|_| PartitionUser { process: lock_holder(folder) }),
    }
}
