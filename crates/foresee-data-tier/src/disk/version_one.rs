// SPDX-License-Identifier: Apache-2.0
//! Folders of the cache's format version 1: counted in the directory's budget, never read, and deleted first.
//!
//! Their names have 32 hexadecimal digits, and they contain `lane-<k>/` with `lock`, `manifest` and segments.

use rustix::fs::{FlockOperation, OFlags, flock};

use super::directory::{file_bytes, folder_bytes};
use super::folder::Folder;
use super::partition::{LOCK, MANIFEST, NEW_MANIFEST, segment_number};

/// Bytes of all such folders of this user in `directory`.
pub(super) fn bytes(directory: &Folder) -> u64 {
    folders(directory)
        .iter()
        .map(|(_, folder)| {
            partitions(folder).iter().map(|(_, partition)| folder_bytes(partition)).sum::<u64>()
        })
        .sum()
}

/// Delete the unused ones; return the bytes freed.
pub(super) fn remove(directory: &Folder) -> u64 {
    let mut freed = 0;
    for (name, folder) in folders(directory) {
        for (partition_name, partition) in partitions(&folder) {
            freed += empty(&partition);
            let _ = folder.remove_folder(&partition_name);
        }
        // Fails, as intended, while the folder is not empty.
        let _ = directory.remove_folder(&name);
    }
    freed
}

/// Delete the files of one partition unless a process uses it.
fn empty(partition: &Folder) -> u64 {
    let lock = partition.open_file(LOCK, OFlags::RDWR).ok().flatten();
    if lock.as_ref().is_some_and(|lock| flock(lock, FlockOperation::NonBlockingLockExclusive).is_err()) {
        return 0;
    }
    let names = partition.names().unwrap_or_default();
    let ours = |name: &&String| {
        segment_number(name).is_some() || [LOCK, MANIFEST, NEW_MANIFEST].contains(&name.as_str())
    };
    names
        .iter()
        .filter(ours)
        .map(|name| {
            let bytes = file_bytes(partition, name);
            if partition.remove_file(name).is_ok() { bytes } else { 0 }
        })
        .sum()
}

fn folders(directory: &Folder) -> Vec<(String, Folder)> {
    let is_fingerprint =
        |name: &str| name.len() == 32 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    below(directory, is_fingerprint)
}

fn partitions(folder: &Folder) -> Vec<(String, Folder)> {
    below(folder, |name| name.strip_prefix("lane-").is_some_and(|number| number.parse::<u32>().is_ok()))
}

fn below(folder: &Folder, is_wanted: impl Fn(&str) -> bool) -> Vec<(String, Folder)> {
    let names = folder.names().unwrap_or_default().into_iter().filter(|name| is_wanted(name));
    // A link, or a folder of another user, is neither counted nor deleted.
    names.filter_map(|name| folder.enter(&name).ok().flatten().map(|found| (name, found))).collect()
}
