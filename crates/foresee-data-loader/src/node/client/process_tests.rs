// SPDX-License-Identifier: Apache-2.0
//! Clients of a real host in this process. The folder has hosts that break the protocol or end.

mod faulty_hosts;

use std::path::Path;
use std::sync::Arc;

use foresee_data_index::Index;
use foresee_data_node::message::{
    BatchAnswer, BatchFailure, ConsumerMessage, EpochWanted, HostMessage, MemoryHits, SampleFailure,
    SampleLocation,
};
use foresee_data_node::ring::RingPair;
use foresee_data_node::{
    Attachment, ConnectOptions, Incoming, ListenerOptions, LocationTable, NodeAddress, NodeListener,
    NodeReply, NodeRequest, ReceivedRequest, SlabMemory, SlabOptions, WelcomeFacts, map_index,
};
use foresee_testkit::{WATCHDOG, wait_until};
use foresee_units::{Bytes, Nanos, ReadOutcome, SampleId, Source};
use tempfile::TempDir;

use super::*;
use crate::buffer::BufferPool;
use crate::node::test_support::{flat_index, hello, private_dir};

const DATA_SET: u32 = 3;
const SLAB_BYTES: u64 = 2 << 20;
const SAMPLES: u32 = 10;

/// The host's side of one attached client.
struct TestHost {
    attachment: Attachment,
    rings: RingPair,
    slab: SlabMemory,
    locations: LocationTable,
    _listener: NodeListener,
    _dir: TempDir,
}

/// A client, what its driver has, and its host.
struct Rig {
    client: NodeClient,
    waker: Arc<Waker>,
    /// Drained events that no test has taken.
    events: Vec<NodeEvent>,
    host: TestHost,
}

/// The index of ten plain files in `dir`.
fn index(dir: &Path) -> Index {
    for number in 0..SAMPLES {
        std::fs::write(dir.join(number.to_string()), [0]).unwrap();
    }
    flat_index(&format!("file://{}", dir.display()), Vec::new())
}

/// Accept a client of the data set `index`, and require its index.
fn accept(
    listener: &mut NodeListener,
    slab: &SlabMemory,
    index: &Index,
) -> (Attachment, RingPair, LocationTable) {
    let Some(Incoming::Attach(request)) = listener.accept(WATCHDOG).unwrap() else { panic!("no consumer") };
    let (memory, disk) = (Bytes::new(SLAB_BYTES), Bytes::ZERO);
    let facts = WelcomeFacts { foresee: "0.1.0".into(), consumer: 1, ram: memory, disk };
    let (attachment, rings) = request.accept(slab, facts).unwrap();
    let receive = || {
        let mut received = None;
        wait_until("a message comes", || {
            received = attachment.receive().unwrap();
            received.is_some()
        });
        received.unwrap()
    };
    let expected = (index.fingerprint(), index.len());
    let is_expected = |message: &NodeRequest| {
        let NodeRequest::OpenDataSet(found) = message else { return false };
        found.uri == "s3://bucket" && (found.fingerprint, found.samples) == expected
    };
    let ReceivedRequest { message, index } = receive();
    assert!(is_expected(&message) && index.is_none(), "{message:?}");
    attachment.send(&NodeReply::IndexNeeded).unwrap();
    let ReceivedRequest { message, index } = receive();
    assert!(is_expected(&message), "{message:?}");
    let opened = Index::open_mapped(Arc::new(map_index(index.unwrap()).unwrap())).unwrap();
    assert_eq!((opened.fingerprint(), opened.len()), expected);
    let locations = LocationTable::create(opened.len()).unwrap();
    attachment.send_opened(DATA_SET, &locations).unwrap();
    (attachment, rings, locations)
}

impl Rig {
    fn new() -> Self {
        let dir = private_dir();
        let address = NodeAddress::explicit(dir.path().join("node.sock")).unwrap();
        let options = ListenerOptions { allow_uids: Vec::new(), hello_timeout: WATCHDOG };
        let mut listener = NodeListener::bind(&address, options).unwrap();
        let data = Bytes::new(SLAB_BYTES);
        let slab = SlabOptions { data, available: None, huge_pages: false };
        let slab = SlabMemory::create(&slab).unwrap();
        slab.commit(0..SLAB_BYTES).unwrap();
        let files = tempfile::tempdir().unwrap();
        let (whole, waker) = (index(files.path()), Arc::new(Waker::default()));
        // Accesses are entries of the whole file, whatever is selected.
        let selected = whole.select(&[1]).unwrap();
        let (client, (attachment, rings, locations)) = std::thread::scope(|scope| {
            let attaching = scope.spawn(|| {
                let options = ConnectOptions { allow_uids: Vec::new(), timeout: WATCHDOG };
                let data =
                    NodeDataSet { index: &selected, uri: "s3://bucket", storage: &[], is_listed: false };
                NodeClient::attach(&address, &hello(), &options, data, Arc::clone(&waker), || true).unwrap()
            });
            let accepted = accept(&mut listener, &slab, &whole);
            (attaching.join().unwrap(), accepted)
        });
        let host = TestHost { attachment, rings, slab, locations, _listener: listener, _dir: dir };
        Self { client, waker, events: Vec::new(), host }
    }

    /// Request a batch of samples with these lengths, and wait until the host has read the request.
    fn request(&mut self, number: u64, lengths: &[usize]) -> Arc<Buffer> {
        let buffer = buffer(lengths.iter().sum());
        assert!(self.client.request(batch(number, lengths, &buffer)));
        let expected: Vec<_> = (0..lengths.len() as u64).map(SampleId).collect();
        self.host.next(|message| {
            let ConsumerMessage::Request(request) = message else { panic!("{message:?}") };
            assert_eq!((request.batch, request.data_set), (number, DATA_SET));
            assert_eq!(request.samples, expected[..].into());
        });
        buffer
    }

    /// Wait for the next event.
    fn event(&mut self) -> NodeEvent {
        while self.events.is_empty() {
            self.waker.wait(WATCHDOG);
            self.client.drain(&mut self.events);
        }
        self.events.remove(0)
    }

    /// Wait for the end of the attachment.
    fn end(&mut self) -> (NodeError, Vec<(u64, Vec<u32>)>) {
        loop {
            if let NodeEvent::Ended { why, missing } = self.event() {
                assert!(self.events.is_empty(), "nothing follows");
                return (why, missing);
            }
        }
    }
}

impl TestHost {
    /// Wait for the next message of the client.
    fn next<T>(&mut self, check: impl FnOnce(ConsumerMessage<'_>) -> T) -> T {
        let RingPair { reader, waiter, .. } = &mut self.rings;
        let message = waiter
            .wait(Some(WATCHDOG), || reader.try_pop().unwrap().map(<[u8]>::to_vec))
            .expect("a message of the client");
        check(ConsumerMessage::decode(&message).unwrap())
    }

    fn expect_release(&mut self, batch: u64, positions: &[u32]) {
        self.next(|message| {
            let ConsumerMessage::Release(release) = message else { panic!("{message:?}") };
            assert_eq!((release.batch, release.positions), (batch, positions.into()));
        });
    }

    fn send(&mut self, message: HostMessage<'_>) {
        let mut bytes = Vec::new();
        message.encode_into(&mut bytes).unwrap();
        let RingPair { writer, waiter, .. } = &mut self.rings;
        let is_pushed = waiter.wait(Some(WATCHDOG), || writer.try_push(&bytes).unwrap().then_some(()));
        is_pushed.expect("space in the ring");
    }

    fn answer(&mut self, batch: u64, samples: &[SampleLocation]) {
        self.send(HostMessage::Answer(BatchAnswer { batch, samples: samples.into() }));
    }

    /// Replace the sample of a position, and return its place.
    fn write(&self, position: u32, offset: u64, bytes: &[u8]) -> SampleLocation {
        let sample = SampleId(position.into());
        self.locations.withdraw(sample).unwrap();
        let to = self.slab.data(offset..offset + bytes.len() as u64).unwrap();
        // SAFETY: within the slab, to which only this thread writes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast().as_ptr(), bytes.len()) };
        let location = self.locations.publish(sample, offset).unwrap();
        SampleLocation { position, location, source: Source::Ram }
    }
}

fn buffer(len: usize) -> Arc<Buffer> {
    let pool = Arc::new(BufferPool::new(Bytes::new(64 << 20), Arc::default()));
    let buffer = pool.lend(len);
    buffer.ensure_mapped().unwrap();
    buffer
}

fn batch(number: u64, lengths: &[usize], buffer: &Arc<Buffer>) -> NodeBatch {
    let mut offset = 0;
    let spans = lengths.iter().map(|len| {
        offset += len;
        (offset - len, *len)
    });
    NodeBatch {
        number,
        deadline: Nanos::MAX,
        samples: (0..lengths.len() as u64).map(SampleId).collect(),
        spans: spans.collect(),
        buffer: Arc::clone(buffer),
    }
}

/// The bytes of a batch that the client does not write any more.
fn bytes_of(buffer: &Arc<Buffer>, len: usize) -> Vec<u8> {
    // SAFETY: the positions are reported, or the attachment has ended.
    unsafe { buffer.payload(0, len) }.as_slice().to_vec()
}

#[test]
fn a_batch_is_filled_by_partial_answers_in_any_order_and_released() {
    let mut rig = Rig::new();
    let buffer = rig.request(1, &[3, 0, 5]);
    let last = rig.host.write(2, 128, b"third");
    rig.host.answer(1, &[SampleLocation { source: Source::Origin, ..last }]);
    let event = rig.event();
    let NodeEvent::Copied { batch: 1, positions, by_source } = event else { panic!("{event:?}") };
    let expected = CopyCounts { origin: CopyCount { samples: 1, bytes: 5 }, ..CopyCounts::default() };
    assert_eq!((&positions[..], by_source), (&[2][..], expected));
    rig.host.expect_release(1, &[2]);
    let (first, empty) = (rig.host.write(0, 0, b"one"), rig.host.write(1, 0, b""));
    rig.host.answer(1, &[SampleLocation { source: Source::Disk, ..empty }, first]);
    let event = rig.event();
    let NodeEvent::Copied { positions, by_source, .. } = event else { panic!("{event:?}") };
    let (memory, disk) = (CopyCount { samples: 1, bytes: 3 }, CopyCount { samples: 1, bytes: 0 });
    assert_eq!((&positions[..], by_source.memory, by_source.disk), (&[1, 0][..], memory, disk));
    rig.host.expect_release(1, &[]);
    assert_eq!(bytes_of(&buffer, 8), b"onethird");
    wait_until("the client gives the buffer up", || Arc::strong_count(&buffer) == 1);
}

#[test]
fn a_sample_that_was_taken_back_is_requested_again() {
    let mut rig = Rig::new();
    let buffer = rig.request(1, &[3, 3]);
    let (old, other) = (rig.host.write(0, 0, b"old"), rig.host.write(1, 64, b"two"));
    rig.host.locations.withdraw(SampleId(0)).unwrap();
    rig.host.answer(1, &[old, other]);
    rig.host.expect_release(1, &[1]);
    rig.host.next(|message| {
        let ConsumerMessage::Repeat(repeat) = message else { panic!("{message:?}") };
        assert_eq!((repeat.batch, repeat.positions), (1, [0][..].into()));
    });
    let new = rig.host.write(0, 0, b"new");
    rig.host.answer(1, &[new]);
    rig.host.expect_release(1, &[]);
    for expected in [1, 0] {
        let event = rig.event();
        assert!(matches!(&event, NodeEvent::Copied { positions, .. } if positions[..] == [expected]));
    }
    assert_eq!(bytes_of(&buffer, 6), b"newtwo");
}

#[test]
fn samples_in_memory_are_copied_without_a_request_or_not_at_all() {
    let mut rig = Rig::new();
    let (samples, spans) = ([0, 2, 1, 0].map(SampleId), [(0, 3), (3, 0), (3, 2), (5, 3)]);
    let buffer = buffer(8);
    // SAFETY: nothing else accesses the spans.
    let copy = |rig: &Rig| unsafe { rig.client.copy_hits(&samples, &buffer, &spans) };
    rig.host.write(0, 64, b"one");
    assert!(!copy(&rig), "sample 1 is missing");
    rig.host.write(1, 0, b"to");
    assert!(copy(&rig) && copy(&rig), "sample 2 is empty");
    assert_eq!(bytes_of(&buffer, 8), b"onetoone");
    rig.host.locations.withdraw(SampleId(0)).unwrap();
    assert!(!copy(&rig));
    rig.client.progress(8, Nanos::ZERO, false);
    rig.host.next(|message| assert_eq!(message, ConsumerMessage::Hits(MemoryHits { accesses: 8 })));
    rig.host.next(|message| assert!(matches!(message, ConsumerMessage::Progress(_)), "{message:?}"));
    rig.host.locations.publish(SampleId(0), 1 << 40).unwrap();
    assert!(!copy(&rig), "it is not in the slab");
}

#[test]
fn failed_samples_are_reported_and_complete_a_batch() {
    let mut rig = Rig::new();
    rig.request(1, &[3, 3]);
    let outcome = ReadOutcome::Absent;
    let failures = [1, 0].map(|position| SampleFailure { position, outcome });
    rig.host.send(HostMessage::Failure(BatchFailure { batch: 1, samples: failures[..].into() }));
    for expected in [1, 0] {
        let event = rig.event();
        let NodeEvent::Failed { batch, position } = event else { panic!("{event:?}") };
        assert_eq!((batch, position), (1, expected));
    }
    rig.host.expect_release(1, &[]);
}

#[test]
fn rings_that_are_full_delay_messages_and_lose_none() {
    let mut rig = Rig::new();
    assert_eq!(rig.client.samples_max(), (4088 - BatchRequest::FIXED_BYTES) / 8);
    let samples: Vec<_> = (0..100_000).map(SampleId).collect();
    let announcement =
        NodeAnnouncement { samples: samples.clone(), is_end: true, ..NodeAnnouncement::default() };
    rig.client.announce(announcement);
    let buffer = buffer(3);
    assert!(rig.client.request(batch(1, &[3], &buffer)));
    let mut found = Vec::new();
    while found.len() < samples.len() {
        rig.host.next(|message| {
            let ConsumerMessage::Announce(part) = message else { panic!("{message:?}") };
            found.extend(part.samples);
            assert_eq!((part.is_end, part.is_restart), (found.len() == samples.len(), false));
        });
    }
    assert_eq!(found, samples);
    rig.host.next(|message| assert!(matches!(message, ConsumerMessage::Request(_))));
}

#[test]
fn progress_wishes_and_the_end_reach_the_other_side() {
    let mut rig = Rig::new();
    rig.client.progress(5, Nanos::new(7), true);
    rig.host.next(|message| {
        let expected = ConsumerProgress { accesses: 5, interval: Nanos::new(7), is_waiting: true };
        assert_eq!(message, ConsumerMessage::Progress(expected));
    });
    rig.host.send(HostMessage::EpochWanted(EpochWanted { data_set: DATA_SET }));
    let event = rig.event();
    assert!(matches!(event, NodeEvent::EpochWanted), "{event:?}");
    let buffer = rig.request(1, &[3]);
    drop(rig.client);
    assert_eq!(Arc::strong_count(&buffer), 1);
    assert_eq!(rig.host.attachment.receive().unwrap().unwrap().message, NodeRequest::Detach);
    assert!(matches!(rig.host.attachment.receive(), Err(NodeError::Ended)));
}

#[test]
fn a_batch_that_is_withdrawn_during_its_copies_is_not_written_afterwards() {
    const LEN: usize = 1 << 20;
    const COUNT: u32 = SAMPLES;
    let mut rig = Rig::new();
    for number in 1..=30 {
        let buffer = rig.request(number, &[LEN; COUNT as usize]);
        // All of them are the same bytes.
        let bytes = vec![7; LEN];
        let samples: Vec<_> = (0..COUNT).map(|position| rig.host.write(position, 0, &bytes)).collect();
        let (first, rest) = samples.split_at(1);
        rig.host.answer(number, first);
        rig.host.expect_release(number, &[0]);
        rig.host.answer(number, rest);
        rig.client.withdraw(number);
        // SAFETY: the client does not access the memory of a withdrawn batch.
        unsafe { buffer.slice_mut(0, LEN * COUNT as usize) }.fill(1);
        assert_eq!(Arc::strong_count(&buffer), 1);
        // A release of what was copied may come before the end of the batch.
        while !rig.host.next(|message| match message {
            ConsumerMessage::Release(release) if release.batch == number => release.positions.is_empty(),
            other => panic!("{other:?}"),
        }) {}
        // The host may answer before it reads the end.
        rig.host.answer(number, &samples[1..2]);
        assert!(bytes_of(&buffer, LEN * COUNT as usize).iter().all(|byte| *byte == 1));
    }
    rig.client.drain(&mut rig.events);
    assert!(rig.events.iter().all(|event| matches!(event, NodeEvent::Copied { .. })), "{:?}", rig.events);
}
