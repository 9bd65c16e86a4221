// SPDX-License-Identifier: Apache-2.0
//! Worker processes that share a cache of samples, its host, and messages of either that break the protocol.

use std::os::fd::AsFd as _;

use foresee_testkit::wait_until;
use foresee_units::SampleId;

use super::*;
use crate::memory::LocationTable;

const SAMPLES: u64 = 10;
const ONE: SampleId = SampleId(1);

fn connect_options() -> ConnectOptions {
    ConnectOptions { allow_uids: Vec::new(), timeout: WATCHDOG }
}

fn accept(rig: &mut Rig) -> SampleCachePeer {
    match rig.listener.accept(WATCHDOG).unwrap() {
        Some(Incoming::SampleCache(peer)) => peer,
        other => panic!("{other:?} instead of a worker process"),
    }
}

/// A worker process whose cache is open, and its host's end.
fn open(rig: &mut Rig) -> (SampleCacheConnection, SampleCacheMemory, SampleCachePeer) {
    let (address, table) = (rig.address.clone(), LocationTable::create(SAMPLES).unwrap());
    std::thread::scope(|scope| {
        let opening = scope.spawn(move || SampleCacheConnection::open(&address, SAMPLES, &connect_options()));
        let peer = accept(rig);
        peer.accept(&rig.slab, &table).unwrap();
        let (connection, memory) = opening.join().unwrap().unwrap();
        (connection, memory, peer)
    })
}

/// The next message of a worker process.
fn receive(peer: &SampleCachePeer) -> Result<SampleCacheRequest, NodeError> {
    let mut received = None;
    wait_until("a message comes", || {
        received = peer.receive().transpose();
        received.is_some()
    });
    received.unwrap()
}

#[test]
fn bytes_of_any_length_pass_in_both_directions() {
    let mut rig = Rig::new();
    let (worker, memory, peer) = open(&mut rig);
    assert_eq!(peer.samples(), SAMPLES);
    assert!(memory.copy(ONE).unwrap().is_none());
    for len in [0, 1, 4096, 4097, 1_000_000] {
        let bytes = vec![7; len];
        worker.insert(ONE, &bytes, WATCHDOG).unwrap();
        let sent = SentBytes::Inline(bytes.clone());
        let inserted = SampleCacheRequest::Insert { sample: 1, bytes: sent.clone() };
        assert_eq!(receive(&peer).unwrap(), inserted);
        peer.send_bytes(&bytes).unwrap();
        assert_eq!(worker.receive(WATCHDOG).unwrap(), SampleCacheReply::Bytes(sent));
    }
    for len in [0, 10_000] {
        let (first, second) = (vec![1; len], vec![2; 3]);
        worker.insert_all(&[(SampleId(4), &first), (ONE, &second)], WATCHDOG).unwrap();
        let inserted = SampleCacheRequest::InsertAll {
            samples: vec![4, 1],
            lens: vec![len as u64, 3],
            bytes: SentBytes::Inline([first, second].concat()),
        };
        assert_eq!(receive(&peer).unwrap(), inserted);
    }
}

#[test]
fn each_side_notices_the_end_of_the_other() {
    let mut rig = Rig::new();
    let (worker, _, peer) = open(&mut rig);
    drop(worker);
    assert!(matches!(receive(&peer), Err(NodeError::Ended)));
    let (worker, _, peer) = open(&mut rig);
    drop(peer);
    assert!(matches!(worker.receive(WATCHDOG), Err(NodeError::Ended)));
    let (worker, _, _peer) = open(&mut rig);
    worker.shut_down();
    assert!(matches!(worker.receive(WATCHDOG), Err(NodeError::Ended)));
}

#[test]
fn a_host_refuses_messages_that_break_the_protocol() {
    let mut rig = Rig::new();
    let short = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut &short, b"short").unwrap();
    let (short, pipe) = (OwnedFd::from(short), OwnedFd::from(std::io::pipe().unwrap().0));
    let encoded = |message| frame::encode(&NodeRequest::SampleCache(message), MESSAGE_BYTES_MAX).unwrap();
    let insert = |bytes| encoded(SampleCacheRequest::Insert { sample: 1, bytes });
    let in_file = |len| insert(SentBytes::File { len });
    let messages: [(Vec<u8>, Vec<&OwnedFd>); 8] = [
        (encoded(SampleCacheRequest::Open { samples: SAMPLES }), Vec::new()),
        (in_file(5), Vec::new()),
        (in_file(5), vec![&short, &short]),
        (in_file(6), vec![&short]),
        (in_file(u64::MAX), vec![&short]),
        (in_file(5), vec![&pipe]),
        (insert(SentBytes::Inline(vec![1])), vec![&short]),
        (frame::encode(&NodeRequest::Detach, MESSAGE_BYTES_MAX).unwrap(), Vec::new()),
    ];
    for (nth, (bytes, descriptors)) in messages.into_iter().enumerate() {
        let raw = raw_connection(&rig.address);
        raw.send(&encoded(SampleCacheRequest::Open { samples: SAMPLES }), &[], WATCHDOG).unwrap();
        let peer = accept(&mut rig);
        let descriptors: Vec<_> = descriptors.into_iter().map(|file| file.as_fd()).collect();
        raw.send(&bytes, &descriptors, WATCHDOG).unwrap();
        let refused = receive(&peer);
        assert!(matches!(refused, Err(NodeError::Malformed { .. })), "message {nth}: {refused:?}");
    }
}

#[test]
fn a_worker_refuses_a_host_of_something_else() {
    let mut rig = Rig::new();
    let address = rig.address.clone();
    let answers: [fn(SampleCachePeer); 3] = [
        |peer| peer.refuse(RefusalCode::DataSet, "another dataset"),
        |peer| peer.send(SampleCacheReply::Read).unwrap(),
        |peer| peer.send(SampleCacheReply::Opened { slab_bytes: DATA }).unwrap(),
    ];
    let reasons = ["another dataset", "does not open a cache", "0 descriptors instead of 2"];
    for (answer, reason) in answers.into_iter().zip(reasons) {
        let address = address.clone();
        let refused = std::thread::scope(|scope| {
            let opening =
                scope.spawn(move || SampleCacheConnection::open(&address, SAMPLES, &connect_options()));
            answer(accept(&mut rig));
            opening.join().unwrap().unwrap_err().to_string()
        });
        assert!(refused.contains(reason), "{refused}");
    }
}
