// SPDX-License-Identifier: Apache-2.0
//! Ranks and servers of one process over real sockets.
//!
//! `foresee-grad-session` tests the protocol without sockets. The tests here need sockets and threads: the bits after the
//! byte path, shares of an interface, measured rates, real timers, and connections that end while bytes are in flight.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "values drawn for a test")]

mod dialling;
mod losses;
mod lost_rank;
mod proxy;
mod setup;
mod two_jobs;
#[path = "../values/mod.rs"]
mod values;

use std::num::NonZeroU32;
use std::thread;

use foresee_grad_exchange::{
    ExchangeError, Gradient, GradientExchange, InterfaceStats, Interfaces, RankOptions, Server,
    ServerExchange, ServerOptions,
};
use foresee_grad_queue::{Dtype, Pattern, Policy, TensorId, Wire, packet_bytes};
use foresee_units::{Bytes, BytesPerSecond};
use foresee_wire::Secret;

use setup::{PACKET, Setup, end, ids, tensors, train, train_rank, wait};
use values::{gradient, spec};

#[test]
fn averages_equal_the_reference_bit_for_bit_for_all_worlds_policies_and_wire_dtypes() {
    for (world, servers) in [(1, 1), (1, 3), (2, 1), (3, 2), (5, 3)] {
        train(&Setup::new(world, servers), 7);
    }
    for wire in [Wire::Bf16, Wire::F16] {
        train(&Setup { wire, ..Setup::new(3, 2) }, 4);
    }
    let size = NonZeroU32::new(64 << 10).unwrap();
    let policies = [
        Policy::mercury(),
        Policy::mercury_windowed(),
        Policy::mercury_interface(),
        Policy::fifo_packet(),
        Policy::fifo_tensor(),
        Policy::partition_unbounded(size),
        Policy::partition(size, u64::from(size.get() * 2).try_into().unwrap()),
    ];
    for policy in policies {
        train(&Setup { policy, ..Setup::new(3, 2) }, 3);
    }
}

/// Train three ranks with a colocated server each, and `extra` dedicated servers.
fn train_with_colocated(setup: &Setup, extra: u16) {
    let secret = Secret::draw().unwrap();
    let others = Setup { servers: extra, ..setup.clone() }.serve(&secret);
    let colocated: Vec<_> = (0..3)
        .map(|_| {
            let interfaces = Interfaces::new(setup.policy.push(), NonZeroU32::new(PACKET).unwrap());
            let options = ServerOptions {
                policy: setup.policy,
                early_buffer: setup.early_buffer,
                interfaces: Some(interfaces.clone()),
                ..ServerOptions::new("127.0.0.1:0".parse().unwrap(), secret.clone())
            };
            (Server::start(options).unwrap(), interfaces)
        })
        .collect();
    let servers = colocated.iter().map(|(server, _)| server).chain(&others);
    let addresses: Vec<_> = servers.map(Server::address).collect();
    let ranks: Vec<_> = (0..)
        .zip(&colocated)
        .map(|(rank, (_, interfaces))| {
            let options = RankOptions {
                servers: addresses.clone(),
                shares: Pattern::mixed(3, extra).unwrap().shares().to_vec(),
                interfaces: Some(interfaces.clone()),
                colocated: 3,
                ..setup.rank(rank, &others, &secret)
            };
            let setup = setup.clone();
            thread::spawn(move || {
                let exchange = ServerExchange::open(options).unwrap();
                train_rank(&setup, &exchange, 5);
                exchange.stats()
            })
        })
        .collect();
    for rank in ranks {
        let interfaces = rank.join().unwrap().interfaces;
        let in_memory = |one: &&InterfaceStats| one.is_local && one.packets > 0 && one.writes == 0;
        assert_eq!(interfaces.iter().filter(in_memory).count(), 1, "{interfaces:?}");
    }
}

#[test]
fn colocated_and_dedicated_servers_share_the_sums() {
    let setup = Setup::new(3, 0);
    for extra in [0, 2] {
        train_with_colocated(&setup, extra);
    }
    train_with_colocated(&Setup { wire: Wire::Bf16, ..setup.clone() }, 0);
    train_with_colocated(&Setup { early_buffer: Bytes::ZERO, ..setup }, 0);
}

#[test]
fn misuse_is_refused_without_side_effects() {
    let setup = Setup::new(1, 1);
    let uneven = RankOptions { local_world: 3, ..setup.rank(0, &[], &Secret::draw().unwrap()) };
    assert!(matches!(ServerExchange::open(uneven), Err(ExchangeError::Setting { .. })));
    setup.run(move |exchange| {
        assert!(exchange.push(TensorId(0), Gradient::from_bytes(vec![0; 4])).is_err(), "before a plan");
        exchange.agree(tensors()).unwrap();
        let push = |tensor, bytes| exchange.push(TensorId(tensor), Gradient::from_bytes(vec![0; bytes]));
        assert!(push(1, 11).unwrap_err().to_string().contains("11 bytes"));
        assert!(push(99, 4).unwrap_err().to_string().contains("99"));
        push(1, 12).unwrap();
        assert!(push(1, 12).unwrap_err().to_string().contains("'bias' in round 0"));
        end(&exchange);
        wait(&exchange, &[TensorId(1)]);
        exchange.close();
        assert!(matches!(push(1, 12), Err(ExchangeError::Closed)));
    });
}

#[test]
fn without_a_packet_size_packets_suit_the_measured_rate_of_the_link() {
    let (setup, secret) = (Setup::new(1, 1), Secret::draw().unwrap());
    let servers = setup.serve(&secret);
    let options = RankOptions { packet_bytes: None, ..setup.rank(0, &servers, &secret) };
    let exchange = ServerExchange::open(options).unwrap();
    let specs = vec![spec("large", Dtype::F32, 16 << 20, 0)];
    let size_for = |rate| packet_bytes(BytesPerSecond::new(rate)).get();
    let plan = exchange.agree(specs.clone()).unwrap();
    assert_eq!(plan.config().packet_bytes, size_for(125_000_000), "no rate was measured");
    exchange.push(TensorId(0), Gradient::from_bytes(gradient(&specs[0], 0, 0))).unwrap();
    end(&exchange);
    wait(&exchange, &ids(&specs));
    // 64 MB take longer than an interval of the measurement; the last acknowledgment may still be in flight.
    let rate = || exchange.stats().interfaces[0].rate;
    let (plan, known) = loop {
        let before = rate();
        let plan = exchange.agree(specs.clone()).unwrap();
        if rate() == before {
            break (plan, before);
        }
    };
    assert!(known > 0);
    assert_eq!(plan.config().packet_bytes, size_for(known));
}
