// SPDX-License-Identifier: Apache-2.0
//! A read-only directory: existing samples are served, and nothing is changed.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};

use super::*;

/// A disk that is mounted read-only: every call that would change it fails the test.
struct ReadOnly;

impl Storage for ReadOnly {
    fn check_writable(&self, _: &folder::Folder) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn allocate(&self, _: &File, _: u64) -> io::Result<()> {
        unreachable!("nothing is created")
    }

    fn write(&self, _: &File, _: &mut [IoSlice<'_>], _: u64) -> io::Result<()> {
        unreachable!("nothing is written")
    }

    fn read(&self, file: &File, parts: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        Kernel.read(file, parts, offset)
    }

    fn flush(&self, _: &File) -> io::Result<()> {
        unreachable!("nothing is written")
    }
}

/// Names, lengths and content of all files.
fn snapshot(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for extension in ["seg", "manifest", "lock"] {
        found.extend(files(dir, extension).into_iter().map(|path| (path.clone(), fs::read(path).unwrap())));
    }
    found
}

#[test]
fn a_read_only_directory_is_read_from_all_partitions_and_not_changed() {
    let dir = TempDir::new().unwrap();
    let of_two = DiskConfig { directory_capacity: Bytes::new(8 << 20), ..config(dir.path(), 4 << 20) };
    let writers = [Rig::open(&of_two), Rig::open(&of_two)];
    assert_eq!(writers[0].write(key(1), &content(1, 70_000)), ReadOutcome::Ok);
    assert_eq!(writers[1].write(key(2), &content(2, 3_000)), ReadOutcome::Ok);
    drop(writers);
    for with_manifest in [true, false] {
        if !with_manifest {
            for path in files(dir.path(), "manifest") {
                fs::remove_file(path).unwrap();
            }
        }
        let before = snapshot(dir.path());
        let readers = [0, 1].map(|_| Rig::over(&of_two, Box::new(ReadOnly)));
        for rig in &readers {
            assert!(rig.tier.is_read_only());
            assert_eq!(rig.tier.facts().place, "disk (read-only)");
            assert_eq!(rig.ids(), [1, 2]);
            assert_eq!(rig.read(key(1), 70_000).unwrap(), content(1, 70_000));
            assert_eq!(rig.read(key(2), 3_000).unwrap(), content(2, 3_000));
            assert_eq!(rig.write(key(3), b"small"), ReadOutcome::Full);
            assert_eq!(rig.drop_sample(key(2)), ReadOutcome::Ok);
            assert_eq!(
                rig.write(key(4), &content(4, 70_000)),
                ReadOutcome::Full,
                "freed bytes are not used either"
            );
        }
        drop(readers);
        assert_eq!(snapshot(dir.path()), before);
    }
}

#[test]
fn a_read_only_directory_without_a_cache_of_this_data_set_is_refused() {
    let dir = TempDir::new().unwrap();
    let opened =
        DiskTier::open_with(&config(dir.path(), 4 << 20), Completions::new(|| ()), Box::new(ReadOnly));
    let text = opened.unwrap_err().to_string();
    assert!(text.contains("is on a read-only file system; choose another"), "{text}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
