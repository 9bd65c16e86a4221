// SPDX-License-Identifier: Apache-2.0
//! Directories that cannot be used, and disks that fail.

use super::*;
use crate::disk::tests::failing_disk::FailingDisk;

fn open_over(dir: &Path, storage: FailingDisk) -> SampleFiles {
    SampleFiles::open_with(&config_of(dir, "pictures", 8 << 20), Box::new(storage)).unwrap()
}

#[test]
fn a_full_disk_is_a_fault_and_what_is_there_is_still_read() {
    let dir = TempDir::new().unwrap();
    let files = open_over(dir.path(), FailingDisk::after(1, u64::MAX, u64::MAX));
    insert(&files, 0..100);
    let there = found(&files);
    assert!((10..50).contains(&there.len()), "{there:?}");
    let fault = files.fault().unwrap();
    assert!(fault.contains("partition-0") && fault.contains("No space left"), "{fault}");
    insert(&files, 0..100);
    assert_eq!(found(&files), there);
    assert_eq!(files_named(dir.path(), "seg").len(), 1, "the second one was removed");
}

#[test]
fn a_failed_write_is_a_fault_and_stores_nothing() {
    let dir = TempDir::new().unwrap();
    for writes in [4, 5] {
        let files = open_over(dir.path(), FailingDisk::after(9, writes, u64::MAX));
        insert(&files, 0..30);
        assert!(files.fault().is_some_and(|fault| fault.contains("Input/output error")));
        assert!(found(&files).len() <= 4);
    }
    insert(&open(dir.path()), 0..30);
    assert_eq!(found(&open(dir.path())).len(), 30);
}

#[test]
fn a_sample_that_cannot_be_read_is_missing() {
    let dir = TempDir::new().unwrap();
    insert(&open(dir.path()), 0..30);
    let files = open_over(dir.path(), FailingDisk::after(9, u64::MAX, 10));
    assert_eq!(found(&files), (0..10).collect::<Vec<_>>());
}

#[test]
fn a_read_only_directory_is_read_and_not_changed() {
    let dir = TempDir::new().unwrap();
    let open_read_only = || {
        let config = config_of(dir.path(), "pictures", 8 << 20);
        SampleFiles::open_with(&config, Box::new(FailingDisk::read_only()))
    };
    assert!(matches!(open_read_only(), Err(DiskError::ReadOnly { .. })));
    let writer = open(dir.path());
    insert(&writer, 0..10);
    for _ in 0..2 {
        let files = open_read_only().unwrap();
        assert!(files.is_read_only());
        insert(&files, 0..100);
        assert_eq!((found(&files).len(), files.fault()), (10, None));
    }
    drop(writer);
    let files = open_read_only().unwrap();
    assert_eq!(found(&files).len(), 10);
}

#[test]
fn a_directory_that_vanishes_is_a_fault_once_more_space_is_needed() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("cache");
    let files = open(&path);
    insert(&files, 0..10);
    fs::remove_dir_all(&path).unwrap();
    assert_eq!(found(&files).len(), 10);
    insert(&files, 0..100);
    let there = found(&files);
    assert!((10..100).contains(&there.len()) && files.fault().is_some(), "{there:?} {:?}", files.fault());
}

#[test]
fn an_unusable_directory_or_capacity_is_an_error() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let open = |path: &Path, capacity| SampleFiles::open(&config_of(path, "pictures", capacity));
    assert!(matches!(open(&file, 1 << 20), Err(DiskError::NotADirectory { .. })));
    assert!(matches!(open(dir.path(), 1000), Err(DiskError::TooSmall { .. })));
    insert(&open(dir.path(), 8 << 20).unwrap(), 0..3);
    let segment = &files_named(dir.path(), "seg")[0];
    let outside = dir.path().join("outside");
    fs::rename(segment, &outside).unwrap();
    std::os::unix::fs::symlink(&outside, segment).unwrap();
    assert!(matches!(open(dir.path(), 8 << 20), Err(DiskError::Untrusted { .. })));
}

#[test]
fn a_process_that_does_not_stop_appending_delays_others_only_once() {
    let dir = TempDir::new().unwrap();
    let files = open(dir.path());
    let stopped = File::open(&files_named(dir.path(), "append")[0]).unwrap();
    flock(&stopped, FlockOperation::LockExclusive).unwrap();
    insert(&files, 0..10);
    assert_eq!(found(&files), [0_u64; 0]);
    assert!(!files.turn.lock().unwrap().is_patient);
    assert_eq!(found(&open(dir.path())), [0_u64; 0], "opening does not wait for it either");
    drop(stopped);
    insert(&files, 0..10);
    assert_eq!((found(&files).len(), files.fault()), (10, None));
}

#[test]
fn a_segment_whose_creator_was_killed_is_passed_over() {
    let dir = TempDir::new().unwrap();
    let files = open(dir.path());
    insert(&files, 0..3);
    fs::write(files_named(dir.path(), "seg")[0].with_file_name("00000001.seg"), "").unwrap();
    insert(&files, 3..60);
    assert_eq!(found(&files).len(), 60);
    drop(files);
    assert_eq!(found(&open(dir.path())).len(), 60);
}
