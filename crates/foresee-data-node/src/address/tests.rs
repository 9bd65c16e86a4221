// SPDX-License-Identifier: Apache-2.0
//! Tests of addresses, of names within a job, and of the checks of a directory.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::{fs, iter};

use tempfile::TempDir;

use super::directory::is_network;
use super::owner::{DirectoryOwner, owner_of, trusted_owner};
use super::*;

fn values() -> AddressValues {
    AddressValues {
        off: None,
        node: None,
        runtime_directory: None,
        temporary_directory: "/tmp".into(),
        uid: 1000,
    }
}

fn path(values: &AddressValues) -> PathBuf {
    match values.service().unwrap() {
        NodeDiscovery::At(address) => address.path().to_owned(),
        NodeDiscovery::Off => panic!("no cache"),
    }
}

#[test]
fn a_service_is_found_by_its_variable_then_the_runtime_directory_then_the_temporary_one() {
    let mut values = values();
    assert_eq!(path(&values), Path::new("/tmp/foresee-1000/node.sock"));
    values.runtime_directory = Some("/run/user/1000".into());
    assert_eq!(path(&values), Path::new("/run/user/1000/foresee/node.sock"));
    values.node = Some("".into());
    assert_eq!(path(&values), Path::new("/run/user/1000/foresee/node.sock"));
    values.node = Some("/x/y.sock".into());
    assert_eq!(path(&values), Path::new("/x/y.sock"));
    let NodeDiscovery::At(address) = values.service().unwrap() else { panic!("no cache") };
    assert!(address.is_explicit());
    values.node = None;
    values.runtime_directory = Some("relative".into());
    assert_eq!(path(&values), Path::new("/tmp/foresee-1000/node.sock"));
}

#[test]
fn a_user_can_refuse_every_cache_of_the_node() {
    let is_off = |off: Option<&str>, node: Option<&str>| {
        let values = AddressValues { off: off.map(Into::into), node: node.map(Into::into), ..values() };
        assert_eq!(
            values.service().unwrap() == NodeDiscovery::Off,
            values.launched(&torchrun()).unwrap().is_none()
        );
        assert_eq!(
            values.launched(&torchrun()).unwrap().is_none(),
            values.listings(&torchrun()).unwrap().is_none()
        );
        values.service().unwrap() == NodeDiscovery::Off
    };
    assert!(is_off(Some("1"), None));
    assert!(is_off(Some("1"), Some("/x/y.sock")));
    assert!(is_off(None, Some("off")));
    assert!(!is_off(Some("0"), None));
    assert!(!is_off(None, None));
}

#[test]
fn an_invalid_value_is_named_with_its_remedy() {
    let refused = |values: AddressValues| values.service().unwrap_err().to_string();
    let off = refused(AddressValues { off: Some("yes".into()), ..values() });
    assert_eq!(off, "FORESEE_OFF=\"yes\" is invalid; use 1 or 0");
    for node in ["relative.sock", "/"] {
        let text = refused(AddressValues { node: Some(node.into()), ..values() });
        assert!(text.contains("FORESEE_NODE") && text.contains(node) && text.contains("absolute"), "{text}");
    }
}

#[test]
fn a_path_has_at_most_107_bytes() {
    let name = |bytes: usize| format!("/{}", "x".repeat(bytes - 1));
    assert!(NodeAddress::explicit(name(107)).is_ok());
    let refused = NodeAddress::explicit(name(108)).unwrap_err().to_string();
    for part in ["108 bytes", "at most 107", "FORESEE_NODE"] {
        assert!(refused.contains(part), "{refused}");
    }
    let deep = AddressValues { temporary_directory: name(100).into(), ..values() };
    assert!(matches!(deep.service(), Err(NodeError::PathTooLong { .. })));
    assert!(matches!(deep.launched(&torchrun()), Err(NodeError::PathTooLong { .. })));
}

fn torchrun() -> LauncherValues {
    LauncherValues {
        run_id: Some("job-7".into()),
        restart_count: Some("0".into()),
        master: Some(("node1".into(), "29500".into())),
        boot_id: Some("b".into()),
        ..LauncherValues::default()
    }
}

fn slurm() -> LauncherValues {
    LauncherValues {
        slurm: Some(("12".into(), "0".into(), "0".into())),
        slurm_tasks: Some(8),
        boot_id: Some("b".into()),
        ..LauncherValues::default()
    }
}

#[test]
fn runs_restarts_nodes_and_users_have_different_names() {
    let launchers = [
        torchrun(),
        LauncherValues { run_id: Some("job-8".into()), ..torchrun() },
        LauncherValues { restart_count: Some("1".into()), ..torchrun() },
        LauncherValues { boot_id: Some("c".into()), ..torchrun() },
        LauncherValues { master: Some(("node1".into(), "29501".into())), ..torchrun() },
        LauncherValues { master: None, ..torchrun() },
        LauncherValues { group_rank: Some("1".into()), ..torchrun() },
        LauncherValues { slurm: slurm().slurm, ..torchrun() },
        slurm(),
        LauncherValues { slurm: Some(("12".into(), "1".into(), "0".into())), ..slurm() },
        LauncherValues { slurm: Some(("120".into(), String::new(), "0".into())), ..slurm() },
        LauncherValues { slurm: Some(("12".into(), "0".into(), "1".into())), ..slurm() },
    ];
    let mut names: Vec<_> = launchers.iter().map(|launcher| launcher.file_name(1000).unwrap()).collect();
    names.extend(torchrun().file_name(1001));
    assert_eq!(names[0], torchrun().file_name(1000).unwrap(), "equal values have equal names");
    assert_eq!(names[0], "job-15c55cddeead2498fe9e37f703f08f5c.sock", "the name of the format page");
    names.sort();
    names.dedup();
    assert_eq!(names.len(), launchers.len() + 1);
    assert!(names.iter().all(|name| name.len() == 41), "{names:?}");
    let address = values().launched(&slurm()).unwrap().unwrap();
    assert!(address.path().starts_with("/tmp/foresee-1000") && !address.is_explicit());
    let listings = values().listings(&slurm()).unwrap().unwrap();
    let (host, listings) = (address.path().file_name().unwrap(), listings.path().file_name().unwrap());
    assert_eq!(listings.to_str().unwrap(), format!("list-{}", host.to_str().unwrap()));
}

#[test]
fn a_host_has_one_identity_at_all_paths_of_its_socket() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| NodeAddress::explicit(folder.path().join(name)).unwrap();
    for name in ["a.sock", "b.sock"] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    fs::hard_link(folder.path().join("a.sock"), folder.path().join("mounted.sock")).unwrap();
    let id = at("a.sock").host_id("boot");
    assert_eq!((id.len(), &id), (32, &at("mounted.sock").host_id("boot")));
    let others =
        [at("b.sock").host_id("boot"), at("a.sock").host_id("another"), at("gone.sock").host_id("boot")];
    assert!(others.iter().all(|other| *other != id), "{others:?}");
}

#[test]
fn values_that_identify_no_run_have_no_name() {
    let none = LauncherValues { run_id: Some("none".into()), ..torchrun() };
    assert!(none.file_name(1000).is_some(), "the master's address identifies it");
    for launcher in [
        LauncherValues::default(),
        LauncherValues { master: None, ..none },
        LauncherValues { restart_count: None, ..torchrun() },
        LauncherValues { boot_id: None, ..torchrun() },
        LauncherValues { slurm_tasks: Some(1), ..slurm() },
        LauncherValues { slurm_tasks: None, ..slurm() },
    ] {
        assert_eq!(launcher.file_name(1000), None, "{launcher:?}");
        assert_eq!(values().launched(&launcher).unwrap(), None);
    }
}

#[test]
fn the_environment_of_a_test_is_read() {
    let values = AddressValues::from_environment();
    assert_eq!(values.uid, rustix::process::geteuid().as_raw());
    assert!(LauncherValues::from_environment().boot_id.is_some_and(|id| id.len() == 36));
}

fn own() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn fault(path: &Path, uid: u32) -> DirectoryFault {
    match SocketDirectory::create(path, uid, Access::Private).unwrap_err() {
        NodeError::Directory { path: found, fault } => {
            assert_eq!(found, path);
            fault
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_directory_is_created_for_its_owner_alone() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("foresee");
    for _ in 0..2 {
        SocketDirectory::create(&path, own(), Access::Private).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o700);
    }
    for (name, access, mode) in [("named", Access::Protected, 0o700), ("shared", Access::Shared, 0o755)] {
        let path = dir.path().join(name);
        SocketDirectory::create(&path, own(), access).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, mode);
    }
    assert!(matches!(fault(&dir.path().join("missing/foresee"), own()), DirectoryFault::Io(_)));
}

#[test]
fn a_squatted_directory_is_refused_with_path_owner_and_remedy() {
    let dir = TempDir::new().unwrap();
    let [real, link, dangling, file] = ["real", "link", "dangling", "file"].map(|name| dir.path().join(name));
    SocketDirectory::create(&real, own(), Access::Private).unwrap();
    let other = own() + 1;
    let owner = fault(&real, other);
    assert!(
        matches!(owner, DirectoryFault::Owner { owner, expected } if (owner, expected) == (own(), other))
    );
    assert!(owner.to_string().contains(&format!("belongs to uid {} instead of {other}", own())), "{owner}");
    symlink(&real, &link).unwrap();
    symlink("nowhere", &dangling).unwrap();
    for link in [link, dangling] {
        assert!(matches!(fault(&link, own()), DirectoryFault::Link { owner } if owner == own()));
    }
    fs::write(&file, "").unwrap();
    assert!(matches!(fault(&file, own()), DirectoryFault::Kind { .. }));
    for mode in [0o777, 0o770, 0o701, 0o1777] {
        fs::set_permissions(&real, fs::Permissions::from_mode(mode)).unwrap();
        let fault = fault(&real, own());
        assert!(matches!(fault, DirectoryFault::Mode { mode: found, .. } if found == mode));
        assert!(fault.to_string().contains("chmod 0700"), "{fault}");
    }
}

#[test]
fn others_may_reach_a_directory_that_the_user_named_and_not_write_it() {
    let dir = TempDir::new().unwrap();
    let all = [Access::Protected, Access::Shared];
    for (mode, is_accepted) in [(0o755, true), (0o711, true), (0o700, true), (0o775, false), (0o757, false)] {
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
        for access in all {
            let outcome = SocketDirectory::open(dir.path(), own(), access);
            assert_eq!(outcome.is_ok(), is_accepted, "{mode:o}");
        }
    }
}

#[test]
fn nfs_is_recognised_by_its_number() {
    assert!(is_network(0x6969_i64));
    // tmpfs, ext4, and a number of the other half.
    assert!(iter::once(-1).chain([0x0102_1994, 0xEF53]).all(|system: i64| !is_network(system)));
}

#[test]
fn the_owner_of_a_directory_is_trusted_unless_others_can_replace_it() {
    let path = |found: &[(u32, u32)]| {
        let all = found.iter().map(|&(uid, mode)| DirectoryOwner { uid, mode: 0o040_000 | mode });
        owner_of(&all.collect::<Vec<_>>(), 1000)
    };
    assert_eq!(path(&[(7, 0o755), (0, 0o755), (0, 0o755)]), Some(7));
    assert_eq!(path(&[(7, 0o755), (1000, 0o700), (0, 0o755)]), Some(7));
    assert_eq!(path(&[(7, 0o775), (0, 0o755), (0, 0o755)]), None);
    assert_eq!(path(&[(7, 0o755), (0, 0o1777), (0, 0o755)]), None);
    assert_eq!(path(&[(7, 0o755), (8, 0o755), (0, 0o755)]), None);
}

#[test]
fn no_other_user_is_trusted_at_an_address_that_nobody_gave_or_behind_a_link() {
    assert_eq!(NodeAddress::new("/usr/node.sock".into(), false).unwrap().trusted_uids(), []);
    let dir = TempDir::new().unwrap();
    let link = dir.path().join("link");
    symlink("/usr", &link).unwrap();
    assert_eq!(trusted_owner(&link, 1000), None);
    assert_eq!(trusted_owner(Path::new("/usr/../usr"), 1000), None);
    assert_eq!(trusted_owner(&dir.path().join("absent"), 1000), None);
}
