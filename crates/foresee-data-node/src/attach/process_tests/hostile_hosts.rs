// SPDX-License-Identifier: Apache-2.0
//! Programs at a host's address that are no hosts of this version.

use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::fs::{MemfdFlags, SealFlags};

use super::*;
use crate::memory::control;

/// Connect to a program that answers the first message with `bytes` and `descriptors`, or closes without an answer.
fn connect_to(bytes: Option<&[u8]>, descriptors: &[BorrowedFd<'_>]) -> NodeError {
    let dir = private_dir();
    let address = NodeAddress::explicit(dir.path().join("node.sock")).unwrap();
    let listening = raw_socket();
    rustix::net::bind(&listening, &SocketAddrUnix::new(address.path()).unwrap()).unwrap();
    rustix::net::listen(&listening, 1).unwrap();
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| connect(&address));
        let peer = rustix::net::accept_with(&listening, SocketFlags::CLOEXEC).unwrap();
        let peer = socket::MessageSocket::new(peer).unwrap();
        peer.receive(HELLO_BYTES_MAX, false, WATCHDOG, "send its first message").unwrap();
        if let Some(bytes) = bytes {
            peer.send(bytes, descriptors, WATCHDOG).unwrap();
        }
        drop(peer);
        connecting.join().unwrap().unwrap_err()
    })
}

fn welcome() -> Vec<u8> {
    let welcome = Welcome {
        foresee: "0.1.0".into(),
        consumer: 1,
        slab_bytes: DATA,
        ram_bytes: DATA,
        disk_bytes: 0,
        request_ring_bytes: RING_BYTES_MIN,
        answer_ring_bytes: RING_BYTES_MIN,
    };
    frame::encode(&NodeReply::Welcome(welcome), MESSAGE_BYTES_MAX).unwrap()
}

#[test]
fn other_memory_than_a_sealed_slab_is_refused() {
    let slab = slab();
    let (_rings, control) = control::create(RING_BYTES_MIN, RING_BYTES_MIN).unwrap();
    let regular = tempfile::tempfile().unwrap();
    regular.set_len(2 << 20).unwrap();
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let unsealed = rustix::fs::memfd_create("unsealed", flags).unwrap();
    rustix::fs::ftruncate(&unsealed, 2 << 20).unwrap();
    let (slab, control) = (slab.file().unwrap(), control.as_fd());
    for other in [regular.as_fd(), unsealed.as_fd(), control] {
        let fault = connect_to(Some(&welcome()), &[other, control]);
        assert!(matches!(fault, NodeError::NotSealed { what: "slab", .. }), "{fault}");
    }
    for other in [regular.as_fd(), unsealed.as_fd(), slab] {
        let fault = connect_to(Some(&welcome()), &[slab, other]);
        assert!(matches!(fault, NodeError::NotSealed { what: "control memory", .. }), "{fault}");
    }
    for descriptors in [&[][..], &[slab]] {
        let fault = connect_to(Some(&welcome()), descriptors);
        assert!(matches!(fault, NodeError::Malformed { .. }), "{fault}");
    }
    // Sealed like a slab, but too small for its announced size.
    let small = rustix::fs::memfd_create("small", flags | MemfdFlags::NOEXEC_SEAL).unwrap();
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&small, seals).unwrap();
    let fault = connect_to(Some(&welcome()), &[small.as_fd(), control]);
    assert!(matches!(fault, NodeError::NotSealed { what: "slab", .. }), "{fault}");
}

#[test]
fn a_host_of_another_version_is_named() {
    let mut bytes = welcome();
    bytes[4..6].copy_from_slice(&7_u16.to_le_bytes());
    let fault = connect_to(Some(&bytes), &[]);
    assert!(matches!(fault, NodeError::OtherVersion { theirs: 7 }));
    assert!(fault.to_string().contains("version 7 of the node protocol, and this build has version 5"));
    let refusal = Refusal { code: RefusalCode::Version, text: "no".into() };
    let bytes = frame::encode(&NodeReply::Refusal(refusal), MESSAGE_BYTES_MAX).unwrap();
    let fault = connect_to(Some(&bytes), &[]);
    assert!(matches!(fault, NodeError::Refused { code: RefusalCode::Version, .. }));
}

#[test]
fn another_program_is_no_host() {
    let other = frame::encode(&NodeReply::DataSetOpened { data_set: 0 }, MESSAGE_BYTES_MAX).unwrap();
    let long = vec![b'F'; MESSAGE_BYTES_MAX + 1];
    for bytes in [b"220 mail ready\r\n", &welcome()[..10], &other[..], &long] {
        let fault = connect_to(Some(bytes), &[]);
        assert!(matches!(fault, NodeError::Malformed { .. }), "{fault}");
    }
    assert!(matches!(connect_to(None, &[]), NodeError::Ended));
}

#[test]
fn a_host_that_does_not_answer_is_late() {
    let rig = Rig::new();
    let options = ConnectOptions { allow_uids: Vec::new(), timeout: Duration::from_millis(50) };
    let connect = || NodeConnection::connect(&rig.address, &hello(), &options).unwrap_err();
    assert!(matches!(connect(), NodeError::Late { what: "answer a new consumer" }));
    // Nobody accepts: in the end the queue is full.
    let mut waiting = Vec::new();
    let fault = loop {
        let fd = raw_socket();
        rustix::fs::fcntl_setfl(&fd, rustix::fs::OFlags::NONBLOCK).unwrap();
        match rustix::net::connect(&fd, &SocketAddrUnix::new(rig.address.path()).unwrap()) {
            Ok(()) => waiting.push(fd),
            Err(_) => break connect(),
        }
    };
    assert!(matches!(fault, NodeError::Late { what: "accept the connection" }), "{fault}");
}
