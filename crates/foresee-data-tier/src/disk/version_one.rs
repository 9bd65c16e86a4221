// SPDX-License-Identifier: Apache-2.0
//! Folders of the cache's format version 1: counted in the budget of their directory, never read, and deleted first.
//!
//! Such a folder has 32 hexadecimal digits as its name and contains `lane-<k>/` with `lock`, `manifest` and segments.

use rustix::fs::{FlockOperation, OFlags, flock};

use super::directory::{file_bytes, folder_bytes};
use super::folder::Folder;
use super::partition::{LOCK, MANIFEST, NEW_MANIFEST, segment_number};

/// Bytes of all such folders of this user in `directory`.
pub(super) fn bytes(directory: &Folder) -> u64 {
    folders(directory)
        .iter()
        .map(|(_, folder)| lanes(folder).iter().map(|(_, lane)| folder_bytes(lane)).sum::<u64>())
        .sum()
}

/// Delete those that no process uses; return the bytes freed.
pub(super) fn remove(directory: &Folder) -> u64 {
    let mut freed = 0;
    for (name, folder) in folders(directory) {
        for (lane_name, lane) in lanes(&folder) {
            freed += empty(&lane);
            let _ = folder.remove_folder(&lane_name);
        }
        // It fails, as it should, while something is left in it.
        let _ = directory.remove_folder(&name);
    }
    freed
}

/// Delete the files of one lane unless a process uses it.
fn empty(lane: &Folder) -> u64 {
    let lock = lane.open_file(LOCK, OFlags::RDWR).ok().flatten();
    if lock.as_ref().is_some_and(|lock| flock(lock, FlockOperation::NonBlockingLockExclusive).is_err()) {
        return 0;
    }
    let names = lane.names().unwrap_or_default();
    let ours = |name: &&String| {
        segment_number(name).is_some() || [LOCK, MANIFEST, NEW_MANIFEST].contains(&name.as_str())
    };
    names
        .iter()
        .filter(ours)
        .map(|name| {
            let bytes = file_bytes(lane, name);
            if lane.remove_file(name).is_ok() { bytes } else { 0 }
        })
        .sum()
}

fn folders(directory: &Folder) -> Vec<(String, Folder)> {
    let is_fingerprint =
        |name: &str| name.len() == 32 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    below(directory, is_fingerprint)
}

fn lanes(folder: &Folder) -> Vec<(String, Folder)> {
    below(folder, |name| name.strip_prefix("lane-").is_some_and(|number| number.parse::<u32>().is_ok()))
}

fn below(folder: &Folder, is_wanted: impl Fn(&str) -> bool) -> Vec<(String, Folder)> {
    let names = folder.names().unwrap_or_default().into_iter().filter(|name| is_wanted(name));
    // A link, or a folder of another user, is not ours to count or to delete.
    names.filter_map(|name| folder.enter(&name).ok().flatten().map(|found| (name, found))).collect()
}
