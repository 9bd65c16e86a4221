// SPDX-License-Identifier: Apache-2.0
//! Lists, verification and deletion of a directory's content, on directories with every kind of damage.

use std::os::unix::fs::{FileExt, symlink};
use std::sync::atomic::AtomicBool;

use super::*;

const CAPACITY: u64 = 8 << 20;

/// A cache with three samples, closed in order.
fn cache(dir: &Path) -> PathBuf {
    let rig = Rig::open(&config(dir, CAPACITY));
    for (id, len) in [(1, 100), (3, 5_000), (2, 70_000)] {
        assert_eq!(rig.write(key(id), &content(id, len)), ReadOutcome::Ok);
    }
    drop(rig);
    files(dir, "seg").remove(0)
}

fn only(dir: &Path) -> PartitionFacts {
    let mut content = CacheDirectory::open(dir).unwrap().content().unwrap();
    assert_eq!((content.partitions.len(), content.faults.len()), (1, 0), "{content:?}");
    content.partitions.remove(0)
}

fn verify(dir: &Path) -> Verification {
    let facts = only(dir);
    let tool = CacheDirectory::open(dir).unwrap();
    tool.verify(&facts.source, &facts.partition, &|_, _| (), &AtomicBool::new(false)).unwrap()
}

fn remove(dir: &Path) -> Result<Removal, DiskError> {
    let facts = CacheDirectory::open(dir).unwrap().content().unwrap().partitions.remove(0);
    CacheDirectory::open(dir).unwrap().remove(&facts.source, &facts.partition)
}

/// Flip a byte at a position of a segment.
fn flip(segment: &Path, at: u64) {
    let file = fs::File::options().read(true).write(true).open(segment).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

/// Entries, and segment, offset and fault of each corrupt one.
fn corrupt(dir: &Path) -> (u64, Vec<(u64, u64, EntryFault)>) {
    let Verification::Complete { entries, corrupt, .. } = verify(dir) else { panic!("not in use") };
    (entries, corrupt.into_iter().map(|entry| (entry.segment, entry.offset, entry.fault)).collect())
}

#[test]
fn a_closed_partition_is_listed_with_its_entries_and_its_declared_capacity() {
    let dir = TempDir::new().unwrap();
    cache(dir.path());
    let facts = only(dir.path());
    assert_eq!(facts.partition, "partition-0");
    assert_eq!((facts.version, facts.user), (2, None));
    assert_eq!(facts.entries, Some((3, Bytes::new(75_100))));
    assert_eq!(facts.declared, Some(Bytes::new(CAPACITY)));
    assert!(facts.last_used > 0 && facts.disk_bytes.get() > 75_100, "{facts:?}");
}

#[test]
fn a_partition_in_use_is_reported_with_its_process_and_neither_verified_nor_deleted() {
    let dir = TempDir::new().unwrap();
    let rig = Rig::open(&config(dir.path(), CAPACITY));
    assert_eq!(rig.write(key(1), &content(1, 70_000)), ReadOutcome::Ok);
    let facts = only(dir.path());
    assert_eq!(facts.entries, None);
    let user = facts.user.expect("the rig uses it");
    assert!(user.process.is_none_or(|process| process == std::process::id()), "{user:?}");
    assert_eq!(verify(dir.path()), Verification::InUse(user));
    assert_eq!(remove(dir.path()).unwrap(), Removal::InUse(user));
    assert_eq!(rig.read(key(1), 70_000).unwrap(), content(1, 70_000));
}

#[test]
fn an_intact_partition_is_verified_with_and_without_its_manifest_and_stays_unchanged() {
    let dir = TempDir::new().unwrap();
    cache(dir.path());
    let intact = Verification::Complete { entries: 3, bytes: Bytes::new(75_100), corrupt: Vec::new() };
    assert_eq!(verify(dir.path()), intact);
    assert_eq!(only(dir.path()).entries, Some((3, Bytes::new(75_100))), "the manifest is still there");
    fs::remove_file(&files(dir.path(), "manifest")[0]).unwrap();
    assert_eq!(only(dir.path()).entries, None);
    assert_eq!(verify(dir.path()), intact);
    assert_eq!(Rig::open(&config(dir.path(), CAPACITY)).ids(), [1, 2, 3]);
}

#[test]
fn a_flipped_byte_is_reported_with_segment_and_offset() {
    let dir = TempDir::new().unwrap();
    let segment = cache(dir.path());
    // The entry of 100 bytes has offsets 0 to 192, then comes that of 5000.
    flip(&segment, 70);
    let payload = (0, 0, EntryFault::Payload);
    assert_eq!(corrupt(dir.path()), (3, vec![payload.clone()]));
    flip(&segment, 192 + 9);
    let header = (0, 192, EntryFault::Header);
    assert_eq!(corrupt(dir.path()), (3, vec![payload.clone(), header]));
    // A scan does not find an entry without its header.
    fs::remove_file(&files(dir.path(), "manifest")[0]).unwrap();
    assert_eq!(corrupt(dir.path()), (2, vec![payload]));
}

#[test]
fn entries_past_the_end_of_a_cut_segment_are_no_part_of_the_cache() {
    let dir = TempDir::new().unwrap();
    cache(dir.path());
    for (len, entries) in [(4096, 1), (0, 0)] {
        for segment in files(dir.path(), "seg") {
            fs::File::options().write(true).open(&segment).unwrap().set_len(len).unwrap();
        }
        assert_eq!(corrupt(dir.path()), (entries, Vec::new()));
    }
}

#[test]
fn a_cancelled_verification_ends() {
    let dir = TempDir::new().unwrap();
    cache(dir.path());
    let facts = only(dir.path());
    let tool = CacheDirectory::open(dir.path()).unwrap();
    let cancel = AtomicBool::new(false);
    let seen = AtomicU64::new(0);
    let stop = |entries, _| {
        seen.store(entries, Ordering::Relaxed);
        cancel.store(true, Ordering::Relaxed);
    };
    let ended = tool.verify(&facts.source, &facts.partition, &stop, &cancel).unwrap();
    assert_eq!((ended, seen.into_inner()), (Verification::Cancelled, 1));
}

#[test]
fn a_deleted_partition_frees_its_bytes_and_leaves_unknown_files() {
    let dir = TempDir::new().unwrap();
    let segment = cache(dir.path());
    let partition = segment.parent().unwrap().to_owned();
    fs::write(partition.join("notes.txt"), b"mine").unwrap();
    fs::write(dir.path().join("a-file-of-the-user"), b"mine").unwrap();
    let Removal::Freed(freed) = remove(dir.path()).unwrap() else { panic!("not in use") };
    assert!(freed.get() > 75_100, "{freed:?}");
    assert!(!segment.exists() && partition.join("notes.txt").exists());
    assert!(dir.path().join("a-file-of-the-user").exists());
    fs::remove_file(partition.join("notes.txt")).unwrap();
    assert!(matches!(remove(dir.path()).unwrap(), Removal::Freed(_)));
    assert!(!partition.parent().unwrap().exists(), "empty folders are deleted");
}

#[test]
fn a_partition_with_a_link_is_not_deleted_and_the_target_is_untouched() {
    let dir = TempDir::new().unwrap();
    let cache_dir = dir.path().join("cache");
    let segment = cache(&cache_dir);
    let victim = dir.path().join("victim");
    fs::write(&victim, b"mine").unwrap();
    symlink(&victim, segment.with_file_name("00000009.seg")).unwrap();
    let text = remove(&cache_dir).unwrap_err().to_string();
    assert!(text.contains("00000009.seg is a link; remove it"), "{text}");
    assert!(segment.exists() && fs::read(&victim).unwrap() == b"mine");
}

#[test]
fn a_folder_that_is_a_link_is_reported_and_not_entered() {
    let dir = TempDir::new().unwrap();
    let cache_dir = dir.path().join("cache");
    let segment = cache(&cache_dir);
    let source = segment.parent().unwrap().parent().unwrap();
    let elsewhere = dir.path().join("elsewhere");
    fs::create_dir_all(elsewhere.join("partition-0")).unwrap();
    symlink(&elsewhere, cache_dir.join("planted-0123456789abcdef")).unwrap();
    symlink(&elsewhere, source.join("partition-1")).unwrap();
    let tool = CacheDirectory::open(&cache_dir).unwrap();
    let content = tool.content().unwrap();
    assert_eq!(content.partitions.len(), 1);
    assert!(content.faults.len() == 2 && content.faults.iter().all(|text| text.contains("is a link")));
    let removed = tool.remove("planted-0123456789abcdef", "partition-0").unwrap();
    assert_eq!(removed, Removal::Freed(Bytes::ZERO));
    assert_eq!(tool.remove("..", "elsewhere").unwrap(), Removal::Freed(Bytes::ZERO));
    assert!(elsewhere.join("partition-0").exists());
}

#[test]
fn an_old_partition_of_format_version_one_is_listed_and_deleted() {
    let dir = TempDir::new().unwrap();
    let old = dir.path().join("0123456789abcdef0123456789abcdef/lane-0");
    fs::create_dir_all(&old).unwrap();
    fs::write(old.join("00000000.seg"), vec![1; 1 << 20]).unwrap();
    let lock = fs::File::create(old.join("lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let facts = only(dir.path());
    assert!(facts.version == 1 && facts.entries.is_none() && facts.user.is_some(), "{facts:?}");
    assert!(matches!(remove(dir.path()).unwrap(), Removal::InUse(_)) && old.exists());
    drop(lock);
    let Removal::Freed(freed) = remove(dir.path()).unwrap() else { panic!("not in use") };
    assert!(freed.get() >= 1 << 20 && !old.parent().unwrap().exists());
}

#[test]
fn a_directory_without_a_cache_stays_as_it_is_and_a_missing_one_is_not_created() {
    let dir = TempDir::new().unwrap();
    let tool = CacheDirectory::open(dir.path()).unwrap();
    assert!(tool.content().unwrap().partitions.is_empty());
    assert_eq!(tool.remove("set-0123456789abcdef", "partition-0").unwrap(), Removal::Freed(Bytes::ZERO));
    let missing = tool.verify("set-0123456789abcdef", "partition-0", &|_, _| (), &AtomicBool::new(false));
    assert!(missing.unwrap_err().to_string().contains("set-0123456789abcdef/partition-0"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    let absent = dir.path().join("absent");
    assert!(CacheDirectory::open(&absent).unwrap_err().to_string().contains("absent"));
    assert!(!absent.exists());
}
