// SPDX-License-Identifier: Apache-2.0
//! The cache directory: its size, its permissions, and the errors of an unusable one.

use std::fs::File;
use std::io;
use std::os::unix::fs::PermissionsExt;

use super::*;

#[test]
fn the_disk_never_exceeds_the_capacity_for_any_sizes() {
    let dir = TempDir::new().unwrap();
    let capacity = 3 << 20;
    let rig = Rig::open(&config(dir.path(), capacity));
    for id in 0_u64..3000 {
        let len =
            usize::try_from(id * 7919 % 5000 + if id.is_multiple_of(20) { 200_000 } else { 0 }).unwrap();
        if rig.write(key(id), &content(id, len)) == ReadOutcome::Full {
            let _ = (rig.drop_sample(key(id / 2)), rig.drop_sample(key(id / 3)));
        }
        if id.is_multiple_of(100) {
            assert!(blocks(dir.path()) <= capacity, "{} at {id}", blocks(dir.path()));
        }
    }
    rig.tier.close(GRACE);
    assert!(blocks(dir.path()) <= capacity, "the list counts too");
    assert_eq!(files(dir.path(), "manifest").len(), 1);
}

#[test]
fn only_this_user_can_access_files_and_directories() {
    let dir = TempDir::new().unwrap();
    let cache = dir.path().join("cache");
    let rig = Rig::open(&config(&cache, 4 << 20));
    assert_eq!(rig.write(key(1), &content(1, 70_000)), ReadOutcome::Ok);
    rig.tier.close(GRACE);
    for file in [files(dir.path(), "seg"), files(dir.path(), "manifest"), files(dir.path(), "lock")].concat()
    {
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "{file:?}");
        assert_eq!(fs::metadata(file.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
    }
}

#[test]
fn an_unusable_directory_is_reported_with_its_remedy() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    File::create(&file).unwrap();
    let open = |config: &DiskConfig| DiskTier::open(config, Completions::new(|| ())).unwrap_err().to_string();
    let text = open(&config(&file, 4 << 20));
    assert!(
        text.contains("/file is a file or below a file")
            && text.contains("remove the file or choose another"),
        "{text}"
    );
    let text = open(&config(Path::new("/sys/foresee"), 4 << 20));
    assert!(text.contains("/sys/foresee") && text.contains("disk_size"), "{text}");
    let text = open(&config(dir.path(), 1_000_000));
    let expected =
        "a disk cache of 1000000 bytes is too small; give `disk_size` 1048576 or more, or 0 for none";
    assert_eq!(text, expected);
    let text = open(&DiskConfig { threads: 0, ..config(dir.path(), 4 << 20) });
    assert_eq!(text, "threads is 0, but must be from 1 to 64");
    let read_only = DiskError::at(Path::new("/cache"), io::ErrorKind::ReadOnlyFilesystem.into());
    assert!(read_only.to_string().starts_with("cache directory /cache is on a read-only file system"));
}
