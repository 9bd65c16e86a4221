// SPDX-License-Identifier: Apache-2.0
//! Files and folders that another user may have planted: refused by name, and nothing outside the cache is written.

use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

fn refusal(config: &DiskConfig) -> String {
    let error = DiskTier::open(config, Completions::new(|| ())).unwrap_err();
    assert!(matches!(error, DiskError::Untrusted { .. }), "{error:?}");
    error.to_string()
}

/// A cache with one sample, its one partition and segment.
fn cache(dir: &Path) -> (DiskConfig, PathBuf, PathBuf) {
    let config = config(dir, 4 << 20);
    let rig = Rig::open(&config);
    assert_eq!(rig.write(key(1), &content(1, 70_000)), ReadOutcome::Ok);
    drop(rig);
    let segment = files(dir, "seg").remove(0);
    (config, segment.parent().unwrap().to_owned(), segment)
}

#[test]
fn a_segment_that_is_a_link_is_refused_and_its_target_is_untouched() {
    let dir = TempDir::new().unwrap();
    let (config, _, segment) = cache(&dir.path().join("cache"));
    let victim = dir.path().join("victim");
    fs::write(&victim, vec![7; 2 << 20]).unwrap();
    fs::remove_file(&segment).unwrap();
    symlink(&victim, &segment).unwrap();
    let text = refusal(&config);
    assert!(text.contains("00000000.seg is a link; remove it"), "{text}");
    fs::remove_file(&segment).unwrap();
    fs::hard_link(&victim, &segment).unwrap();
    let text = refusal(&config);
    assert!(text.contains("00000000.seg has a second name"), "{text}");
    assert_eq!(fs::read(&victim).unwrap(), vec![7; 2 << 20]);
    fs::remove_file(&segment).unwrap();
    assert!(Rig::open(&config).cached.is_empty(), "the remedy works");
}

#[test]
fn a_link_at_any_level_below_the_directory_is_refused() {
    let dir = TempDir::new().unwrap();
    let (config, partition, _) = cache(&dir.path().join("cache"));
    let source = partition.parent().unwrap().to_owned();
    for (nth, place) in
        [partition.join("lock"), partition, source, dir.path().join("cache/lock")].iter().enumerate()
    {
        let moved = dir.path().join(format!("moved-{nth}"));
        fs::rename(place, &moved).unwrap();
        symlink(&moved, place).unwrap();
        let text = refusal(&config);
        assert!(text.contains(&format!("{} is a link", place.display())), "{text}");
        fs::remove_file(place).unwrap();
        fs::rename(&moved, place).unwrap();
    }
    assert_eq!(Rig::open(&config).ids(), [1]);
}

#[test]
fn a_folder_that_others_can_write_is_refused() {
    let dir = TempDir::new().unwrap();
    let (config, partition, _) = cache(&dir.path().join("cache"));
    fs::set_permissions(&partition, fs::Permissions::from_mode(0o770)).unwrap();
    let text = refusal(&config);
    assert!(text.contains("partition-0 can be written by other users"), "{text}");
}

#[test]
fn in_a_directory_that_others_can_write_a_private_folder_is_used() {
    let dir = TempDir::new().unwrap();
    let shared = dir.path().join("scratch");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
    let (config, partition, _) = cache(&shared);
    let own = shared.join(format!("foresee-{}", rustix::process::geteuid().as_raw()));
    assert!(partition.starts_with(&own), "{}", partition.display());
    assert_eq!(fs::metadata(&own).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(Rig::open(&config).ids(), [1]);
    fs::rename(&own, dir.path().join("elsewhere")).unwrap();
    symlink(dir.path().join("elsewhere"), &own).unwrap();
    assert!(refusal(&config).contains("is a link"));
}

#[test]
fn the_directory_itself_may_be_reached_through_a_link() {
    let dir = TempDir::new().unwrap();
    let (config, ..) = cache(&dir.path().join("cache"));
    symlink(dir.path().join("cache"), dir.path().join("link")).unwrap();
    let through = DiskConfig { dir: dir.path().join("link"), ..config };
    assert_eq!(Rig::open(&through).ids(), [1]);
}

#[test]
fn a_named_pipe_in_place_of_a_file_is_refused_and_does_not_block() {
    let dir = TempDir::new().unwrap();
    let (config, _, segment) = cache(dir.path());
    fs::remove_file(&segment).unwrap();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &segment, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert!(refusal(&config).contains("00000000.seg is not a regular file"));
    fs::remove_file(&segment).unwrap();
    let lock = segment.with_file_name("lock");
    fs::remove_file(&lock).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &lock, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert!(refusal(&config).contains("lock is not a regular file"));
}
