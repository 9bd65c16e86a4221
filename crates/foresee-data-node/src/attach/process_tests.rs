// SPDX-License-Identifier: Apache-2.0
//! Hosts and consumers over real sockets: the handshake and later messages. The folder has data sets and the status,
//! listings, caches of samples, hostile peers, paths, and ends of processes.

mod hostile_consumers;
mod hostile_hosts;
mod lifetime;
mod listings;
mod paths;
mod queries;
mod sample_caches;
mod users;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use foresee_testkit::WATCHDOG;
use foresee_units::Bytes;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tempfile::TempDir;

use super::*;
use crate::memory::{RING_BYTES_MAX, RING_BYTES_MIN, SlabMemory, SlabOptions};
use crate::ring::RingPair;
use crate::{NodeAddress, NodeError};

const DATA: u64 = 1 << 20;

/// A listening host in a directory of its own.
struct Rig {
    listener: NodeListener,
    slab: SlabMemory,
    address: NodeAddress,
    /// Removed last.
    dir: TempDir,
}

impl Rig {
    fn new() -> Self {
        Self::with(&[], WATCHDOG)
    }

    fn with(allow_uids: &[u32], hello_timeout: Duration) -> Self {
        let dir = private_dir();
        let address = NodeAddress::explicit(dir.path().join("node.sock")).unwrap();
        let options = ListenerOptions { allow_uids: allow_uids.to_vec(), hello_timeout };
        if !allow_uids.is_empty() {
            open_to_all(dir.path());
        }
        let listener = NodeListener::bind(&address, options).unwrap();
        Self { listener, slab: slab(), address, dir }
    }

    /// Wait for the next consumer's request.
    fn request(&mut self) -> AttachRequest {
        match self.listener.accept(WATCHDOG).unwrap() {
            Some(Incoming::Attach(request)) => request,
            other => panic!("{other:?} instead of a consumer that may attach"),
        }
    }

    fn accept(&mut self, consumer: u32) -> Attachment {
        self.request().accept(&self.slab, facts(consumer)).unwrap().0
    }

    /// Attach a consumer of this process, without rings.
    fn attach(&mut self, consumer: u32) -> (Attachment, NodeConnection) {
        let ((attachment, _), (connection, _)) = self.attach_with_rings(consumer);
        (attachment, connection)
    }

    /// Attach a consumer of this process.
    fn attach_with_rings(&mut self, consumer: u32) -> ((Attachment, RingPair), (NodeConnection, RingPair)) {
        let address = self.address.clone();
        std::thread::scope(|scope| {
            let connecting = scope.spawn(move || connect_with_rings(&address, &[]));
            let attachment = self.request().accept(&self.slab, facts(consumer)).unwrap();
            (attachment, connecting.join().unwrap().unwrap())
        })
    }
}

/// A directory of this user alone, whatever the mask of the process is.
fn private_dir() -> TempDir {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    tempfile::Builder::new().permissions(mode).tempdir().unwrap()
}

fn open_to_all(dir: &Path) {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir, mode).unwrap();
}

fn slab() -> SlabMemory {
    let data = Bytes::new(DATA);
    SlabMemory::create(&SlabOptions { data, available: None, huge_pages: false }).unwrap()
}

fn options() -> ListenerOptions {
    ListenerOptions { allow_uids: Vec::new(), hello_timeout: WATCHDOG }
}

fn facts(consumer: u32) -> WelcomeFacts {
    WelcomeFacts { foresee: "0.1.0".into(), consumer, ram: Bytes::new(DATA), disk: Bytes::new(7) }
}

fn hello() -> Hello {
    Hello {
        foresee: "0.1.0".into(),
        pid: std::process::id(),
        job: "training".into(),
        loader: [4; 16],
        rank: 3,
        local_rank: 1,
        request_ring_bytes: RING_BYTES_MIN,
        answer_ring_bytes: 2 * RING_BYTES_MIN,
    }
}

fn connect(address: &NodeAddress) -> Result<NodeConnection, NodeError> {
    connect_trusting(address, &[])
}

fn connect_trusting(address: &NodeAddress, allow_uids: &[u32]) -> Result<NodeConnection, NodeError> {
    connect_with_rings(address, allow_uids).map(|(connection, _)| connection)
}

fn connect_with_rings(
    address: &NodeAddress,
    allow_uids: &[u32],
) -> Result<(NodeConnection, RingPair), NodeError> {
    let options = ConnectOptions { allow_uids: allow_uids.to_vec(), timeout: WATCHDOG };
    NodeConnection::connect(address, &hello(), &options)
}

/// A socket of this kind, as another program may have it.
fn raw_socket() -> OwnedFd {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap()
}

fn raw_connection(address: &NodeAddress) -> socket::MessageSocket {
    let fd = raw_socket();
    rustix::net::connect(&fd, &SocketAddrUnix::new(address.path()).unwrap()).unwrap();
    socket::MessageSocket::new(fd).unwrap()
}

/// Start a test of this module in a process of its own, with the value of a variable by which it knows.
fn program(test: &str, variable: &str, value: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let module = module_path!().split_once("::").unwrap().1;
    command.args([&format!("{module}::{test}"), "--exact", "--nocapture"]).env(variable, value);
    command
}

/// Whether this is the process of `test` alone; otherwise run it in one. Needed by tests that fork, or count what
/// their process has.
fn is_alone(test: &str) -> bool {
    const ALONE: &str = "FORESEE_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    assert!(program(test, ALONE, Path::new("1")).status().unwrap().success());
    false
}

#[test]
fn a_consumer_gets_the_slab_and_its_control_memory() {
    let mut rig = Rig::new();
    let ((attachment, mut host_rings), (consumer, mut rings)) = rig.attach_with_rings(5);
    let welcome = consumer.welcome();
    assert_eq!((welcome.consumer, welcome.slab_bytes), (5, DATA));
    assert_eq!((welcome.ram_bytes, welcome.disk_bytes), (DATA, 7));
    assert_eq!((attachment.hello(), attachment.consumer()), (&hello(), 5));
    assert_eq!(attachment.credentials().pid, Some(std::process::id()));
    assert!(attachment.process().unwrap().is_alive().unwrap());
    assert!(consumer.process().unwrap().is_alive().unwrap());

    assert_eq!(consumer.slab().data_bytes(), Bytes::new(DATA));
    assert!(rings.writer.try_push(b"request").unwrap());
    assert_eq!(host_rings.reader.try_pop().unwrap(), Some(&b"request"[..]));
    assert!(host_rings.writer.has_space(RING_BYTES_MIN as usize).unwrap(), "the ring of answers is larger");
}

#[test]
fn each_consumer_has_rings_of_its_own() {
    let mut rig = Rig::new();
    let (mut first, mut second) = (rig.attach_with_rings(1), rig.attach_with_rings(2));
    assert!(first.1.1.writer.try_push(b"request").unwrap());
    assert!(second.0.1.reader.try_pop().unwrap().is_none());
    assert!(first.0.1.reader.try_pop().unwrap().is_some());
}

#[test]
fn a_host_refuses_a_consumer_with_a_reason() {
    let mut rig = Rig::new();
    let address = rig.address.clone();
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| connect(&address));
        rig.request().refuse(RefusalCode::TooManyConsumers, "64 consumers are attached");
        let refused = connecting.join().unwrap().unwrap_err();
        assert!(matches!(refused, NodeError::Refused { code: RefusalCode::TooManyConsumers, .. }));
        assert!(refused.to_string().contains("64 consumers are attached"), "{refused}");
    });
}

#[test]
fn rings_of_other_sizes_are_refused_with_a_reason() {
    let mut rig = Rig::new();
    let address = rig.address.clone();
    for bytes in [0, RING_BYTES_MIN + 1, 2 * RING_BYTES_MAX] {
        std::thread::scope(|scope| {
            let connecting = scope.spawn(|| {
                let hello = Hello { answer_ring_bytes: bytes, ..hello() };
                let options = ConnectOptions { allow_uids: Vec::new(), timeout: WATCHDOG };
                NodeConnection::connect(&address, &hello, &options)
            });
            let refused = rig.request().accept(&rig.slab, facts(1)).unwrap_err();
            assert!(matches!(refused, NodeError::RingSize { .. }));
            let refused = connecting.join().unwrap().unwrap_err();
            assert!(matches!(refused, NodeError::Refused { code: RefusalCode::Resources, .. }));
        });
    }
}
