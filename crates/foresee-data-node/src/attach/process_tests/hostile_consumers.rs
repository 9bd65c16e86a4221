// SPDX-License-Identifier: Apache-2.0
//! Peers of a host that are no consumers of this version. None of them keeps a consumer from attaching.

use std::os::fd::AsFd as _;

use super::*;

/// The refusal that a peer reads; `None` if the connection ends without one.
fn answer(peer: &socket::MessageSocket) -> Option<RefusalCode> {
    match peer.receive(MESSAGE_BYTES_MAX, true, WATCHDOG, "answer") {
        Ok(answer) => match frame::decode(&answer.bytes).unwrap() {
            NodeReply::Refusal(refusal) => Some(refusal.code),
            other => panic!("{other:?}"),
        },
        Err(NodeError::Ended) => None,
        Err(other) => panic!("{other}"),
    }
}

/// Send a first message from a raw peer and return the host's answer.
fn greet(rig: &mut Rig, bytes: &[u8], has_descriptor: bool) -> Option<RefusalCode> {
    let peer = raw_connection(&rig.address);
    let file = tempfile::tempfile().unwrap();
    let descriptors = if has_descriptor { vec![file.as_fd()] } else { Vec::new() };
    peer.send(bytes, &descriptors, WATCHDOG).unwrap();
    let refused = rig.listener.refused();
    while rig.listener.refused() == refused {
        assert!(rig.listener.accept(Duration::from_millis(10)).unwrap().is_none());
    }
    answer(&peer)
}

fn greeting() -> Vec<u8> {
    frame::encode(&NodeRequest::Hello(hello()), HELLO_BYTES_MAX).unwrap()
}

#[test]
fn invalid_first_messages_are_refused_and_the_next_consumer_attaches() {
    let mut rig = Rig::new();
    let valid = greeting();
    let malformed = Some(RefusalCode::Malformed);
    for end in [1, 4, 6, 7, valid.len() - 1] {
        assert_eq!(greet(&mut rig, &valid[..end], false), malformed, "truncated at {end}");
    }
    assert_eq!(greet(&mut rig, &[&valid[..], b"x"].concat(), false), malformed);
    assert_eq!(greet(&mut rig, b"GET / HTTP/1.1\r\n", false), malformed);
    assert_eq!(greet(&mut rig, &[0xFF; 200], false), malformed);
    assert_eq!(greet(&mut rig, &[b'F'; HELLO_BYTES_MAX + 1], false), malformed);
    assert_eq!(greet(&mut rig, &vec![b'F'; 100_000], false), malformed);
    assert_eq!(greet(&mut rig, &valid, true), malformed, "a consumer sends no descriptor");
    let other = frame::encode(&NodeRequest::Detach, HELLO_BYTES_MAX).unwrap();
    assert_eq!(greet(&mut rig, &other, false), malformed);
    let (_attachment, consumer) = rig.attach(1);
    assert_eq!(consumer.welcome().consumer, 1);
}

#[test]
fn other_versions_are_refused_as_such() {
    let mut rig = Rig::new();
    for version in [0, PROTOCOL_VERSION + 1, u16::MAX] {
        let mut bytes = greeting();
        bytes[4..6].copy_from_slice(&version.to_le_bytes());
        assert_eq!(greet(&mut rig, &bytes, false), Some(RefusalCode::Version));
        assert_eq!(greet(&mut rig, &bytes[..6], false), Some(RefusalCode::Version));
    }
}

#[test]
fn a_peer_that_leaves_or_stays_silent_is_dropped() {
    let mut rig = Rig::with(&[], Duration::from_millis(50));
    drop(raw_connection(&rig.address));
    let silent = raw_connection(&rig.address);
    while rig.listener.refused() < 2 {
        assert!(rig.listener.accept(Duration::from_millis(10)).unwrap().is_none());
    }
    assert_eq!(answer(&silent), None);
    assert_eq!(rig.listener.next_deadline(), None);
    rig.attach(1);
}

#[test]
fn many_silent_peers_do_not_keep_a_consumer_from_attaching() {
    let mut rig = Rig::new();
    let mut silent = Vec::new();
    for _ in 0..PENDING_MAX + 10 {
        silent.push(raw_connection(&rig.address));
        assert!(rig.listener.accept(Duration::ZERO).unwrap().is_none());
    }
    assert_eq!(rig.listener.refused(), 10);
    assert!(rig.listener.next_deadline().is_some());
    rig.attach(1);
    assert_eq!(answer(&silent[0]), None, "the oldest one is dropped");
}

#[test]
fn a_consumer_that_breaks_the_protocol_later_ends_only_its_own_attachment() {
    let mut rig = Rig::new();
    let good = rig.attach(1);
    let status = frame::encode(&NodeRequest::Status, HELLO_BYTES_MAX).unwrap();
    for bytes in [greeting(), status, b"FNOD\x05\x00\xFF".to_vec(), vec![0; MESSAGE_BYTES_MAX + 1]] {
        let peer = raw_connection(&rig.address);
        peer.send(&greeting(), &[], WATCHDOG).unwrap();
        let attachment = rig.accept(2);
        peer.send(&bytes, &[], WATCHDOG).unwrap();
        assert!(matches!(attachment.receive(), Err(NodeError::Malformed { .. })));
    }
    good.1.send(&NodeRequest::Detach, WATCHDOG).unwrap();
    assert_eq!(good.0.receive().unwrap().unwrap().message, NodeRequest::Detach);
}

#[test]
fn a_consumer_that_does_not_read_never_makes_the_host_wait() {
    let mut rig = Rig::new();
    let (attachment, _consumer) = rig.attach(1);
    let fault = loop {
        if let Err(fault) = attachment.send(&NodeReply::DataSetOpened { data_set: 1 }) {
            break fault;
        }
    };
    assert!(matches!(fault, NodeError::Late { .. }));
}
