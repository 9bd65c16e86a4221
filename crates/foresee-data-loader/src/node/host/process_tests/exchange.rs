// SPDX-License-Identifier: Apache-2.0
//! Hosts of several nodes that exchange samples over the loopback. Their ranks go on together, as in training.

use std::net::Ipv4Addr;
use std::sync::Barrier;

use foresee_data_plan::JobShape;
use foresee_testkit::Dice;
use foresee_units::NodeIndex;
use foresee_wire::{LinkOptions, Secret};

use super::*;
use crate::node::PeerOptions;

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
        let data = private_dir();
        for sample in 0..samples {
            std::fs::write(data.path().join(format!("{sample:06}")), bytes_of(sample)).expect("a file");
        }
        let index = flat_index(&data.path().display().to_string(), Vec::new());
        let node = |_| {
            let home = private_dir();
            JobNode { host: NodeHost::start(options(home.path())).expect("a host"), home }
        };
        let nodes: Vec<_> = (0..nodes).map(node).collect();
        let job = Self { nodes, index, data, samples, epochs };
        job.join();
        job
    }

    fn join(&self) {
        let count = u16::try_from(self.nodes.len()).expect("few");
        let listeners = (0..count).map(|own| {
            let options = PeerOptions {
                job: "job".into(),
                own: NodeIndex(own),
                nodes: count,
                secret: Secret::from_text("a secret of these tests").expect("long enough"),
                tls: None,
                link: LinkOptions::default(),
            };
            PeerListener::bind(options, (Ipv4Addr::LOCALHOST, 0).into()).expect("a free port")
        });
        let listeners: Vec<_> = listeners.collect();
        let addresses: Vec<_> = listeners.iter().map(PeerListener::address).collect();
        let largest = Bytes::new(SAMPLE as u64);
        let capacities: Vec<_> = self.nodes.iter().map(|node| node.host.reservable(largest)).collect();
        for (node, listener) in self.nodes.iter().zip(listeners) {
            let (samples, epochs) = (self.samples, self.epochs);
            let job = PeerJob {
                fingerprint: self.index.file_fingerprint(),
                addresses: addresses.clone(),
                capacities: capacities.clone(),
                shape: JobShape { nodes: (0..count).map(NodeIndex).collect(), batch: BATCH },
                horizon: 2,
                draw: Box::new(move |epoch| {
                    let all = (epoch < epochs).then(|| in_order(samples, epoch))?;
                    Some(all.into_iter().map(SampleId).collect())
                }),
            };
            node.host.join_job(job, listener);
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
fn a_rank_that_continues_elsewhere_ends_the_exchange() {
    let job = Job::new(2, 80, 3, |home| host_options(home, 4 << 20));
    let mut ranks: Vec<_> = (0..2).map(|rank| job.attach(rank)).collect();
    job.run(&mut ranks, 0..1);
    let other = in_order(80, 7);
    for rank in &mut ranks {
        rank.announce(&in_order(80, 1)[..8]);
        rank.announce_with(&other, true);
        for (number, batch) in (1 << 40..).zip(other.chunks(BATCH)) {
            rank.request(number, batch);
            rank.copy(number, batch);
            rank.release(number, &[]);
        }
    }
    for node in &job.nodes {
        let mut all = Vec::new();
        wait_until("the exchange ends", || {
            let entry = node.host.next_event(Duration::from_millis(1)).expect("the host runs");
            all.extend(entry.map(|entry| entry.event));
            all.contains(&"no exchange of samples")
        });
    }
}
