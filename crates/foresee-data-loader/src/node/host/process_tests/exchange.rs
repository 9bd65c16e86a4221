// SPDX-License-Identifier: Apache-2.0
//! Hosts of several nodes that exchange samples over the loopback. Their ranks go on together, as in training.

use std::net::Ipv4Addr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use foresee_data_plan::JobShape;
use foresee_testkit::Dice;
use foresee_units::NodeIndex;
use foresee_wire::{
    DialOptions, Header, Hello as WireHello, Kind, LinkOptions, Message, Purpose, Role, SampleMessage,
    SampleRequest, Secret, Wait, dial,
};

use super::*;
use crate::node::{PeerOptions, PlanKey};

const BATCH: usize = 4;

/// Nodes of one rank each, with one data set.
struct Job {
    nodes: Vec<JobNode>,
    index: Index,
    data: TempDir,
    samples: u64,
    epochs: u64,
}

struct JobNode {
    host: NodeHost,
    /// Removed last.
    home: TempDir,
}

fn secret() -> Secret {
    Secret::from_text("a secret of these tests").expect("long enough")
}

fn listener(own: u16, nodes: u16) -> PeerListener {
    let options = PeerOptions {
        job: "job".into(),
        own: NodeIndex(own),
        nodes,
        secret: secret(),
        tls: None,
        link: LinkOptions::default(),
    };
    PeerListener::bind(options, (Ipv4Addr::LOCALHOST, 0).into()).expect("a free port")
}

/// The first plan of the consumers of these tests.
fn plan() -> PlanKey {
    let Hello { job, loader, .. } = hello();
    PlanKey { job, loader, generation: 0 }
}

/// The samples of all ranks in an epoch: a permutation, by step and rank.
fn in_order(samples: u64, epoch: u64) -> Vec<u64> {
    let mut dice = Dice::new(epoch);
    let mut all: Vec<u64> = (0..samples).collect();
    for at in (1..all.len()).rev() {
        all.swap(at, dice.below(at + 1));
    }
    all
}

impl Job {
    /// `samples`: a multiple of the samples in a step. `options`: of each host.
    fn new(nodes: u16, samples: u64, epochs: u64, options: impl Fn(&Path) -> NodeHostOptions) -> Self {
        let job = Self::apart(nodes, samples, epochs, options);
        let listeners: Vec<_> = (0..nodes).map(|own| listener(own, nodes)).collect();
        let addresses: Vec<_> = listeners.iter().map(PeerListener::address).collect();
        for (node, listener) in job.nodes.iter().zip(listeners) {
            job.join(node, listener, &addresses);
        }
        job
    }

    /// All nodes agree on another plan, from `epoch` on, with what they have.
    fn join_again(&self, generation: u32, epoch: u64) {
        let plan = PlanKey { generation, ..plan() };
        let contents: Vec<_> = (self.nodes.iter())
            .map(|node| {
                let mut found = None;
                wait_until("the contents", || {
                    found = node.host.contents(plan.clone(), WATCHDOG);
                    found.is_some()
                });
                found.expect("the contents")
            })
            .collect();
        let count = u16::try_from(self.nodes.len()).expect("few");
        let listeners: Vec<_> = (0..count).map(|own| listener(own, count)).collect();
        let addresses: Vec<_> = listeners.iter().map(PeerListener::address).collect();
        for (node, listener) in self.nodes.iter().zip(listeners) {
            let job = PeerJob {
                plan: plan.clone(),
                contents: contents.clone(),
                ..self.peer_job(node, &addresses, epoch)
            };
            node.host.join_job(job, listener);
        }
    }

    /// The hosts, which do not exchange samples yet.
    fn apart(nodes: u16, samples: u64, epochs: u64, options: impl Fn(&Path) -> NodeHostOptions) -> Self {
        let data = private_dir();
        for sample in 0..samples {
            std::fs::write(data.path().join(format!("{sample:06}")), bytes_of(sample)).expect("a file");
        }
        let index = flat_index(&data.path().display().to_string(), Vec::new());
        let node = |_| {
            let home = private_dir();
            JobNode { host: NodeHost::start(options(home.path())).expect("a host"), home }
        };
        Self { nodes: (0..nodes).map(node).collect(), index, data, samples, epochs }
    }

    fn join(&self, node: &JobNode, listener: PeerListener, addresses: &[std::net::SocketAddr]) {
        node.host.join_job(self.peer_job(node, addresses, 0), listener);
    }

    /// The plan from the start of `epoch` on.
    fn peer_job(&self, node: &JobNode, addresses: &[std::net::SocketAddr], epoch: u64) -> PeerJob {
        let count = u16::try_from(addresses.len()).expect("few");
        let (samples, epochs) = (self.samples, self.epochs);
        PeerJob {
            plan: plan(),
            contents: Vec::new(),
            fingerprint: self.index.file_fingerprint(),
            addresses: addresses.to_vec(),
            capacities: vec![node.host.reservable(Bytes::new(SAMPLE as u64)); addresses.len()],
            shape: JobShape { nodes: (0..count).map(NodeIndex).collect(), batch: BATCH },
            horizon: 2,
            draw: Box::new(move |nth| {
                let all = (epoch + nth < epochs).then(|| in_order(samples, epoch + nth))?;
                Some(all.into_iter().map(SampleId).collect())
            }),
        }
    }

    fn attach(&self, rank: usize) -> TestConsumer {
        let hello = Hello { rank: u32::try_from(rank).expect("few"), ..hello() };
        let uri = self.data.path().display().to_string();
        let home = self.nodes[rank].home.path();
        TestConsumer::attach(home, &self.index, &uri, BTreeMap::new(), hello).expect("the data set opens")
    }

    /// All ranks read some epochs, step by step.
    fn run(&self, ranks: &mut [TestConsumer], epochs: std::ops::Range<u64>) {
        let count = ranks.len();
        let step = Barrier::new(count);
        std::thread::scope(|scope| {
            for (rank, consumer) in ranks.iter_mut().enumerate() {
                let (step, epochs) = (&step, epochs.clone());
                scope.spawn(move || {
                    for epoch in epochs {
                        let all = in_order(self.samples, epoch);
                        let batches: Vec<_> = all.chunks(BATCH).skip(rank).step_by(count).collect();
                        consumer.announce(&batches.concat());
                        for (number, batch) in (epoch << 32..).zip(batches) {
                            consumer.request(number, batch);
                            consumer.copy(number, batch);
                            consumer.release(number, &[]);
                            step.wait();
                        }
                    }
                });
            }
        });
    }

    /// Check that samples were read from the origin once, or again where another node was late: a busy machine is.
    fn check_origin(&self) {
        let requests = || self.nodes.iter().map(|node| node.host.status().origin.requests).sum::<u64>();
        let counts = || self.nodes.iter().filter_map(|node| node.host.status().peers);
        let received = || counts().map(|one| one.received.samples).sum::<u64>();
        // The status may be older than the last answer.
        wait_until("all reads are counted", || requests() >= self.samples && received() > self.samples / 4);
        let again: u64 = counts().map(|one| one.missing + one.late + one.silent).sum();
        let answered = |node: &JobNode| node.host.status().consumers[0].peers.samples;
        assert!(self.nodes.iter().map(answered).sum::<u64>() > self.samples / 4);
        assert!(requests() <= self.samples + again, "{} of {} + {again}", requests(), self.samples);
    }
}

#[test]
fn each_sample_is_read_from_the_origin_once() {
    let job = Job::new(3, 240, 4, |home| host_options(home, 4 << 20));
    let mut ranks: Vec<_> = (0..3).map(|rank| job.attach(rank)).collect();
    job.run(&mut ranks, 0..4);
    job.check_origin();
}

#[test]
fn samples_on_the_disks_of_other_nodes_are_read_there() {
    // The memory of a node has space for few samples beside those that are requested and read ahead.
    let disk = Bytes::new(8 << 20);
    let options = |home: &Path| NodeHostOptions {
        disk: Some((home.join("disk"), disk)),
        ..host_options(home, 1 << 20)
    };
    let job = Job::new(2, 1600, 2, options);
    let mut ranks: Vec<_> = (0..2).map(|rank| job.attach(rank)).collect();
    job.run(&mut ranks, 0..2);
    job.check_origin();
}

#[test]
fn a_node_that_ends_costs_reads() {
    let mut job = Job::new(2, 80, 3, |home| host_options(home, 4 << 20));
    let mut ranks: Vec<_> = (0..2).map(|rank| job.attach(rank)).collect();
    job.run(&mut ranks, 0..1);
    // The first rank goes on alone, with the batches that it would have had.
    ranks.pop();
    job.nodes.pop();
    let mut rank = ranks.pop().expect("the first");
    for epoch in 1..3 {
        let all = in_order(80, epoch);
        let batches: Vec<_> = all.chunks(BATCH).step_by(2).collect();
        rank.announce(&batches.concat());
        for (number, batch) in (epoch << 32..).zip(batches) {
            rank.request(number, batch);
            rank.copy(number, batch);
            rank.release(number, &[]);
        }
    }
}

#[test]
fn ranks_that_continue_elsewhere_exchange_what_the_nodes_have_by_another_plan() {
    let job = Job::new(2, 240, 5, |home| host_options(home, 4 << 20));
    let mut ranks: Vec<_> = (0..2).map(|rank| job.attach(rank)).collect();
    job.run(&mut ranks, 0..1);
    for rank in &mut ranks {
        rank.generation = 1;
        // An epoch that none of them reads is void then.
        rank.announce_with(&[], false);
        rank.announce_with(&in_order(240, 1), false);
        rank.generation = 2;
        rank.announce_with(&[], true);
    }
    for node in &job.nodes {
        let mut all = Vec::new();
        wait_until("the exchange ends", || {
            let entry = node.host.next_event(Duration::from_millis(1)).expect("the host runs");
            all.extend(entry.map(|entry| entry.event));
            all.contains(&"exchange of samples ended")
        });
    }
    job.join_again(2, 2);
    job.run(&mut ranks, 2..5);
    job.check_origin();
}

/// Deny every sample that a host requests, until it has requested one and `is_over`; returns the first.
fn deny(connection: &mut foresee_wire::Connection, is_over: impl Fn() -> bool) -> u64 {
    let (mut denied, wait) = (None, || Wait::within(WATCHDOG));
    let mut say =
        |message| connection.sender.send_message(&Message::Samples(message), 0, wait()).expect("sent");
    loop {
        // It is alive.
        say(SampleMessage::Passed(0));
        match connection.receiver.next_message(Wait::within(Duration::from_millis(20))) {
            Ok(Some(Message::Samples(SampleMessage::Request(requests)))) => {
                for SampleRequest { sample, .. } in requests {
                    denied = denied.or(Some(sample));
                    say(SampleMessage::Missing(sample));
                }
            }
            Ok(Some(_)) => {}
            Ok(None) => panic!("the host has ended the connection"),
            Err(why) => assert!(why.is_late(), "{why}"),
        }
        if let Some(denied) = denied.filter(|_| is_over()) {
            return denied;
        }
    }
}

#[test]
fn a_sample_that_was_denied_and_is_sent_nevertheless_changes_no_memory() {
    let job = Job::apart(1, 16, 1000, |home| host_options(home, 4 << 20));
    let listener = listener(0, 2);
    let address = listener.address();
    job.join(&job.nodes[0], listener, &[address, address]);
    let mut rank = job.attach(0);
    let hello = WireHello { target: 0, ..WireHello::new(Purpose::Samples, Role::Data, "job", 1, 2) };
    let wait = || Wait::within(WATCHDOG);
    // The host listens for nodes once it has the data set.
    let mut connection = dial(address, hello, &secret(), &DialOptions::default(), wait()).expect("admitted");
    let (has_denied, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let denied = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let denied = deny(&mut connection, || {
                has_denied.store(true, Ordering::Relaxed);
                is_over.load(Ordering::Relaxed)
            });
            (connection, denied)
        });
        // One epoch more than needed for a sample to be denied.
        let mut epoch = 0;
        let mut left = 2;
        while left > 0 {
            let all = in_order(16, epoch);
            let batches: Vec<_> = all.chunks(BATCH).step_by(2).collect();
            rank.announce(&batches.concat());
            for (number, batch) in (epoch << 32..).zip(batches) {
                rank.request(number, batch);
                rank.copy(number, batch);
                rank.release(number, &[]);
            }
            epoch += 1;
            left -= u64::from(has_denied.load(Ordering::Relaxed));
        }
        is_over.store(true, Ordering::Relaxed);
        other.join().expect("no panic")
    });
    let (mut connection, sample) = denied;
    let wrong = vec![0xAA; SAMPLE];
    let header = Header::sample(sample, 0, u32::try_from(SAMPLE).expect("small")).sealed(&wrong);
    connection.sender.send_all(&header, &wrong, wait()).expect("sent");
    // The host answers after it has received that.
    let request = SampleRequest { sample, position: 0, within: None };
    let request = Message::Samples(SampleMessage::Request(vec![request]));
    connection.sender.send_message(&request, 0, wait()).expect("sent");
    while connection.receiver.header(wait()).expect("alive").expect("alive").kind != Kind::Sample {
        connection.receiver.discard(wait()).expect("alive");
    }
    let mut answer = vec![0; SAMPLE];
    connection.receiver.payload(&mut answer, wait()).expect("a sample");
    assert!(answer == bytes_of(sample), "sample {sample} has changed");
}
