// SPDX-License-Identifier: Apache-2.0
//! Searches for real hosts that end and come back at one address.

use foresee_data_index::Index;
use foresee_data_node::{
    Incoming, ListenerOptions, NodeListener, NodeReply, RefusalCode, SlabMemory, SlabOptions, WelcomeFacts,
};
use foresee_testkit::{WATCHDOG, wait_until};
use foresee_units::{Bytes, SampleId};
use tempfile::TempDir;

use super::*;
use crate::buffer::BufferPool;
use crate::node::test_support::{address, flat_index, hello, host_options, private_dir};
use crate::node::{NodeAnnouncement, NodeBatch, NodeEvent, NodeHost};

const FILES: [&str; 3] = ["one", "two", "three"];

/// The address of hosts, and a data set.
struct Rig {
    index: Index,
    data: TempDir,
    home: TempDir,
}

impl Rig {
    fn new() -> Self {
        let (data, home) = (private_dir(), private_dir());
        for (number, content) in FILES.iter().enumerate() {
            std::fs::write(data.path().join(number.to_string()), content).expect("a file");
        }
        let index = flat_index(&data.path().display().to_string(), Vec::new());
        Self { index, data, home }
    }

    fn address(&self) -> NodeAddress {
        address(self.home.path())
    }

    fn host(&self) -> NodeHost {
        NodeHost::start(host_options(self.home.path(), 4 << 20)).expect("a host")
    }

    fn target(&self) -> AttachTarget {
        let uri = self.data.path().display().to_string();
        AttachTarget {
            address: self.address(),
            role: NodeCacheRole::ServiceConsumer,
            hello: hello(),
            data: Arc::new(DataSet::new(self.index.clone(), &uri)),
            uri,
            storage: Vec::new(),
            is_listed: false,
            waker: Arc::default(),
        }
    }
}

/// Wait for the end of an attachment.
fn wait_for_end(client: &NodeClient) {
    let mut events = Vec::new();
    wait_until("the end of the host", || {
        client.drain(&mut events);
        events.iter().any(|event| matches!(event, NodeEvent::Ended { .. }))
    });
}

/// Wait for the outcome of a search, which wakes the driver. Threads of the client before it may have woken it, too.
fn wait_for_outcome(search: &HostSearch, waker: &Waker) -> Result<Attached, NodeError> {
    const WAKES_MAX: usize = 8;
    let outcome = (0..WAKES_MAX).find_map(|_| {
        waker.wait(WATCHDOG);
        search.poll()
    });
    outcome.expect("an outcome").map_err(|failure| failure.why)
}

/// Attach at the start of a loader.
fn attach(target: AttachTarget) -> Result<Attached, NodeError> {
    let attempt = HostSearch::attempt(target).expect("a thread");
    attempt.wait(WATCHDOG).expect("an outcome").map_err(|failure| failure.why)
}

/// Read all samples through a client.
fn read(client: &NodeClient) {
    let samples: Vec<_> = (0..FILES.len() as u64).map(SampleId).collect();
    let (is_restart, is_epoch_end, is_end) = (false, true, true);
    client.announce(NodeAnnouncement {
        samples: samples.clone(),
        generation: 0,
        is_restart,
        is_epoch_end,
        is_end,
    });
    let text = FILES.concat();
    let buffer = Arc::new(BufferPool::new(Bytes::new(1 << 20), Arc::default())).lend(text.len());
    buffer.ensure_mapped().expect("memory");
    let mut offset = 0;
    let spans = FILES.iter().map(|content| {
        offset += content.len();
        (offset - content.len(), content.len())
    });
    let (samples, spans, memory) = (samples.into(), spans.collect(), Arc::clone(&buffer));
    assert!(client.request(NodeBatch { number: 0, deadline: Nanos::MAX, samples, spans, buffer: memory }));
    let (mut events, mut copied) = (Vec::new(), 0);
    wait_until("all samples", || {
        client.drain(&mut events);
        for event in events.drain(..) {
            match event {
                NodeEvent::Copied { positions, .. } => copied += positions.len(),
                NodeEvent::EpochWanted => {}
                other => panic!("{other:?}"),
            }
        }
        copied == FILES.len()
    });
    // SAFETY: all positions are reported.
    assert_eq!(unsafe { buffer.payload(0, text.len()) }.as_slice(), text.as_bytes());
}

#[test]
fn a_host_that_comes_back_is_used_again_each_time() {
    let rig = Rig::new();
    let mut host = rig.host();
    let target = rig.target();
    let waker = Arc::clone(&target.waker);
    let mut attached = attach(target).expect("the first host");
    for _ in 0..2 {
        read(&attached.client);
        host.close();
        wait_for_end(&attached.client);
        // The end has woken the driver.
        waker.wait(WATCHDOG);
        let Attached { client, retry, .. } = attached;
        drop(client);
        let search = HostSearch::start(retry).expect("a thread");
        assert!(search.poll().is_none(), "no host is there");
        host = rig.host();
        attached = wait_for_outcome(&search, &waker).expect("the next host");
    }
    read(&attached.client);
}

#[test]
fn a_host_of_another_version_ends_the_search() {
    let rig = Rig::new();
    let host = rig.host();
    let target = rig.target();
    let waker = Arc::clone(&target.waker);
    let Attached { client, retry, .. } = attach(target).expect("a host");
    host.close();
    wait_for_end(&client);
    waker.wait(WATCHDOG);
    let mut other = listen(&rig);
    let search = HostSearch::start(retry).expect("a thread");
    let Some(Incoming::Attach(request)) = other.accept(WATCHDOG).expect("a socket") else {
        panic!("no consumer")
    };
    request.refuse(RefusalCode::Version, "install one version of Foresee");
    let refused = wait_for_outcome(&search, &waker).expect_err("a refusal");
    assert!(matches!(refused, NodeError::Refused { code: RefusalCode::Version, .. }), "{refused}");
    let thread = search.thread.as_ref().expect("a thread");
    wait_until("the end of the search", || thread.is_finished());
}

#[test]
fn a_search_without_a_host_ends_with_its_loader() {
    let rig = Rig::new();
    let host = rig.host();
    let Attached { client, retry, .. } = attach(rig.target()).expect("a host");
    host.close();
    wait_for_end(&client);
    drop(HostSearch::start(retry).expect("a thread"));
}

/// A listening socket at the address of the rig, which nobody serves.
fn listen(rig: &Rig) -> NodeListener {
    let options = ListenerOptions { allow_uids: Vec::new(), hello_timeout: WATCHDOG };
    NodeListener::bind(&rig.address(), options).expect("the path is free")
}

#[test]
fn an_attempt_at_a_host_that_does_not_answer_ends_and_can_be_repeated() {
    let rig = Rig::new();
    let silent = listen(&rig);
    let attempt = HostSearch::attempt(rig.target()).expect("a thread");
    let AttachFailure { why, retry } = attempt.wait(WATCHDOG).expect("an outcome").expect_err("no answer");
    assert!(matches!(why, NodeError::Late { .. }), "{why}");
    drop(silent);
    let _host = rig.host();
    let waker = Arc::clone(&retry.target.waker);
    let search = HostSearch::start(*retry).expect("a thread");
    read(&wait_for_outcome(&search, &waker).expect("a host that answers").client);
}

#[test]
fn an_attempt_ends_with_its_loader_although_the_host_opens_the_data_set() {
    let rig = Rig::new();
    let mut host = listen(&rig);
    let attempt = HostSearch::attempt(rig.target()).expect("a thread");
    let Some(Incoming::Attach(request)) = host.accept(WATCHDOG).expect("a socket") else {
        panic!("no consumer")
    };
    let data = Bytes::new(1 << 20);
    let slab = SlabMemory::create(&SlabOptions { data, available: None, huge_pages: false });
    let facts = WelcomeFacts { foresee: "test".into(), consumer: 0, ram: data, disk: Bytes::ZERO };
    let (attachment, _rings) = request.accept(&slab.expect("memory"), facts).expect("a consumer");
    attachment.send(&NodeReply::Opening).expect("a consumer");
    assert!(attempt.wait(Duration::ZERO).is_none());
    std::thread::scope(|scope| {
        scope.spawn(|| drop(attempt));
        wait_until("the end of the consumer", || attachment.send(&NodeReply::Opening).is_err());
    });
}
