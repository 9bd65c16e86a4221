// SPDX-License-Identifier: Apache-2.0
//! Paths of sockets: stale, in use, occupied by other files, and removed only by their own host.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;

use foresee_testkit::pause;
use rustix::fs::{FlockOperation, flock};

use super::*;
use crate::{AddressValues, DirectoryFault, NodeDiscovery};

fn bind(address: &NodeAddress) -> Result<NodeListener, NodeError> {
    NodeListener::bind(address, options())
}

fn address(dir: &TempDir) -> NodeAddress {
    NodeAddress::explicit(dir.path().join("node.sock")).unwrap()
}

/// The address that a user without a variable gets, with this directory of temporary files.
fn default_address(dir: &TempDir) -> NodeAddress {
    let values = AddressValues {
        off: None,
        node: None,
        runtime_directory: None,
        temporary_directory: dir.path().to_owned(),
        uid: rustix::process::geteuid().as_raw(),
    };
    match values.service().unwrap() {
        NodeDiscovery::At(address) => address,
        NodeDiscovery::Off => panic!("no cache"),
    }
}

#[test]
fn a_socket_is_private_and_leaves_with_its_listener() {
    let dir = private_dir();
    let address = default_address(&dir);
    assert!(matches!(connect(&address), Err(NodeError::NoHost { .. })));
    let listener = bind(&address).unwrap();
    assert_eq!(listener.path(), address.path());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(address.path()), mode(address.directory())), (0o600, 0o700));
    drop(listener);
    assert!(!address.path().exists());
    assert!(matches!(connect(&address), Err(NodeError::NoHost { .. })));
    bind(&address).unwrap();
}

#[test]
fn a_path_of_a_live_host_is_in_use() {
    let mut rig = Rig::new();
    let inode = fs::metadata(rig.address.path()).unwrap().ino();
    assert!(matches!(bind(&rig.address), Err(NodeError::InUse { .. })));
    assert_eq!(fs::metadata(rig.address.path()).unwrap().ino(), inode);
    rig.attach(1);
}

#[test]
fn a_stale_socket_is_named_and_the_next_host_takes_its_path() {
    let dir = private_dir();
    let address = address(&dir);
    // As a killed host leaves it.
    let socket = raw_socket();
    rustix::net::bind(&socket, &SocketAddrUnix::new(address.path()).unwrap()).unwrap();
    drop(socket);
    let stale = connect(&address).unwrap_err();
    assert!(matches!(stale, NodeError::Stale { .. }));
    assert!(stale.to_string().contains("start `foresee node` again"), "{stale}");
    bind(&address).unwrap();
}

#[test]
fn a_host_removes_the_sockets_of_killed_hosts_of_other_runs() {
    let dir = private_dir();
    let address = default_address(&dir);
    drop(bind(&address).unwrap());
    let path = |name: &str| address.directory().join(name);
    let [killed, live] = ["list-job-1.sock", "job-2.sock"].map(|name| {
        let socket = raw_socket();
        rustix::net::bind(&socket, &SocketAddrUnix::new(path(name)).unwrap()).unwrap();
        socket
    });
    rustix::net::listen(&live, 1).unwrap();
    drop(killed);
    fs::write(path("file.sock"), "no socket").unwrap();
    let _host = bind(&address).unwrap();
    let exist = ["list-job-1.sock", "job-2.sock", "file.sock", "node.sock"].map(|name| path(name).exists());
    assert_eq!(exist, [false, true, true, true]);
}

#[test]
fn a_host_waits_for_another_one_that_starts_in_the_directory() {
    let dir = private_dir();
    let address = address(&dir);
    let lock = fs::File::create(dir.path().join("foresee.lock")).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    let listener = std::thread::scope(|scope| {
        let starting = scope.spawn(|| bind(&address).unwrap());
        pause(Duration::from_millis(20));
        assert!(!address.path().exists());
        flock(&lock, FlockOperation::Unlock).unwrap();
        starting.join().unwrap()
    });
    // A host that ends under another host's lock leaves its socket, which is stale then.
    flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    drop(listener);
    assert!(address.path().exists());
    flock(&lock, FlockOperation::Unlock).unwrap();
    bind(&address).unwrap();
}

#[test]
fn of_hosts_that_start_together_one_gets_the_path() {
    let dir = private_dir();
    let address = address(&dir);
    for _ in 0..20 {
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let starting: Vec<_> = (0..4).map(|_| scope.spawn(|| bind(&address))).collect();
            starting.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
        assert!(
            outcomes
                .iter()
                .filter_map(|outcome| outcome.as_ref().err())
                .all(|fault| { matches!(fault, NodeError::InUse { .. }) })
        );
    }
}

#[test]
fn a_listener_does_not_remove_the_socket_of_another() {
    let dir = private_dir();
    let address = address(&dir);
    let first = bind(&address).unwrap();
    fs::remove_file(address.path()).unwrap();
    let second = bind(&address).unwrap();
    drop(first);
    assert!(address.path().exists());
    drop(second);
    assert!(!address.path().exists());
}

#[test]
fn files_that_are_no_sockets_of_a_cache_stay() {
    let dir = private_dir();
    let address = address(&dir);
    let refused = |what: &str| {
        for fault in [bind(&address).map(|_| ()).unwrap_err(), connect(&address).map(|_| ()).unwrap_err()] {
            assert!(matches!(fault, NodeError::NotASocket { .. }), "{what}: {fault}");
        }
        assert!(address.path().symlink_metadata().is_ok(), "{what}");
        fs::remove_file(address.path()).unwrap();
    };
    fs::write(address.path(), "precious").unwrap();
    refused("a file");
    let _stream = UnixListener::bind(address.path()).unwrap();
    refused("a stream socket");
    let target = dir.path().join("target");
    fs::write(&target, "precious").unwrap();
    symlink(target, address.path()).unwrap();
    refused("a link");
}

#[test]
fn a_squatted_directory_is_refused_by_both_ends() {
    let dir = private_dir();
    let address = default_address(&dir);
    let refused = |what: &str| {
        for fault in [bind(&address).map(|_| ()).unwrap_err(), connect(&address).map(|_| ()).unwrap_err()] {
            assert!(matches!(fault, NodeError::Directory { .. }), "{what}: {fault}");
            assert!(fault.to_string().contains(&address.directory().display().to_string()), "{fault}");
        }
    };
    symlink("/tmp", address.directory()).unwrap();
    refused("a link");
    fs::remove_file(address.directory()).unwrap();
    fs::write(address.directory(), "").unwrap();
    refused("a file");
    fs::remove_file(address.directory()).unwrap();
    fs::create_dir(address.directory()).unwrap();
    fs::set_permissions(address.directory(), fs::Permissions::from_mode(0o777)).unwrap();
    refused("mode 0777");
    fs::set_permissions(address.directory(), fs::Permissions::from_mode(0o700)).unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(address.directory(), Some(1), None).unwrap();
        refused("another owner");
        let fault = bind(&address).unwrap_err();
        let is_owner =
            |fault: &DirectoryFault| matches!(fault, DirectoryFault::Owner { owner: 1, expected: 0 });
        assert!(matches!(&fault, NodeError::Directory { fault, .. } if is_owner(fault)), "{fault}");
    } else {
        println!("not root: the owner is checked by the unit tests of directories");
    }
}
