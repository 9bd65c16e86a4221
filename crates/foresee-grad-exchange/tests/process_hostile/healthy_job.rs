// SPDX-License-Identifier: Apache-2.0
//! A job of two ranks that trains at the same server as the hostile job, and checks every bit of its averages.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use foresee_grad_exchange::{Gradient, GradientExchange, RankOptions, ServerExchange, WaitOutcome};
use foresee_grad_queue::{Dtype, Op, Policy, TensorId, TensorSpec, Wire};
use foresee_testkit::{WATCHDOG, pause, wait_until};
use foresee_units::Rank;
use foresee_wire::{LinkOptions, Secret, Timeouts};

pub(crate) const LONG: Duration = WATCHDOG;
pub(crate) const PACKET: u32 = 4096;
const ELEMENTS: u16 = 5_000;

pub(crate) struct HealthyJob {
    shared: Arc<Shared>,
    ranks: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    is_enough: AtomicBool,
    /// Rounds of rank 0.
    rounds: AtomicU64,
}

impl HealthyJob {
    pub(crate) fn start(server: SocketAddr, secret: &Secret) -> Self {
        let shared: Arc<Shared> = Arc::default();
        let ranks = (0..2)
            .map(|rank| {
                let (shared, options) = (Arc::clone(&shared), options("healthy", rank, 2, server, secret));
                thread::spawn(move || train(&ServerExchange::open(options).unwrap(), &shared))
            })
            .collect();
        Self { shared, ranks }
    }

    /// Train for some more rounds, and check that every bit was right.
    pub(crate) fn end(self) {
        let rounds = || self.shared.rounds.load(Ordering::Relaxed);
        let before = rounds();
        wait_until("three more rounds of the job", || rounds() >= before + 3);
        self.shared.is_enough.store(true, Ordering::Relaxed);
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
        local_world: 1,
        colocated: 0,
        recover: false,
        continue_on_rank_loss: false,
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

fn train(exchange: &ServerExchange, shared: &Shared) {
    let bytes = |value: f32, count: u16| value.to_le_bytes().repeat(count.into());
    let (go, weights) = (TensorId(0), TensorId(1));
    exchange.agree(vec![tensor("go", 1), tensor("weights", ELEMENTS.into())]).unwrap();
    let rank = exchange.rank().0;
    for round in 0_u64.. {
        // Rank 0 decides when to stop; rank 1 learns it from the average.
        let continues = if rank == 0 && shared.is_enough.load(Ordering::Relaxed) { 0.0 } else { 1.0 };
        let step = [1.0, 2.0, 4.0][usize::try_from(round % 3).unwrap()];
        let own = if rank == 0 { step } else { 2.0 * step };
        exchange.push(weights, Gradient::from_bytes(bytes(own, ELEMENTS))).unwrap();
        exchange.push(go, Gradient::from_bytes(bytes(continues, 1))).unwrap();
        assert!(exchange.end_round(LONG).unwrap().is_some(), "{}", exchange.missing());
        let waited = exchange.wait(&[go, weights], LONG).unwrap();
        assert_eq!(waited, WaitOutcome::Received, "{}", exchange.missing());
        let average = |tensor| exchange.average(tensor).unwrap().to_vec();
        assert!(average(weights) == bytes(1.5 * step, ELEMENTS), "in round {round}");
        if average(go) != bytes(1.0, 1) {
            return;
        }
        if rank == 0 {
            shared.rounds.fetch_add(1, Ordering::Relaxed);
        }
        // Leave processor time to the other job.
        pause(Duration::from_millis(2));
    }
}
