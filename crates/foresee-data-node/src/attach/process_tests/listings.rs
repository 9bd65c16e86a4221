// SPDX-License-Identifier: Apache-2.0
//! Ranks that share a listing, their host, and messages of either that break the protocol.

use std::fs::File;
use std::os::fd::AsFd as _;

use super::*;
use crate::memory::{index_file, map_index};

const KEY: ListingKey = ListingKey([7; 16]);
const COUNTS: ListingCounts = ListingCounts { outside: 1, tail_elements: 2, tail_files: 3 };

fn connect_options() -> ConnectOptions {
    ConnectOptions { allow_uids: Vec::new(), timeout: WATCHDOG }
}

fn accept(rig: &mut Rig) -> ListingPeer {
    match rig.listener.accept(WATCHDOG).unwrap() {
        Some(Incoming::Listing(peer)) => peer,
        other => panic!("{other:?} instead of a rank that shares a listing"),
    }
}

/// A rank that has requested a listing, and its host's end.
fn find(rig: &mut Rig) -> (ListingConnection, ListingPeer) {
    let rank = ListingConnection::find(&rig.address, KEY, &connect_options()).unwrap();
    let peer = accept(rig);
    (rank, peer)
}

/// The next message of a rank.
fn receive(peer: &ListingPeer) -> Result<(ListingRequest, Option<File>), NodeError> {
    let mut received = None;
    foresee_testkit::wait_until("a message comes", || {
        received = peer.receive().transpose();
        received.is_some()
    });
    received.unwrap()
}

fn encoded(message: ListingRequest) -> Vec<u8> {
    frame::encode(&NodeRequest::Listing(message), MESSAGE_BYTES_MAX).unwrap()
}

#[test]
fn an_index_passes_from_one_rank_through_the_host_to_another() {
    let mut rig = Rig::new();
    let (lister, lister_peer) = find(&mut rig);
    let (waiting, waiting_peer) = find(&mut rig);
    assert_eq!(lister_peer.key(), KEY);
    assert!(lister_peer.receive().unwrap().is_none());
    lister_peer.send(ListingReply::Wanted, None).unwrap();
    waiting_peer.send(ListingReply::Pending, None).unwrap();
    assert_eq!(lister.receive(WATCHDOG).unwrap().0, ListingReply::Wanted);
    assert_eq!(waiting.receive(WATCHDOG).unwrap().0, ListingReply::Pending);
    assert!(matches!(waiting.receive(Duration::ZERO), Err(NodeError::Late { .. })));

    lister.send(ListingRequest::Alive, None, WATCHDOG).unwrap();
    assert!(matches!(receive(&lister_peer), Ok((ListingRequest::Alive, None))));
    let file = index_file(b"the index").unwrap();
    lister.send(ListingRequest::Built(COUNTS), Some(&file), WATCHDOG).unwrap();
    let (message, index) = receive(&lister_peer).unwrap();
    assert_eq!(message, ListingRequest::Built(COUNTS));
    waiting_peer.send(ListingReply::Built(COUNTS), index.as_ref()).unwrap();
    let (message, index) = waiting.receive(WATCHDOG).unwrap();
    assert_eq!(message, ListingReply::Built(COUNTS));
    assert_eq!(map_index(index.unwrap().into()).unwrap().as_ref(), b"the index");
}

#[test]
fn each_side_notices_the_end_of_the_other() {
    let mut rig = Rig::new();
    let (rank, peer) = find(&mut rig);
    drop(rank);
    assert!(matches!(receive(&peer), Err(NodeError::Ended)));
    let (rank, peer) = find(&mut rig);
    drop(peer);
    assert!(matches!(rank.receive(WATCHDOG), Err(NodeError::Ended)));
}

#[test]
fn a_refused_rank_gets_the_reason() {
    let mut rig = Rig::new();
    let (rank, peer) = find(&mut rig);
    peer.refuse(RefusalCode::Malformed, "no listings here");
    let refused = rank.receive(WATCHDOG).unwrap_err().to_string();
    assert!(refused.contains("no listings here"), "{refused}");
}

#[test]
fn a_host_refuses_messages_that_break_the_protocol() {
    let mut rig = Rig::new();
    let sealed = index_file(b"the index").unwrap();
    let plain = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut &plain, b"a file").unwrap();
    let (plain, greeting) = (OwnedFd::from(plain), NodeRequest::Hello(hello()));
    let detach = frame::encode(&NodeRequest::Detach, MESSAGE_BYTES_MAX).unwrap();
    let attach = frame::encode(&greeting, MESSAGE_BYTES_MAX).unwrap();
    let (built, alive) = (ListingRequest::Built(COUNTS), encoded(ListingRequest::Alive));
    let messages: [(Vec<u8>, Vec<&OwnedFd>); 8] = [
        (encoded(ListingRequest::Find { key: KEY }), Vec::new()),
        (encoded(built), Vec::new()),
        (encoded(built), vec![&sealed, &sealed]),
        (encoded(built), vec![&plain]),
        (alive.clone(), vec![&sealed]),
        ([alive, vec![0]].concat(), Vec::new()),
        (detach, Vec::new()),
        (attach, Vec::new()),
    ];
    for (bytes, descriptors) in messages {
        let raw = raw_connection(&rig.address);
        raw.send(&encoded(ListingRequest::Find { key: KEY }), &[], WATCHDOG).unwrap();
        let peer = accept(&mut rig);
        let descriptors: Vec<_> = descriptors.into_iter().map(|file| file.as_fd()).collect();
        raw.send(&bytes, &descriptors, WATCHDOG).unwrap();
        let refused = receive(&peer).unwrap_err();
        assert!(matches!(refused, NodeError::Malformed { .. } | NodeError::Index(_)), "{refused}");
    }
}

#[test]
fn only_a_request_begins_a_listing() {
    let mut rig = Rig::new();
    for message in [ListingRequest::Alive, ListingRequest::Failed, ListingRequest::Built(COUNTS)] {
        let raw = raw_connection(&rig.address);
        raw.send(&encoded(message), &[], WATCHDOG).unwrap();
        let refused = rig.listener.refused();
        while rig.listener.refused() == refused {
            assert!(rig.listener.accept(Duration::from_millis(10)).unwrap().is_none());
        }
    }
    find(&mut rig);
}

#[test]
fn an_attached_consumer_sends_and_gets_no_message_about_a_listing() {
    let mut rig = Rig::new();
    let (attachment, consumer) = rig.attach(1);
    consumer.send(&NodeRequest::Listing(ListingRequest::Failed), WATCHDOG).unwrap();
    assert!(matches!(attachment.receive(), Err(NodeError::Malformed { .. })));
    attachment.send(&NodeReply::Listing(ListingReply::Wanted)).unwrap();
    assert!(matches!(consumer.receive(WATCHDOG), Err(NodeError::Malformed { .. })));
}

#[test]
fn a_rank_refuses_messages_that_break_the_protocol() {
    let mut rig = Rig::new();
    let sealed = index_file(b"the index").unwrap();
    let replies: [(NodeReply, usize); 4] = [
        (NodeReply::Listing(ListingReply::Built(COUNTS)), 0),
        (NodeReply::Listing(ListingReply::Built(COUNTS)), 2),
        (NodeReply::Listing(ListingReply::Wanted), 1),
        (NodeReply::IndexNeeded, 0),
    ];
    for (reply, descriptors) in replies {
        let (rank, peer) = find(&mut rig);
        let bytes = frame::encode(&reply, MESSAGE_BYTES_MAX).unwrap();
        peer.socket.send(&bytes, &vec![sealed.as_fd(); descriptors], WATCHDOG).unwrap();
        assert!(matches!(rank.receive(WATCHDOG), Err(NodeError::Malformed { .. })), "{reply:?}");
    }
}
