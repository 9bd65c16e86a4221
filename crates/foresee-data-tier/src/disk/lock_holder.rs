// SPDX-License-Identifier: Apache-2.0
//! The process that holds the lock of a partition, from the kernel's list of locks.
//!
//! It is for messages only: `flock(2)` decides whether a partition is in use. The list has no processes of other
//! containers, and on some file systems (overlayfs, Btrfs) other device numbers than `stat(2)`.

use std::fs;

use rustix::fs::{major, minor};

use super::folder::Folder;
use super::partition::LOCK;

/// The id of the process that locks a partition, if the kernel reports it.
pub(super) fn lock_holder(partition: &Folder) -> Option<u32> {
    let stat = partition.stat(LOCK).ok()??;
    let locks = fs::read_to_string("/proc/locks").ok()?;
    holder_in(&locks, (major(stat.st_dev), minor(stat.st_dev)), stat.st_ino)
}

/// The holder of a file's lock in the text of `/proc/locks`, `proc_locks(5)`: `1: FLOCK  ADVISORY  WRITE 77
/// 08:01:1234 0 EOF`, with the device in hexadecimal and the inode in decimal digits. Lines of processes that wait
/// have `->` after the number.
fn holder_in(locks: &str, (major, minor): (u32, u32), inode: u64) -> Option<u32> {
    let file = format!("{major:02x}:{minor:02x}:{inode}");
    locks.lines().find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        match words.as_slice() {
            [_, "FLOCK", _, _, process, place, ..] if *place == file => {
                process.parse().ok().filter(|process| *process > 0)
            }
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCKS: &str = "\
1: POSIX  ADVISORY  WRITE 700 08:01:1234 0 EOF
2: FLOCK  ADVISORY  WRITE 77 08:01:1234 0 EOF
2: -> FLOCK  ADVISORY  WRITE 78 08:01:1234 0 EOF
3: FLOCK  ADVISORY  WRITE 79 fd:1f:1234 0 EOF
4: FLOCK  ADVISORY  WRITE 0 08:01:5 0 EOF
5: FLOCK
";

    #[test]
    fn the_holder_of_a_lock_is_found_by_device_and_inode() {
        assert_eq!(holder_in(LOCKS, (8, 1), 1234), Some(77));
        assert_eq!(holder_in(LOCKS, (0xfd, 0x1f), 1234), Some(79));
        assert_eq!(holder_in(LOCKS, (8, 1), 123), None);
    }

    #[test]
    fn a_holder_in_another_container_is_unknown() {
        assert_eq!(holder_in(LOCKS, (8, 1), 5), None);
    }
}
