// SPDX-License-Identifier: Apache-2.0
//! Samples under a key: what other processes and later runs find, damage, budget, and a disk that fails.
//!
//! Locks belong to open files, so two [`SampleFiles`] of one process meet as those of two processes do.

mod faults;

use std::fs;
use std::path::Path;

use foresee_units::GAMMA;
use tempfile::TempDir;

use super::*;
use crate::disk::{CacheDirectory, PartitionUser, Removal, Verification};

fn config_of(dir: &Path, key: &str, capacity: u64) -> SampleFilesConfig {
    let identity = OriginIdentity::of_key(key, "100 samples");
    SampleFilesConfig { dir: dir.to_owned(), capacity: Bytes::new(capacity), identity, samples: 100 }
}

fn open(dir: &Path) -> SampleFiles {
    SampleFiles::open(&config_of(dir, "pictures", 8 << 20)).unwrap()
}

/// The content of a sample: empty, small, or large enough for pages of its own.
pub(super) fn content(sample: u64) -> Vec<u8> {
    let seed = (sample + 1).wrapping_mul(GAMMA).to_le_bytes();
    let len = [0, 300, 70_000][usize::try_from(sample % 3).unwrap()];
    seed.into_iter().cycle().take(len).collect()
}

fn insert(files: &SampleFiles, samples: impl IntoIterator<Item = u64>) {
    for sample in samples {
        files.insert(SampleId(sample), &content(sample));
    }
}

/// Which of 100 samples are there. Each that is has its bytes.
fn found(files: &SampleFiles) -> Vec<u64> {
    let is_there = |&sample: &u64| {
        let bytes = files.get(SampleId(sample));
        assert!(bytes.as_ref().is_none_or(|bytes| *bytes == content(sample)), "sample {sample}");
        bytes.is_some()
    };
    (0..100).filter(is_there).collect()
}

/// The files of the key's partition that have this extension, or this name.
fn files_named(dir: &Path, name: &str) -> Vec<PathBuf> {
    let source = OriginIdentity::of_key("pictures", "100 samples").folder().to_owned();
    let folder = dir.join(source).join("partition-0");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().or_else(|| path.file_name()).is_some_and(|end| end == name));
    paths.sort();
    paths
}

fn disk_bytes(dir: &Path) -> u64 {
    let content = CacheDirectory::open(dir).unwrap().content().unwrap();
    content.partitions.iter().map(|partition| partition.disk_bytes.get()).sum()
}

#[test]
fn a_later_run_finds_all_samples_with_and_without_a_manifest() {
    let dir = TempDir::new().unwrap();
    let files = open(dir.path());
    assert_eq!(found(&files), [0_u64; 0]);
    insert(&files, 0..50);
    assert_eq!(found(&files), (0..50).collect::<Vec<_>>());
    drop(files);
    let old = fs::read(&files_named(dir.path(), "manifest")[0]).unwrap();
    let files = open(dir.path());
    assert_eq!(found(&files), (0..50).collect::<Vec<_>>());
    insert(&files, 50..100);
    drop(files);
    let manifest = &files_named(dir.path(), "manifest")[0];
    assert_ne!(fs::read(manifest).unwrap(), old);
    assert_eq!(found(&open(dir.path())).len(), 100);
    // As after a crash: it lists less than there is, or nothing.
    for content in [Some(old), Some(b"damaged".to_vec()), None] {
        match content {
            Some(bytes) => fs::write(manifest, bytes).unwrap(),
            None => fs::remove_file(manifest).unwrap(),
        }
        assert_eq!(found(&open(dir.path())).len(), 100);
    }
}

#[test]
fn processes_see_at_once_what_the_others_append_and_store_no_sample_twice() {
    let dir = TempDir::new().unwrap();
    let (one, other) = (open(dir.path()), open(dir.path()));
    for sample in 0..100 {
        let (writer, reader) = if sample % 5 < 2 { (&one, &other) } else { (&other, &one) };
        insert(writer, [sample]);
        assert_eq!(reader.get(SampleId(sample)), Some(content(sample)), "sample {sample}");
        insert(reader, [sample]);
    }
    assert_eq!((found(&one).len(), found(&other).len()), (100, 100));
    drop((one, other));
    let directory = CacheDirectory::open(dir.path()).unwrap();
    let [partition] = directory.content().unwrap().partitions.try_into().unwrap();
    let payload = (0..100).map(|sample| content(sample).len() as u64).sum();
    assert_eq!(partition.entries, Some((100, Bytes::new(payload))));
}

#[test]
fn another_key_or_variant_has_other_samples() {
    let dir = TempDir::new().unwrap();
    let files = open(dir.path());
    insert(&files, 0..10);
    let other = SampleFiles::open(&config_of(dir.path(), "pictures-2", 8 << 20)).unwrap();
    assert_eq!(found(&other), [0_u64; 0]);
    let identity = OriginIdentity::of_key("pictures", "101 samples");
    let config = SampleFilesConfig { identity, ..config_of(dir.path(), "", 8 << 20) };
    assert_eq!(found(&SampleFiles::open(&config).unwrap()), [0_u64; 0]);
}

#[test]
fn a_damaged_sample_is_missing_until_it_is_appended_again() {
    let dir = TempDir::new().unwrap();
    let (files, other) = (open(dir.path()), open(dir.path()));
    insert(&files, 0..30);
    assert_eq!(found(&other).len(), 30);
    for path in files_named(dir.path(), "seg") {
        let mut bytes = fs::read(&path).unwrap();
        // The header of sample 0, and payload of others.
        for at in [10, 200, 90_000] {
            bytes[at] ^= 1;
        }
        fs::write(&path, bytes).unwrap();
    }
    let left = found(&files);
    assert!((20..30).contains(&left.len()) && !left.contains(&0), "{left:?}");
    insert(&files, 0..30);
    assert_eq!((found(&files).len(), found(&other).len()), (30, 30));
    drop((files, other));
    assert_eq!(found(&open(dir.path())).len(), 30);
}

#[test]
fn a_cut_segment_loses_samples_and_returns_no_wrong_one() {
    let dir = TempDir::new().unwrap();
    let files = open(dir.path());
    insert(&files, 0..30);
    let segment = &files_named(dir.path(), "seg")[0];
    File::options().write(true).open(segment).unwrap().set_len(100_000).unwrap();
    assert!(found(&files).len() < 30);
    drop(files);
    let files = open(dir.path());
    assert!(found(&files).len() < 30);
    insert(&files, 0..30);
    assert_eq!(found(&files).len(), 30);
}

#[test]
fn a_full_budget_keeps_what_is_there() {
    let dir = TempDir::new().unwrap();
    let config = config_of(dir.path(), "pictures", 2 << 20);
    let files = SampleFiles::open(&config).unwrap();
    insert(&files, 0..100);
    let there = found(&files);
    assert!((20..100).contains(&there.len()), "{there:?}");
    assert!(disk_bytes(dir.path()) <= 2 << 20);
    insert(&files, 0..100);
    assert_eq!((found(&files), files.fault()), (there.clone(), None));
    drop(files);
    assert_eq!(found(&SampleFiles::open(&config).unwrap()), there);
    assert!(disk_bytes(dir.path()) <= 2 << 20);
}

#[test]
fn a_sample_that_is_larger_than_the_budget_leaves_space_to_others() {
    let dir = TempDir::new().unwrap();
    let files = open(dir.path());
    files.insert(SampleId(0), &vec![1; 9 << 20]);
    assert_eq!((files.get(SampleId(0)), files.fault()), (None, None));
    insert(&files, 0..30);
    assert_eq!(found(&files).len(), 30);
}

#[test]
fn the_budget_counts_all_keys_and_unused_ones_leave_first() {
    let dir = TempDir::new().unwrap();
    let of = |key| SampleFiles::open(&config_of(dir.path(), key, 2 << 20)).unwrap();
    let (unused, used) = (of("unused"), of("used"));
    insert(&unused, (2..60).step_by(3));
    drop(unused);
    insert(&used, (2..30).step_by(3));
    let there = found(&used);
    assert!(!there.is_empty());
    let latest = of("pictures");
    insert(&latest, 0..100);
    assert!(!found(&latest).is_empty());
    assert!(disk_bytes(dir.path()) <= 2 << 20, "{}", disk_bytes(dir.path()));
    assert_eq!(found(&used), there);
    drop((latest, used));
    assert_eq!(found(&of("unused")), [0_u64; 0]);
}

#[test]
fn tools_list_verify_and_delete_the_samples_of_a_key() {
    let dir = TempDir::new().unwrap();
    let (files, other) = (open(dir.path()), open(dir.path()));
    insert(&files, 0..30);
    let directory = CacheDirectory::open(dir.path()).unwrap();
    let listed = || directory.content().unwrap().partitions;
    let source = listed()[0].source.clone();
    assert!(source.starts_with("key-pictures-"), "{source}");
    let user = PartitionUser { process: Some(std::process::id()) };
    assert!(listed()[0].user.is_some() && listed()[0].declared == Some(Bytes::new(8 << 20)));
    let remove = || directory.remove(&source, "partition-0").unwrap();
    let removal = remove();
    assert!(
        matches!(removal, Removal::InUse(found) if found == user || found.process.is_none()),
        "{removal:?}"
    );
    drop(files);
    assert!(listed()[0].user.is_some(), "one of two has ended");
    drop(other);
    assert!(listed()[0].user.is_none() && listed()[0].entries.is_some_and(|(entries, _)| entries == 30));
    let verify = || {
        let verified = directory.verify(&source, "partition-0", &|_, _| (), &false.into()).unwrap();
        let Verification::Complete { entries, corrupt, .. } = verified else { panic!("{verified:?}") };
        (entries, corrupt.len())
    };
    assert_eq!(verify(), (30, 0));
    let segment = &files_named(dir.path(), "seg")[0];
    let mut bytes = fs::read(segment).unwrap();
    bytes[10] ^= 1;
    fs::write(segment, bytes).unwrap();
    assert_eq!(verify(), (30, 1));
    assert!(matches!(remove(), Removal::Freed(bytes) if bytes > Bytes::ZERO));
    assert!(listed().is_empty() && !dir.path().join(&source).exists());
    assert_eq!(found(&open(dir.path())), [0_u64; 0]);
}

#[test]
fn a_long_run_writes_manifests_that_later_processes_read() {
    let dir = TempDir::new().unwrap();
    let config = SampleFilesConfig { samples: 2000, ..config_of(dir.path(), "pictures", 64 << 20) };
    let files = SampleFiles::open(&config).unwrap();
    for sample in 0..2000 {
        files.insert(SampleId(sample), b"bytes");
    }
    assert_eq!(files_named(dir.path(), "manifest").len(), 1);
    let later = SampleFiles::open(&config).unwrap();
    assert!((0..2000).all(|sample| later.get(SampleId(sample)).is_some_and(|bytes| bytes == b"bytes")));
}

#[test]
fn the_samples_of_a_killed_writer_that_wrote_no_header_are_overwritten() {
    let dir = TempDir::new().unwrap();
    let files = open(dir.path());
    insert(&files, 0..5);
    let place = files.index().next_place(70_000).unwrap();
    let torn = vec![7; 70_000];
    let offset = place.segment.offset(place.at) + HEADER as u64;
    Kernel.write(place.segment.file(), &mut [IoSlice::new(&torn)], offset).unwrap();
    drop(files);
    let files = open(dir.path());
    assert_eq!(found(&files).len(), 5);
    insert(&files, 0..30);
    drop(files);
    assert_eq!(found(&open(dir.path())).len(), 30);
}
