// SPDX-License-Identifier: Apache-2.0
//! Servers, ranks, gradients that any rank can compute, and their averages.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use foresee_grad_exchange::{
    ExchangeError, Gradient, GradientExchange, RankOptions, Server, ServerExchange, ServerOptions,
    WaitOutcome,
};
use foresee_grad_queue::{Dtype, Policy, TensorId, TensorSpec, Wire, sum};
use foresee_testkit::{WATCHDOG, wait_until};
use foresee_units::{Bytes, GAMMA, Nanos, Rank};
use foresee_wire::{LinkOptions, Secret, Timeouts};

use crate::values::{gradient, spec};

pub(crate) const LONG: Duration = WATCHDOG;
pub(crate) const PACKET: u32 = 4096;

/// Pseudorandom numbers.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(GAMMA) | 1)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % bound
    }
}

#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) world: u32,
    pub(crate) servers: u16,
    pub(crate) policy: Policy,
    pub(crate) wire: Wire,
    pub(crate) timeout: Nanos,
    pub(crate) early_buffer: Bytes,
    pub(crate) recover: bool,
    pub(crate) continue_on_rank_loss: bool,
}

impl Setup {
    pub(crate) fn new(world: u32, servers: u16) -> Self {
        let timeout = Nanos::from_secs(30);
        let early_buffer = Bytes::new(64 << 20);
        let (policy, wire) = (Policy::foresee(), Wire::Own);
        Self {
            world,
            servers,
            policy,
            wire,
            timeout,
            early_buffer,
            recover: true,
            continue_on_rank_loss: false,
        }
    }

    pub(crate) fn serve(&self, secret: &Secret) -> Vec<Server> {
        (0..self.servers).map(|_| self.serve_at("127.0.0.1:0".parse().unwrap(), secret)).collect()
    }

    /// A server at this address, at which another one may have just closed.
    pub(crate) fn serve_at(&self, address: SocketAddr, secret: &Secret) -> Server {
        let options = ServerOptions {
            policy: self.policy,
            timeouts: Timeouts::new(self.timeout).unwrap(),
            early_buffer: self.early_buffer,
            ..ServerOptions::new(address, secret.clone())
        };
        Server::start(options).unwrap()
    }

    pub(crate) fn rank(&self, rank: u32, servers: &[Server], secret: &Secret) -> RankOptions {
        RankOptions {
            job: "job".into(),
            rank: Rank(rank),
            world: self.world,
            local_world: 1,
            servers: servers.iter().map(Server::address).collect(),
            shares: Vec::new(),
            secret: secret.clone(),
            tls: None,
            timeouts: Timeouts::new(self.timeout).unwrap(),
            policy: self.policy,
            packet_bytes: NonZeroU32::new(PACKET),
            wire: self.wire,
            timeline: 0,
            link: LinkOptions::default(),
            interfaces: None,
            colocated: 0,
            recover: self.recover,
            continue_on_rank_loss: self.continue_on_rank_loss,
        }
    }

    /// Runs `body` on every rank, each in a thread of its own.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        body: impl Fn(ServerExchange) -> T + Send + Sync + 'static,
    ) -> Vec<T> {
        let secret = Secret::draw().unwrap();
        let servers = self.serve(&secret);
        let body = Arc::new(body);
        let ranks: Vec<_> = (0..self.world)
            .map(|rank| {
                let (options, body) = (self.rank(rank, &servers, &secret), Arc::clone(&body));
                thread::spawn(move || body(ServerExchange::open(options).unwrap()))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    }
}

/// The tensors of every test: many packets, few bytes, none, other dtypes.
pub(crate) fn tensors() -> Vec<TensorSpec> {
    vec![
        spec("embedding", Dtype::F32, 30_000, 0),
        spec("bias", Dtype::F32, 3, 1),
        spec("empty", Dtype::F32, 0, 2),
        spec("half", Dtype::Bf16, 5_000, 3),
        spec("double", Dtype::F64, 1_000, 4),
        spec("head", Dtype::F32, 12_345, 5),
    ]
}

/// `((g0 + g1) + g2) / n`: the sum of the ranks that pushed, divided by the number of all ranks.
pub(crate) fn reference(spec: &TensorSpec, wire: Wire, ranks: &[u32], world: u32, round: u64) -> Vec<u8> {
    let travels = wire.dtype_of(spec);
    let narrow = |rank| {
        let own = gradient(spec, rank, round);
        if travels == spec.dtype {
            return own;
        }
        let mut narrow = vec![0; own.len() / spec.dtype.bytes() * travels.bytes()];
        sum::narrow(travels, &mut narrow, &own);
        narrow
    };
    let first = narrow(ranks[0]);
    let mut acc = vec![0; sum::accumulator_len(travels, first.len())];
    sum::start(travels, &mut acc, &first);
    for rank in &ranks[1..] {
        sum::add(travels, &mut acc, &narrow(*rank));
    }
    let len = sum::finish(travels, &mut acc, u32::try_from(ranks.len()).unwrap(), world);
    if travels == spec.dtype {
        return acc[..len].to_vec();
    }
    let mut wide = vec![0; len / travels.bytes() * spec.dtype.bytes()];
    sum::widen(travels, &mut wide, &acc[..len]);
    wide
}

pub(crate) fn ids(tensors: &[TensorSpec]) -> Vec<TensorId> {
    (0..u32::try_from(tensors.len()).unwrap()).map(TensorId).collect()
}

pub(crate) fn wait(exchange: &ServerExchange, tensors: &[TensorId]) {
    assert_eq!(exchange.wait(tensors, LONG).unwrap(), WaitOutcome::Received, "{}", exchange.missing());
}

/// The error of a rank that continues to train.
pub(crate) fn error_of(exchange: &ServerExchange) -> ExchangeError {
    let mut error = None;
    wait_until("an error of the rank", || {
        error = exchange.end_round(Duration::from_millis(10)).err();
        error.is_some()
    });
    error.expect("it was waited for")
}

pub(crate) fn end(exchange: &ServerExchange) {
    assert!(exchange.end_round(LONG).unwrap().is_some(), "{}", exchange.missing());
}

/// Whether a rank pushes a tensor: in some rounds some ranks skip some tensors, and one tensor is pushed by none.
fn pushes(rank: u32, tensor: usize, round: u64) -> bool {
    match round % 3 {
        0 => true,
        1 => tensor != 1,
        _ => !(rank as usize + tensor).is_multiple_of(3),
    }
}

pub(crate) fn train(setup: &Setup, rounds: u64) {
    let inner = setup.clone();
    setup.run(move |exchange| train_rank(&inner, &exchange, rounds));
}

/// Odd ranks list their tensors in another order; the plan has that of rank 0.
pub(crate) fn train_rank(setup: &Setup, exchange: &ServerExchange, rounds: u64) {
    let (specs, rank) = (tensors(), exchange.rank().0);
    let mut own: Vec<_> = (0..specs.len()).collect();
    if rank % 2 == 1 {
        own.reverse();
    }
    let plan = exchange.agree(own.iter().map(|tensor| specs[*tensor].clone()).collect()).unwrap();
    assert_eq!(plan.name(TensorId(0)), "embedding");
    for round in 0..rounds {
        // Backward: the last tensor first.
        for (id, tensor) in ids(&specs).into_iter().zip(&own).rev() {
            if pushes(rank, *tensor, round) {
                let bytes = gradient(&specs[*tensor], rank, round);
                exchange.push(id, Gradient::from_bytes(bytes)).unwrap();
            }
        }
        end(exchange);
        for (id, tensor) in ids(&specs).into_iter().zip(own.iter().copied()) {
            let spec = &specs[tensor];
            wait(exchange, &[id]);
            let who: Vec<_> = (0..setup.world).filter(|rank| pushes(*rank, tensor, round)).collect();
            if who.is_empty() {
                wait(exchange, &ids(&specs));
                assert_eq!(exchange.used(id).unwrap(), Some(false));
            } else {
                let average = exchange.average(id).unwrap().to_vec();
                let expected = reference(spec, setup.wire, &who, setup.world, round);
                assert!(average == expected, "{} in round {round}", spec.name);
            }
        }
    }
    assert_eq!(exchange.stats().rounds, rounds);
    exchange.close();
}

/// Runs `body` on every rank, each in a thread of its own.
pub(crate) fn in_threads<T: Send + 'static>(
    exchanges: Vec<ServerExchange>,
    body: impl Fn(ServerExchange) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let body = Arc::new(body);
    let ranks: Vec<_> = exchanges
        .into_iter()
        .map(|exchange| {
            let body = Arc::clone(&body);
            thread::spawn(move || body(exchange))
        })
        .collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

/// Three ranks agree on a plan for every round.
pub(crate) fn plans_follow_each_other(exchange: &ServerExchange) {
    let specs = tensors();
    let bias = TensorId(1);
    for round in 0..25 {
        exchange.agree(specs.clone()).unwrap();
        let bytes = gradient(&specs[1], exchange.rank().0, round);
        exchange.push(bias, Gradient::from_bytes(bytes)).unwrap();
        end(exchange);
        wait(exchange, &[bias]);
        let average = exchange.average(bias).unwrap().to_vec();
        let expected = reference(&specs[1], Wire::Own, &[0, 1, 2], 3, round);
        assert!(average == expected, "in plan {round}");
    }
    wait(exchange, &ids(&specs));
    exchange.close();
}
