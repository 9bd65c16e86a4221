// SPDX-License-Identifier: Apache-2.0
//! Folders of the cache's format version 1: counted in the directory's budget, never read, and deleted first.
//!
//! Their names have 32 hexadecimal digits, and they contain `lane-<k>/` with `lock`, `manifest` and segments.

use rustix::fs::{FlockOperation, OFlags, flock};

use super::cache_root::{PartitionUsage, below, file_bytes};
use super::folder::Folder;
use super::partition::{LOCK, MANIFEST, NEW_MANIFEST, segment_number};

/// Bytes of all such folders of this user in `directory`.
pub(super) fn bytes(directory: &Folder) -> u64 {
    usages(directory).iter().map(|usage| usage.bytes).sum()
}

/// All partitions of such folders. A link, or a folder of another user, is neither counted nor deleted.
pub(super) fn usages(directory: &Folder) -> Vec<PartitionUsage> {
    let mut usages = Vec::new();
    for (source, folder) in below(directory, is_fingerprint, |_| ()) {
        for (partition, folder) in below(&folder, is_partition, |_| ()) {
            usages.push(PartitionUsage::of(source.clone(), partition, folder));
        }
    }
    usages
}

/// Delete the unused ones; return the bytes freed.
pub(super) fn remove(directory: &Folder) -> u64 {
    usages(directory).iter().filter_map(|usage| remove_partition(directory, usage)).sum()
}

/// Delete one partition and its empty folders; return the bytes freed, or `None` if a process uses it.
pub(super) fn remove_partition(directory: &Folder, usage: &PartitionUsage) -> Option<u64> {
    let freed = empty(&usage.folder)?;
    if let Ok(Some(parent)) = directory.enter(&usage.source) {
        // Both fail, as intended, while a folder is not empty.
        let _ = parent.remove_folder(&usage.partition);
        let _ = directory.remove_folder(&usage.source);
    }
    Some(freed)
}

/// Delete the files of one partition; `None` if a process uses it.
fn empty(partition: &Folder) -> Option<u64> {
    let lock = partition.open_file(LOCK, OFlags::RDWR).ok().flatten();
    if lock.as_ref().is_some_and(|lock| flock(lock, FlockOperation::NonBlockingLockExclusive).is_err()) {
        return None;
    }
    let names = partition.names().unwrap_or_default();
    let ours = |name: &&String| {
        segment_number(name).is_some() || [LOCK, MANIFEST, NEW_MANIFEST].contains(&name.as_str())
    };
    let remove = |name: &String| {
        let bytes = file_bytes(partition, name);
        if partition.remove_file(name).is_ok() { bytes } else { 0 }
    };
    Some(names.iter().filter(ours).map(remove).sum())
}

/// Whether `name` is the name of a data set's folder in version 1.
pub(super) fn is_fingerprint(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_partition(name: &str) -> bool {
    name.strip_prefix("lane-").is_some_and(|number| number.parse::<u32>().is_ok())
}
