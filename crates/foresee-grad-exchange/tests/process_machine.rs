// SPDX-License-Identifier: Apache-2.0
//! Ranks that exchange as one with the others of their machine, over shared memory.
//!
//! Machines are hubs of one process, which share nothing but servers.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "values drawn for a test")]

mod values;

use std::num::NonZeroU32;
use std::sync::{Arc, Barrier};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use foresee_grad_exchange::{
    ExchangeError, Gradient, GradientExchange, Hub, LocalRank, Lost, MachineOptions, RankOptions, Server,
    ServerOptions, Waited,
};
use foresee_grad_queue::{Dtype, Op, Policy, TensorId, TensorSpec, Wire, sum};
use foresee_testkit::WATCHDOG;
use foresee_units::{Nanos, Rank};
use foresee_wire::{LinkOptions, Secret, Timeouts};

use values::{gradient, spec};

/// Nothing here takes a tenth of it.
const LONG: Duration = WATCHDOG;

#[derive(Clone)]
struct Setup {
    machines: u32,
    local: u32,
    servers: u16,
    wire: Wire,
    timeout: Nanos,
}

impl Setup {
    fn new(machines: u32, local: u32, servers: u16) -> Self {
        Self { machines, local, servers, wire: Wire::Own, timeout: Nanos::from_secs(30) }
    }

    fn world(&self) -> u32 {
        self.machines * self.local
    }

    fn timeouts(&self) -> Timeouts {
        Timeouts::new(self.timeout).unwrap()
    }

    fn machine(&self, machine: u32, secret: &Secret) -> MachineOptions {
        MachineOptions {
            job: "job".into(),
            world: self.world(),
            first: Rank(machine * self.local),
            local: self.local,
            secret: secret.clone(),
            timeouts: self.timeouts(),
            wire: self.wire,
            timeline: 0,
        }
    }

    fn rank(&self, machine: u32, servers: &[Server], secret: &Secret) -> RankOptions {
        RankOptions {
            job: "job".into(),
            rank: Rank(machine * self.local),
            world: self.world(),
            local: self.local,
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
            beside: 0,
            recover: true,
            survives: false,
        }
    }

    fn serve(&self, secret: &Secret) -> Server {
        let options = ServerOptions::new("127.0.0.1:0".parse().unwrap(), secret.clone());
        Server::start(ServerOptions { timeouts: self.timeouts(), ..options }).unwrap()
    }

    /// Runs `body` on every rank, each in a thread of its own.
    fn run<T: Send + 'static>(&self, body: impl Fn(LocalRank) -> T + Send + Sync + 'static) -> Vec<T> {
        let secret = Secret::draw().unwrap();
        let servers: Vec<_> = (0..self.servers).map(|_| self.serve(&secret)).collect();
        let body = Arc::new(body);
        let mut ranks = Vec::new();
        for machine in 0..self.machines {
            let options = self.machine(machine, &secret);
            let hub = Arc::new(Hub::listen(options.clone()).unwrap());
            let address = hub.address();
            let (outer, inside) = (self.rank(machine, &servers, &secret), Arc::clone(&hub));
            thread::spawn(move || {
                // Its ranks would wait forever.
                if let Err(why) = inside.connect(outer) {
                    inside.close(Duration::ZERO);
                    panic!("{why}");
                }
            });
            let mut hub = Some(hub);
            for place in 0..self.local {
                let (options, body, hub) = (options.clone(), Arc::clone(&body), hub.take());
                ranks.push(thread::spawn(move || {
                    let rank = Rank(options.first.0 + place);
                    body(LocalRank::join(options, rank, address, hub).unwrap())
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

/// The sum of these over `of`, with one rounding.
fn mean(dtype: Dtype, parts: &[Vec<u8>], of: u32) -> Vec<u8> {
    let mut acc = vec![0; sum::accumulator_len(dtype, parts[0].len())];
    sum::start(dtype, &mut acc, &parts[0]);
    parts[1..].iter().for_each(|part| sum::add(dtype, &mut acc, part));
    let len = sum::finish(dtype, &mut acc, parts.len() as u32, of);
    acc.truncate(len);
    acc
}

/// The mean over machines of the mean over each one's ranks, of those that pushed.
fn reference(setup: &Setup, spec: &TensorSpec, pushes: impl Fn(u32) -> bool, round: u64) -> Option<Vec<u8>> {
    let travels = setup.wire.dtype_of(spec);
    let of_machine = |machine: u32| {
        let ranks = machine * setup.local..(machine + 1) * setup.local;
        let parts: Vec<_> =
            ranks.filter(|rank| pushes(*rank)).map(|rank| gradient(spec, rank, round)).collect();
        (!parts.is_empty()).then(|| {
            let wide = mean(spec.dtype, &parts, spec.op.divisor(setup.local));
            if travels == spec.dtype {
                return wide;
            }
            let mut narrow = vec![0; wide.len() / (spec.dtype.bytes() / travels.bytes())];
            sum::narrow(travels, &mut narrow, &wide);
            narrow
        })
    };
    let parts: Vec<_> = (0..setup.machines).filter_map(of_machine).collect();
    (!parts.is_empty()).then(|| {
        let narrow = mean(travels, &parts, spec.op.divisor(setup.machines));
        if travels == spec.dtype {
            return narrow;
        }
        let mut wide = vec![0; narrow.len() * (spec.dtype.bytes() / travels.bytes())];
        sum::widen(travels, &mut wide, &narrow);
        wide
    })
}

/// Who pushes what: each tensor is left out by some rank in some round, the buffer is rank 0's alone.
fn pushes(spec: &TensorSpec, tensor: u32, rank: u32, round: u64) -> bool {
    if spec.op == Op::Sum {
        return rank == 0 && round.is_multiple_of(2);
    }
    !(u64::from(tensor) + u64::from(rank) * 3 + round).is_multiple_of(5)
}

fn rounds(core: &LocalRank, setup: &Setup, count: u64) {
    let specs = tensors();
    core.agree(specs.clone()).unwrap();
    let all: Vec<_> = (0..specs.len() as u32).map(TensorId).collect();
    let own = core.rank().0;
    for round in 0..count {
        for id in all.iter().rev() {
            let spec = &specs[id.0 as usize];
            if pushes(spec, id.0, own, round) {
                core.push(*id, Gradient::from_bytes(gradient(spec, own, round))).unwrap();
            }
        }
        assert_eq!(core.end_round(LONG).unwrap().unwrap().0, round);
        for id in &all {
            assert_eq!(core.wait(&[*id], LONG).unwrap(), Waited::Landed, "{}", core.missing());
            let spec = &specs[id.0 as usize];
            let expected = reference(setup, spec, |rank| pushes(spec, id.0, rank, round), round);
            assert_eq!(core.used(*id).unwrap(), Some(expected.is_some()), "'{}' in round {round}", spec.name);
            if let Some(expected) = expected {
                let found = core.received(*id).unwrap().to_vec();
                assert!(found == expected, "'{}' of round {round} on rank {own}", spec.name);
            }
        }
    }
}

#[test]
fn every_rank_gets_the_bits_of_the_nested_reference_plan_after_plan() {
    for (machines, local, servers) in [(1, 2, 1), (2, 2, 2), (3, 1, 1), (2, 3, 1)] {
        let setup = Setup::new(machines, local, servers);
        let inside = setup.clone();
        setup.run(move |core| {
            rounds(&core, &inside, 7);
            assert_eq!(core.stats().rounds, 7);
            rounds(&core, &inside, 2);
            core.close();
        });
    }
    // Fewer bits travel between machines only.
    let setup = Setup { wire: Wire::Bf16, ..Setup::new(2, 2, 1) };
    let inside = setup.clone();
    setup.run(move |core| rounds(&core, &inside, 4));
}

#[test]
fn what_is_pushed_twice_or_has_other_bytes_is_refused_by_name() {
    let setup = Setup::new(1, 2, 1);
    let barrier = Arc::new(Barrier::new(2));
    setup.run(move |core| {
        core.agree(vec![spec("weight", Dtype::F32, 10, 0)]).unwrap();
        let short = core.push(TensorId(0), Gradient::from_bytes(vec![0; 39])).unwrap_err();
        assert!(short.to_string().contains("39 bytes"), "{short}");
        let nobody = core.push(TensorId(1), Gradient::from_bytes(vec![0; 40])).unwrap_err();
        assert!(matches!(nobody, ExchangeError::Queue(_)), "{nobody}");
        core.push(TensorId(0), Gradient::from_bytes(vec![0; 40])).unwrap();
        let twice = core.push(TensorId(0), Gradient::from_bytes(vec![0; 40])).unwrap_err();
        assert!(twice.to_string().contains("'weight' in round 0"), "{twice}");
        core.end_round(LONG).unwrap().unwrap();
        assert_eq!(core.wait_all(LONG).unwrap(), Waited::Landed);
        barrier.wait();
    });
}

#[test]
fn ranks_of_one_machine_that_disagree_are_told_where_on_every_machine() {
    let setup = Setup::new(2, 2, 1);
    let found = setup.run(|core| {
        let elements = if core.rank().0 == 3 { 11 } else { 10 };
        core.agree(vec![spec("weight", Dtype::F32, elements, 0)]).unwrap_err().to_string()
    });
    for (rank, text) in found.into_iter().enumerate() {
        for part in ["'weight'", "[10] on rank 2 and [11] on rank 3"] {
            assert!(text.contains(part), "rank {rank}: {text}");
        }
    }
}

#[test]
fn a_rank_that_goes_early_is_named_on_every_machine() {
    let setup = Setup { timeout: Nanos::from_secs(5), ..Setup::new(2, 2, 2) };
    let found = setup.run(|core| {
        core.agree(vec![spec("weight", Dtype::F32, 1000, 0)]).unwrap();
        for round in 0.. {
            if (core.rank().0, round) == (3, 2) {
                return None;
            }
            let done = core
                .push(TensorId(0), Gradient::from_bytes(vec![0; 4000]))
                .and_then(|()| core.end_round(LONG))
                .and_then(|ended| ended.map_or(Ok(Waited::Tick), |_| core.wait_all(LONG)));
            match done {
                Ok(waited) => assert_eq!(waited, Waited::Landed, "{}", core.missing()),
                Err(why) => return Some(why),
            }
        }
        None
    });
    for (rank, why) in found.into_iter().enumerate().filter(|(rank, _)| *rank != 3) {
        let why = why.unwrap();
        let is_three = match &why {
            ExchangeError::RankLost { rank, .. } => rank.0 == 3,
            ExchangeError::OfMachine { lost, .. } => *lost == Lost::Rank(Rank(3)),
            _ => false,
        };
        assert!(is_three && why.to_string().contains("the same number of steps"), "rank {rank}: {why}");
    }
}
