// SPDX-License-Identifier: Apache-2.0
//! A job of two ranks that trains beside the hostile ones, and looks at every bit that it gets.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use foresee_grad_exchange::{Exchange, Gradient, RankOptions, Waited};
use foresee_grad_queue::{Dtype, Op, Policy, TensorId, TensorSpec, Wire};
use foresee_testkit::{WATCHDOG, pause, wait_until};
use foresee_units::Rank;
use foresee_wire::{LinkOptions, Secret, Timeouts};

pub(crate) const LONG: Duration = WATCHDOG;
pub(crate) const PACKET: u32 = 4096;
const ELEMENTS: u16 = 5_000;

/// Both of its ranks.
pub(crate) struct Quiet {
    shared: Arc<Shared>,
    ranks: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    enough: AtomicBool,
    /// Of rank 0.
    rounds: AtomicU64,
}

impl Quiet {
    pub(crate) fn start(server: SocketAddr, secret: &Secret) -> Self {
        let shared: Arc<Shared> = Arc::default();
        let ranks = (0..2)
            .map(|rank| {
                let (shared, options) = (Arc::clone(&shared), options("quiet", rank, 2, server, secret));
                thread::spawn(move || train(&Exchange::open(options).unwrap(), &shared))
            })
            .collect();
        Self { shared, ranks }
    }

    /// Goes on for some rounds and ends, every bit as it should have been.
    pub(crate) fn end(self) {
        let rounds = || self.shared.rounds.load(Ordering::Relaxed);
        let before = rounds();
        wait_until("three more rounds of the job", || rounds() >= before + 3);
        self.shared.enough.store(true, Ordering::Relaxed);
        for rank in self.ranks {
            rank.join().unwrap();
        }
    }
}

pub(crate) fn options(job: &str, rank: u32, world: u32, server: SocketAddr, secret: &Secret) -> RankOptions {
    RankOptions {
        job: job.into(),
        rank: Rank(rank),
        world,
        servers: vec![server],
        shares: Vec::new(),
        secret: secret.clone(),
        tls: None,
        timeouts: Timeouts::default(),
        policy: Policy::foresee(),
        packet_bytes: NonZeroU32::new(PACKET),
        wire: Wire::Own,
        timeline: 0,
        link: LinkOptions::default(),
        interfaces: None,
        local: 1,
        beside: 0,
        recover: false,
        survives: false,
    }
}

pub(crate) fn tensor(name: &str, elements: u64) -> TensorSpec {
    TensorSpec {
        name: name.into(),
        dtype: Dtype::F32,
        shape: vec![elements],
        strides: vec![1],
        class: 0,
        op: Op::Mean,
    }
}

fn train(exchange: &Exchange, shared: &Shared) {
    let bytes = |value: f32, count: u16| value.to_le_bytes().repeat(count.into());
    let (go, weights) = (TensorId(0), TensorId(1));
    exchange.agree(vec![tensor("go", 1), tensor("weights", ELEMENTS.into())]).unwrap();
    let rank = exchange.rank().0;
    for round in 0_u64.. {
        // Rank 0 says when it is enough; the other one hears it from the average.
        let going = if rank == 0 && shared.enough.load(Ordering::Relaxed) { 0.0 } else { 1.0 };
        let step = [1.0, 2.0, 4.0][usize::try_from(round % 3).unwrap()];
        let own = if rank == 0 { step } else { 2.0 * step };
        exchange.push(weights, Gradient::from_bytes(bytes(own, ELEMENTS))).unwrap();
        exchange.push(go, Gradient::from_bytes(bytes(going, 1))).unwrap();
        assert!(exchange.end_round(LONG).unwrap().is_some(), "{}", exchange.missing());
        let waited = exchange.wait(&[go, weights], LONG).unwrap();
        assert_eq!(waited, Waited::Landed, "{}", exchange.missing());
        let received = |tensor| exchange.received(tensor).unwrap().to_vec();
        assert!(received(weights) == bytes(1.5 * step, ELEMENTS), "in round {round}");
        if received(go) != bytes(1.0, 1) {
            return;
        }
        if rank == 0 {
            shared.rounds.fetch_add(1, Ordering::Relaxed);
        }
        // The cores are others' too.
        pause(Duration::from_millis(2));
    }
}
