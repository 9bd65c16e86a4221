// SPDX-License-Identifier: Apache-2.0
//! Ranks that exchange as one with the others of their node, over shared memory.
//!
//! Nodes are leaders of one process, which share only servers.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "values drawn for a test")]

mod values;

use std::num::NonZeroU32;
use std::sync::{Arc, Barrier};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use foresee_grad_exchange::{
    ExchangeError, Gradient, GradientExchange, LostPeer, NodeLeader, NodeMember, NodeOptions, RankOptions,
    Server, ServerOptions, WaitOutcome,
};
use foresee_grad_queue::{Dtype, Op, Policy, TensorId, TensorSpec, Wire, sum};
use foresee_testkit::WATCHDOG;
use foresee_units::{Nanos, Rank};
use foresee_wire::{LinkOptions, Secret, Timeouts};

use values::{gradient, spec};

/// Every wait of these tests takes less than a tenth of it.
const LONG: Duration = WATCHDOG;

#[derive(Clone)]
struct Setup {
    nodes: u32,
    local_world: u32,
    servers: u16,
    wire: Wire,
    timeout: Nanos,
}

impl Setup {
    fn new(nodes: u32, local_world: u32, servers: u16) -> Self {
        Self { nodes, local_world, servers, wire: Wire::Own, timeout: Nanos::from_secs(30) }
    }

    fn world(&self) -> u32 {
        self.nodes * self.local_world
    }

    fn timeouts(&self) -> Timeouts {
        Timeouts::new(self.timeout).unwrap()
    }

    fn node(&self, node: u32, secret: &Secret) -> NodeOptions {
        NodeOptions {
            job: "job".into(),
            world: self.world(),
            first: Rank(node * self.local_world),
            local_world: self.local_world,
            secret: secret.clone(),
            timeouts: self.timeouts(),
            wire: self.wire,
            timeline: 0,
        }
    }

    fn rank(&self, node: u32, servers: &[Server], secret: &Secret) -> RankOptions {
        RankOptions {
            job: "job".into(),
            rank: Rank(node * self.local_world),
            world: self.world(),
            local_world: self.local_world,
            servers: servers.iter().map(Server::address).collect(),
            shares: Vec::new(),
            secret: secret.clone(),
            tls: None,
            timeouts: self.timeouts(),
            policy: Policy::foresee(),
            packet_bytes: NonZeroU32::new(4096),
            wire: self.wire,
            timeline: 0,
            link: LinkOptions::default(),
            interfaces: None,
            colocated: 0,
            recover: true,
            continue_on_rank_loss: false,
        }
    }

    fn serve(&self, secret: &Secret) -> Server {
        let options = ServerOptions::new("127.0.0.1:0".parse().unwrap(), secret.clone());
        Server::start(ServerOptions { timeouts: self.timeouts(), ..options }).unwrap()
    }

    /// Run `body` on every rank, each in a thread of its own.
    fn run<T: Send + 'static>(&self, body: impl Fn(NodeMember) -> T + Send + Sync + 'static) -> Vec<T> {
        let secret = Secret::draw().unwrap();
        let servers: Vec<_> = (0..self.servers).map(|_| self.serve(&secret)).collect();
        let body = Arc::new(body);
        let mut ranks = Vec::new();
        for node in 0..self.nodes {
            let options = self.node(node, &secret);
            let leader = Arc::new(NodeLeader::listen(options.clone()).unwrap());
            let address = leader.address();
            let (outer, inside) = (self.rank(node, &servers, &secret), Arc::clone(&leader));
            thread::spawn(move || {
                // Otherwise its ranks would wait forever.
                if let Err(why) = inside.connect(outer) {
                    inside.close(Duration::ZERO);
                    panic!("{why}");
                }
            });
            let mut leader = Some(leader);
            for place in 0..self.local_world {
                let (options, body, leader) = (options.clone(), Arc::clone(&body), leader.take());
                ranks.push(thread::spawn(move || {
                    let rank = Rank(options.first.0 + place);
                    body(NodeMember::join(options, rank, address, leader).unwrap())
                }));
            }
        }
        ranks.into_iter().map(|rank: JoinHandle<T>| rank.join().unwrap()).collect()
    }
}

fn tensors() -> Vec<TensorSpec> {
    vec![
        spec("embedding", Dtype::F32, 30_000, 0),
        spec("bias", Dtype::F32, 3, 1),
        spec("empty", Dtype::F32, 0, 2),
        spec("half", Dtype::Bf16, 5_000, 3),
        spec("double", Dtype::F64, 1_000, 4),
        TensorSpec { op: Op::Sum, ..spec("buffer", Dtype::F32, 500, 5) },
        spec("head", Dtype::F32, 12_345, 6),
    ]
}

/// The sum of these divided by `of`, rounded once.
fn mean(dtype: Dtype, parts: &[Vec<u8>], of: u32) -> Vec<u8> {
    let mut acc = vec![0; sum::accumulator_len(dtype, parts[0].len())];
    sum::start(dtype, &mut acc, &parts[0]);
    parts[1..].iter().for_each(|part| sum::add(dtype, &mut acc, part));
    let len = sum::finish(dtype, &mut acc, parts.len() as u32, of);
    acc.truncate(len);
    acc
}

/// The mean over nodes of the mean over each node's ranks that pushed.
fn reference(setup: &Setup, spec: &TensorSpec, pushes: impl Fn(u32) -> bool, round: u64) -> Option<Vec<u8>> {
    let travels = setup.wire.dtype_of(spec);
    let of_node = |node: u32| {
        let ranks = node * setup.local_world..(node + 1) * setup.local_world;
        let parts: Vec<_> =
            ranks.filter(|rank| pushes(*rank)).map(|rank| gradient(spec, rank, round)).collect();
        (!parts.is_empty()).then(|| {
            let wide = mean(spec.dtype, &parts, spec.op.divisor(setup.local_world));
            if travels == spec.dtype {
                return wide;
            }
            let mut narrow = vec![0; wide.len() / (spec.dtype.bytes() / travels.bytes())];
            sum::narrow(travels, &mut narrow, &wide);
            narrow
        })
    };
    let parts: Vec<_> = (0..setup.nodes).filter_map(of_node).collect();
    (!parts.is_empty()).then(|| {
        let narrow = mean(travels, &parts, spec.op.divisor(setup.nodes));
        if travels == spec.dtype {
            return narrow;
        }
        let mut wide = vec![0; narrow.len() * (spec.dtype.bytes() / travels.bytes())];
        sum::widen(travels, &mut wide, &narrow);
        wide
    })
}

/// Whether a rank pushes a tensor: some rank skips each tensor in some round, and only rank 0 pushes the buffer.
fn pushes(spec: &TensorSpec, tensor: u32, rank: u32, round: u64) -> bool {
    if spec.op == Op::Sum {
        return rank == 0 && round.is_multiple_of(2);
    }
    !(u64::from(tensor) + u64::from(rank) * 3 + round).is_multiple_of(5)
}

fn rounds(member: &NodeMember, setup: &Setup, count: u64) {
    let specs = tensors();
    member.agree(specs.clone()).unwrap();
    let all: Vec<_> = (0..specs.len() as u32).map(TensorId).collect();
    let own = member.rank().0;
    for round in 0..count {
        for id in all.iter().rev() {
            let spec = &specs[id.0 as usize];
            if pushes(spec, id.0, own, round) {
                member.push(*id, Gradient::from_bytes(gradient(spec, own, round))).unwrap();
            }
        }
        assert_eq!(member.end_round(LONG).unwrap().unwrap().0, round);
        for id in &all {
            assert_eq!(member.wait(&[*id], LONG).unwrap(), WaitOutcome::Received, "{}", member.missing());
            let spec = &specs[id.0 as usize];
            let expected = reference(setup, spec, |rank| pushes(spec, id.0, rank, round), round);
            assert_eq!(
                member.used(*id).unwrap(),
                Some(expected.is_some()),
                "'{}' in round {round}",
                spec.name
            );
            if let Some(expected) = expected {
                let found = member.average(*id).unwrap().to_vec();
                assert!(found == expected, "'{}' of round {round} on rank {own}", spec.name);
            }
        }
    }
}

#[test]
fn every_rank_gets_the_bits_of_the_nested_reference_plan_after_plan() {
    for (nodes, local_world, servers) in [(1, 2, 1), (2, 2, 2), (3, 1, 1), (2, 3, 1)] {
        let setup = Setup::new(nodes, local_world, servers);
        let inside = setup.clone();
        setup.run(move |member| {
            rounds(&member, &inside, 7);
            assert_eq!(member.stats().rounds, 7);
            rounds(&member, &inside, 2);
            member.close();
        });
    }
    // Fewer bits travel between nodes only.
    let setup = Setup { wire: Wire::Bf16, ..Setup::new(2, 2, 1) };
    let inside = setup.clone();
    setup.run(move |member| rounds(&member, &inside, 4));
}

#[test]
fn a_push_that_is_repeated_or_has_another_size_is_refused_by_name() {
    let setup = Setup::new(1, 2, 1);
    let barrier = Arc::new(Barrier::new(2));
    setup.run(move |member| {
        member.agree(vec![spec("weight", Dtype::F32, 10, 0)]).unwrap();
        let short = member.push(TensorId(0), Gradient::from_bytes(vec![0; 39])).unwrap_err();
        assert!(short.to_string().contains("39 bytes"), "{short}");
        let unknown = member.push(TensorId(1), Gradient::from_bytes(vec![0; 40])).unwrap_err();
        assert!(matches!(unknown, ExchangeError::Queue(_)), "{unknown}");
        member.push(TensorId(0), Gradient::from_bytes(vec![0; 40])).unwrap();
        let twice = member.push(TensorId(0), Gradient::from_bytes(vec![0; 40])).unwrap_err();
        assert!(twice.to_string().contains("'weight' in round 0"), "{twice}");
        member.end_round(LONG).unwrap().unwrap();
        assert_eq!(member.wait_all(LONG).unwrap(), WaitOutcome::Received);
        barrier.wait();
    });
}

#[test]
fn ranks_of_one_node_that_disagree_are_named_on_every_node() {
    let setup = Setup::new(2, 2, 1);
    let found = setup.run(|member| {
        let elements = if member.rank().0 == 3 { 11 } else { 10 };
        member.agree(vec![spec("weight", Dtype::F32, elements, 0)]).unwrap_err().to_string()
    });
    for (rank, text) in found.into_iter().enumerate() {
        for part in ["'weight'", "[10] on rank 2 and [11] on rank 3"] {
            assert!(text.contains(part), "rank {rank}: {text}");
        }
    }
}

#[test]
fn a_rank_that_leaves_early_is_named_on_every_node() {
    let setup = Setup { timeout: Nanos::from_secs(5), ..Setup::new(2, 2, 2) };
    let found = setup.run(|member| {
        member.agree(vec![spec("weight", Dtype::F32, 1000, 0)]).unwrap();
        for round in 0.. {
            if (member.rank().0, round) == (3, 2) {
                return None;
            }
            let done = member
                .push(TensorId(0), Gradient::from_bytes(vec![0; 4000]))
                .and_then(|()| member.end_round(LONG))
                .and_then(|ended| ended.map_or(Ok(WaitOutcome::TimedOut), |_| member.wait_all(LONG)));
            match done {
                Ok(waited) => assert_eq!(waited, WaitOutcome::Received, "{}", member.missing()),
                Err(why) => return Some(why),
            }
        }
        None
    });
    for (rank, why) in found.into_iter().enumerate().filter(|(rank, _)| *rank != 3) {
        let why = why.unwrap();
        let is_three = match &why {
            ExchangeError::RankLost { rank, .. } => rank.0 == 3,
            ExchangeError::NodeFailed { lost, .. } => *lost == LostPeer::Rank(Rank(3)),
            _ => false,
        };
        assert!(is_three && why.to_string().contains("the same number of steps"), "rank {rank}: {why}");
    }
}
