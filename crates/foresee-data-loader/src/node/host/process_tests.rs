// SPDX-License-Identifier: Apache-2.0
//! A host with real sockets, rings and files, and consumers that speak its protocol step by step. The folder has origins
//! that answer late, and several hosts that exchange samples.

mod exchange;
mod openings;
mod slow_reads;

use std::collections::BTreeMap;
use std::path::Path;

use foresee_data_index::Index;
use foresee_data_node::message::{
    Announcement, BatchRelease, BatchRequest, ConsumerMessage, HostMessage, MemoryHits, RepeatRequest,
    SampleLocation,
};
use foresee_data_node::ring::RingPair;
use foresee_data_node::{
    ConnectOptions, DataSetDescription, Hello, LocationView, NodeConnection, SlabLocation, StorageOptions,
    index_file,
};
use foresee_testkit::{WATCHDOG, wait_until};
use foresee_units::{ReadOutcome, SampleId};
use tempfile::TempDir;

use super::*;
use crate::node::test_support::{address, flat_index, hello, host_options, private_dir};

const SAMPLE: usize = 1000;

/// A host with a directory of samples.
struct Rig {
    host: NodeHost,
    index: Index,
    data: TempDir,
    /// Removed last.
    home: TempDir,
}

/// A consumer that does one step at a time.
#[derive(Debug)]
struct TestConsumer {
    connection: NodeConnection,
    locations: LocationView,
    rings: RingPair,
    data_set: u32,
    generation: u32,
}

/// What a host has sent.
#[derive(Debug, PartialEq)]
enum Received {
    Answer(u64, Vec<SampleLocation>),
    Failure(u64, Vec<(u32, ReadOutcome)>),
    EpochWanted,
}

fn bytes_of(sample: u64) -> Vec<u8> {
    sample.to_le_bytes().repeat(SAMPLE / 8)
}

impl Rig {
    fn new(samples: u64, ram: u64) -> Self {
        Self::with(samples, |home| host_options(home, ram))
    }

    fn with(samples: u64, options: impl FnOnce(&Path) -> NodeHostOptions) -> Self {
        let (home, data) = (private_dir(), private_dir());
        for sample in 0..samples {
            std::fs::write(data.path().join(format!("{sample:06}")), bytes_of(sample)).expect("a file");
        }
        let index = flat_index(&data.path().display().to_string(), Vec::new());
        let host = NodeHost::start(options(home.path())).expect("a host");
        Self { host, index, data, home }
    }

    fn attach(&self) -> TestConsumer {
        self.attach_to(&self.data.path().display().to_string()).expect("the data set opens")
    }

    fn attach_to(&self, uri: &str) -> Result<TestConsumer, NodeError> {
        self.attach_with(uri, BTreeMap::new())
    }

    fn attach_with(&self, uri: &str, storage: BTreeMap<String, String>) -> Result<TestConsumer, NodeError> {
        TestConsumer::attach(self.home.path(), &self.index, uri, storage, hello())
    }

    /// The status once it fulfils a condition.
    fn status(&self, condition: impl Fn(&NodeStatus) -> bool) -> NodeStatus {
        wait_until("the status of the host", || condition(&self.host.status()));
        self.host.status()
    }
}

impl TestConsumer {
    /// Attach to the host in `home`.
    fn attach(
        home: &Path,
        index: &Index,
        uri: &str,
        storage: BTreeMap<String, String>,
        hello: Hello,
    ) -> Result<Self, NodeError> {
        let hello = Hello { request_ring_bytes: 64 << 10, ..hello };
        let options = ConnectOptions { allow_uids: Vec::new(), timeout: WATCHDOG };
        let (connection, rings) = NodeConnection::connect(&address(home), &hello, &options)?;
        let description = DataSetDescription {
            uri: uri.to_owned(),
            storage_options: StorageOptions(storage),
            fingerprint: index.file_fingerprint(),
            samples: index.samples(),
            is_listed: false,
        };
        let index = || index_file(index.file());
        let (data_set, locations) = connection.open_data_set(description, index, WATCHDOG, || true)?;
        Ok(Self { connection, locations, rings, data_set, generation: 0 })
    }

    fn send(&mut self, message: ConsumerMessage<'_>) {
        let mut bytes = Vec::new();
        message.encode_into(&mut bytes).expect("a message");
        let RingPair { writer, waiter, .. } = &mut self.rings;
        waiter
            .wait(Some(WATCHDOG), || writer.has_space(bytes.len()).expect("a ring").then_some(()))
            .expect("space");
        assert!(writer.try_push(&bytes).expect("a ring"));
    }

    fn announce(&mut self, samples: &[u64]) {
        self.announce_with(samples, false);
    }

    fn announce_with(&mut self, samples: &[u64], is_restart: bool) {
        let samples: Vec<_> = samples.iter().copied().map(SampleId).collect();
        self.send(ConsumerMessage::Announce(Announcement {
            data_set: self.data_set,
            generation: self.generation,
            is_restart,
            is_epoch_end: true,
            is_end: false,
            samples: samples.as_slice().into(),
        }));
    }

    fn request(&mut self, batch: u64, samples: &[u64]) {
        self.request_until(batch, samples, Nanos::ZERO);
    }

    fn request_until(&mut self, batch: u64, samples: &[u64], deadline: Nanos) {
        let samples: Vec<_> = samples.iter().copied().map(SampleId).collect();
        let data_set = self.data_set;
        self.send(ConsumerMessage::Request(BatchRequest {
            batch,
            deadline,
            data_set,
            samples: samples.as_slice().into(),
        }));
    }

    fn release(&mut self, batch: u64, positions: &[u32]) {
        self.send(ConsumerMessage::Release(BatchRelease { batch, positions: positions.into() }));
    }

    fn receive(&mut self) -> Received {
        let RingPair { reader, waiter, .. } = &mut self.rings;
        waiter
            .wait(Some(WATCHDOG), || reader.has_message().expect("a ring").then_some(()))
            .expect("a message");
        let bytes = reader.try_pop().expect("a ring").expect("a message");
        match HostMessage::decode(bytes).expect("a message of the host") {
            HostMessage::Answer(answer) => Received::Answer(answer.batch, answer.samples.iter().collect()),
            HostMessage::Failure(failure) => {
                let failed = failure.samples.iter().map(|one| (one.position, one.outcome));
                Received::Failure(failure.batch, failed.collect())
            }
            _ => Received::EpochWanted,
        }
    }

    /// Receive answers until `count` samples are there; they are copied and compared.
    fn copy(&mut self, batch: u64, samples: &[u64]) -> Vec<SampleLocation> {
        let mut all = Vec::new();
        while all.len() < samples.len() {
            match self.receive() {
                Received::Answer(answered, locations) => {
                    assert_eq!(answered, batch);
                    for location in &locations {
                        let sample = samples[location.position as usize];
                        let bytes = self.copy_one(sample, location.location);
                        assert_eq!(bytes, Some(bytes_of(sample)), "nothing was taken back");
                    }
                    all.extend(locations);
                }
                Received::EpochWanted => {}
                failure @ Received::Failure(..) => panic!("{failure:?}"),
            }
        }
        all
    }

    /// Copy a sample; `None` if it was withdrawn.
    fn copy_one(&self, sample: u64, location: SlabLocation) -> Option<Vec<u8>> {
        let (sample, mut bytes) = (SampleId(sample), vec![0; SAMPLE]);
        let is_copied = self.locations.copy(self.connection.slab(), sample, location, &mut bytes);
        is_copied.expect("inside the slab").then_some(bytes)
    }

    /// Copy a sample that the host has published, without a request.
    fn find(&self, sample: u64) -> Option<Vec<u8>> {
        let location = self.locations.get(SampleId(sample)).expect("a sample of the data set");
        self.copy_one(sample, location)
    }
}

#[test]
fn two_consumers_read_the_origin_once() {
    let rig = Rig::new(100, 4 << 20);
    let (mut first, mut second) = (rig.attach(), rig.attach());
    let (forth, back): (Vec<_>, Vec<_>) = ((0..100).collect(), (0..100).rev().collect());
    for epoch in 0..3 {
        for (consumer, order) in [(&mut first, &forth), (&mut second, &back)] {
            consumer.announce(order);
            for (batch, samples) in (10 * epoch..).zip(order.chunks(10)) {
                consumer.request(batch, samples);
                consumer.copy(batch, samples);
                consumer.release(batch, &[]);
            }
        }
    }
    let status =
        rig.status(|status| status.consumers.iter().map(|one| one.memory.samples).sum::<u64>() == 500);
    assert_eq!(status.origin.requests, 100);
    assert_eq!(status.origin.bytes, 100 * SAMPLE as u64);
    assert_eq!(status.consumers.len(), 2);
    assert!(status.consumers.iter().all(|one| one.waiting == 0));
}

#[test]
fn samples_that_were_answered_once_are_found_without_a_request() {
    let rig = Rig::new(20, 4 << 20);
    let (mut first, mut second) = (rig.attach(), rig.attach());
    let samples: Vec<_> = (0..20).collect();
    for consumer in [&mut first, &mut second] {
        consumer.announce(&samples);
    }
    first.request(0, &samples[..10]);
    first.copy(0, &samples[..10]);
    for sample in 0..10 {
        assert_eq!(second.find(sample), Some(bytes_of(sample)));
    }
    second.send(ConsumerMessage::Hits(MemoryHits { accesses: 10 }));
    // What was read ahead counts for the consumer that requests it first.
    second.request(0, &samples[10..]);
    second.copy(0, &samples[10..]);
    // A status may be older than the last answer.
    let status = rig.status(|status| {
        status.consumers.iter().map(|one| one.memory.samples + one.origin.samples).sum::<u64>() == 30
    });
    let served: Vec<_> =
        status.consumers.iter().map(|one| (one.memory.samples, one.origin.samples)).collect();
    assert_eq!(served, [(0, 10), (10, 10)]);
    assert_eq!(status.consumers[1].memory.bytes, 10 * SAMPLE as u64);
}

#[test]
fn hits_beyond_what_is_announced_end_the_attachment() {
    let rig = Rig::new(20, 4 << 20);
    let mut consumer = rig.attach();
    consumer.announce(&[0, 1]);
    consumer.send(ConsumerMessage::Hits(MemoryHits { accesses: 3 }));
    assert!(matches!(consumer.connection.receive(WATCHDOG), Err(NodeError::Ended)));
}

#[test]
fn a_batch_in_memory_is_one_answer() {
    let rig = Rig::new(20, 4 << 20);
    let mut consumer = rig.attach();
    let samples: Vec<_> = (0..20).collect();
    for batch in 0..2 {
        consumer.announce(&samples);
        consumer.request(batch, &samples);
        let (mut answers, mut answered) = (0, 0);
        while answered < samples.len() {
            if let Received::Answer(_, locations) = consumer.receive() {
                (answers, answered) = (answers + 1, answered + locations.len());
            }
        }
        // Reads of the first batch may take longer than its answers are held back.
        assert!(batch == 0 || answers == 1, "{answers} answers");
        consumer.release(batch, &[]);
    }
}

#[test]
fn a_memory_smaller_than_the_data_serves_every_sample() {
    // Space for some 50 of 300 samples.
    let rig = Rig::new(300, 64 << 10);
    let mut consumer = rig.attach();
    let order: Vec<_> = (0..300).map(|i| (i * 7) % 300).collect();
    for epoch in 0..3 {
        consumer.announce(&order);
        for (batch, samples) in (100 * epoch..).zip(order.chunks(20)) {
            consumer.request(batch, samples);
            consumer.copy(batch, samples);
            consumer.release(batch, &[]);
        }
    }
    let status = rig.status(|status| status.consumers[0].waiting == 0);
    assert!(status.origin.requests > 300, "not everything stays");
    assert!(status.origin.requests < 900, "something stays");
    assert!(status.memory.used <= 64 << 10);
}

#[test]
fn samples_of_a_batch_that_exceeds_the_memory_come_in_parts() {
    let rig = Rig::new(100, 32 << 10);
    let mut consumer = rig.attach();
    let order: Vec<_> = (0..100).collect();
    consumer.announce(&order);
    consumer.request(0, &order);
    let mut copied = 0;
    while copied < 100 {
        if let Received::Answer(0, locations) = consumer.receive() {
            let positions: Vec<_> = locations.iter().map(|location| location.position).collect();
            consumer.release(0, &positions);
            copied += positions.len();
        }
    }
    consumer.release(0, &[]);
    rig.status(|status| status.consumers[0].waiting == 0);
}

#[test]
fn samples_of_a_consumer_that_stands_still_are_taken_back_and_requested_again() {
    let rig = Rig::new(100, 32 << 10);
    let (mut stopped, mut running) = (rig.attach(), rig.attach());
    let order: Vec<_> = (0..100).collect();
    stopped.announce(&order);
    stopped.request(0, &order[..20]);
    let held = stopped.copy(0, &order[..20]);
    running.announce(&order[50..]);
    for (batch, samples) in (0..).zip(order[50..].chunks(10)) {
        running.request(batch, samples);
        running.copy(batch, samples);
        running.release(batch, &[]);
    }
    let is_lost = |one: &&SampleLocation| stopped.copy_one(one.position.into(), one.location).is_none();
    let lost: Vec<_> = held.iter().filter(is_lost).collect();
    assert!(!lost.is_empty(), "the running consumer needed the memory");
    // Reads of a batch end in any order.
    let mut positions: Vec<_> = lost.iter().map(|location| location.position).collect();
    positions.sort_unstable();
    stopped.send(ConsumerMessage::Repeat(RepeatRequest { batch: 0, positions: positions.as_slice().into() }));
    let mut again = Vec::new();
    while again.len() < positions.len() {
        if let Received::Answer(0, locations) = stopped.receive() {
            again.extend(locations.iter().map(|location| location.position));
            let positions: Vec<_> = locations.iter().map(|location| location.position).collect();
            stopped.release(0, &positions);
        }
    }
    again.sort_unstable();
    assert_eq!(again, positions);
}

#[test]
fn an_object_that_is_gone_fails_alone() {
    let rig = Rig::new(10, 1 << 20);
    std::fs::remove_file(rig.data.path().join("000003")).expect("a file");
    let mut consumer = rig.attach();
    let order: Vec<_> = (0..10).collect();
    consumer.announce(&order);
    consumer.request(0, &order);
    let (mut answered, mut failed) = (Vec::new(), Vec::new());
    while answered.len() + failed.len() < 10 {
        match consumer.receive() {
            Received::Answer(_, locations) => answered.extend(locations.iter().map(|one| one.position)),
            Received::Failure(_, positions) => failed.extend(positions),
            Received::EpochWanted => {}
        }
    }
    assert_eq!(failed, [(3, ReadOutcome::Absent)]);
    assert_eq!(answered.len(), 9);
    let mut event = None;
    while event.is_none() {
        let next = rig.host.next_event(WATCHDOG).expect("a running host").expect("an event");
        event = Some(next).filter(|one| one.event == "read failed");
    }
    let text = format!("{event:?}");
    assert!(text.contains("000003"), "{text}");
}

#[test]
fn a_request_that_was_not_announced_ends_the_attachment_with_the_reason() {
    let rig = Rig::new(10, 1 << 20);
    for (samples, reason) in
        [(&[0, 2][..], "sample 2 as its number 1, but announced was 1"), (&[0, 1, 2, 3], "nothing")]
    {
        let mut consumer = rig.attach();
        consumer.announce(&[0, 1, 2]);
        consumer.request(7, samples);
        let event = wait_for_event(&rig.host, "detached");
        assert!(event.contains(reason), "{event}");
    }
}

fn wait_for_event(host: &NodeHost, name: &str) -> String {
    loop {
        let next = host.next_event(WATCHDOG).expect("a running host").expect("an event");
        if next.event == name {
            return format!("{next:?}");
        }
    }
}

#[test]
fn a_data_set_that_cannot_be_opened_is_refused_with_the_reason_and_the_next_one_is_served() {
    let rig = Rig::new(10, 1 << 20);
    let absent = rig.data.path().join("absent").display().to_string();
    let refused = rig.attach_to(&absent).expect_err("no such directory").to_string();
    assert!(refused.contains("absent"), "{refused}");
    let mut consumer = rig.attach();
    assert_eq!(consumer.data_set, 0);
    consumer.announce(&[1, 2]);
    consumer.request(0, &[1, 2]);
    consumer.copy(0, &[1, 2]);
}

#[test]
fn a_restart_continues_elsewhere_in_the_order() {
    let rig = Rig::new(50, 1 << 20);
    let mut consumer = rig.attach();
    consumer.announce(&[0, 1, 2, 3, 4, 5]);
    consumer.request(0, &[0, 1]);
    consumer.copy(0, &[0, 1]);
    consumer.release(0, &[]);
    consumer.announce_with(&[40, 41, 42], true);
    consumer.request(1, &[40, 41]);
    consumer.copy(1, &[40, 41]);
    consumer.release(1, &[]);
    rig.status(|status| status.consumers[0].waiting == 0);
}

#[test]
fn a_disk_keeps_all_that_was_read_and_outlives_the_host() {
    let disk = private_dir();
    let with_disk = |home: &Path| NodeHostOptions {
        disk: Some((disk.path().to_owned(), Bytes::new(64 << 20))),
        ..host_options(home, 64 << 10)
    };
    let mut rig = Rig::with(200, with_disk);
    let order: Vec<_> = (0..200).collect();
    for round in 0..2 {
        let mut consumer = rig.attach();
        for epoch in 0..3 {
            consumer.announce(&order);
            for (batch, samples) in (100 * epoch..).zip(order.chunks(10)) {
                consumer.request(batch, samples);
                consumer.copy(batch, samples);
                consumer.release(batch, &[]);
            }
        }
        // In the second round, all of it is on disk.
        let read = rig.status(|status| status.consumers[0].waiting == 0).origin.requests;
        assert_eq!(read, if round == 0 { 200 } else { 0 });
        drop(consumer);
        rig.status(|status| status.consumers.is_empty() && status.disk.used >= 200 * SAMPLE as u64);
        rig.host.close();
        rig.host = NodeHost::start(with_disk(rig.home.path())).expect("the path is free");
    }
}

#[test]
fn a_disk_that_can_hold_all_has_it_before_the_consumers_leave() {
    let disk = private_dir();
    let with_disk = |home: &Path| NodeHostOptions {
        disk: Some((disk.path().to_owned(), Bytes::new(64 << 20))),
        ..host_options(home, 4 << 20)
    };
    let rig = Rig::with(200, with_disk);
    let mut consumer = rig.attach();
    let order: Vec<_> = (0..200).collect();
    consumer.announce(&order);
    consumer.request(0, &order);
    consumer.copy(0, &order);
    rig.status(|status| status.disk.used >= 200 * SAMPLE as u64);
}

#[test]
fn a_host_closes_with_its_consumers_attached_and_frees_its_path() {
    let rig = Rig::new(10, 1 << 20);
    let consumer = rig.attach();
    let path = rig.host.path().to_owned();
    assert!(path.exists());
    rig.host.close();
    assert!(!path.exists());
    assert!(matches!(consumer.connection.receive(WATCHDOG), Err(NodeError::Ended)));
    rig.host.close();
}
