// SPDX-License-Identifier: Apache-2.0
//! Connections that break and servers that end while bytes are in flight: the same bits, or an error that names the server.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use foresee_grad_exchange::{Exchange, ExchangeError, RankOptions, Server};
use foresee_grad_queue::Policy;
use foresee_testkit::pause;
use foresee_units::{Bytes, Nanos};
use foresee_wire::{HEADER_BYTES, MAGIC, Secret, VERSION};

use crate::setup::{Dice, Setup, error_of, in_threads, plans_follow_each_other, tensors, train_rank};
use crate::wires::Wires;

/// Something that happens at drawn moments until it is told to end; then it returns how often.
struct Disturbance {
    over: Arc<AtomicBool>,
    thread: JoinHandle<u32>,
}

impl Disturbance {
    /// `happen` returns the microseconds before it happens again. They grow with every `half` times: on a machine so busy
    /// that nobody is whole again before the next one comes, no test would end.
    fn start(seed: u64, half: u32, mut happen: impl FnMut(&mut Dice) -> u64 + Send + 'static) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let (mut dice, mut times) = (Dice::new(seed), 0);
            while !told.load(Ordering::Relaxed) {
                let micros = happen(&mut dice) * u64::from(half + times) / u64::from(half);
                times += 1;
                pause(Duration::from_micros(micros));
            }
            times
        });
        Self { over, thread }
    }

    fn end(self) -> u32 {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Breaks one connection, all of a rank, or all of several at once. A data connection that breaks by itself is found by
/// its silence next to a control connection that lives, which takes a heartbeat.
fn break_connections(wires: Vec<Wires>, seed: u64) -> Disturbance {
    Disturbance::start(seed, 64, move |dice| {
        let first = dice.below(wires.len() as u64) as usize;
        match dice.below(8) {
            0 => wires[first].break_one(dice),
            1 => wires[first..].iter().for_each(Wires::break_all),
            _ => wires[first].break_all(),
        }
        5_000 + dice.below(40_000)
    })
}

/// Ends one server, or several at once, and starts others at their addresses.
fn replace_servers(setup: &Setup, mut servers: Vec<Server>, secret: &Secret, seed: u64) -> Disturbance {
    let (setup, secret) = (setup.clone(), secret.clone());
    Disturbance::start(seed, 16, move |dice| {
        let first = dice.below(servers.len() as u64) as usize;
        let lost = 1 + dice.below((servers.len() - first) as u64) as usize;
        let addresses: Vec<_> = servers[first..first + lost].iter().map(Server::address).collect();
        servers[first..first + lost].iter().for_each(Server::close);
        for (place, address) in addresses.into_iter().enumerate() {
            servers[first + place] = setup.serve_at(address, &secret);
        }
        // Ranks dial every 100 ms: mostly all come in between, and sometimes some or none.
        let micros = if dice.below(4) == 0 { 0 } else { 250_000 };
        micros + dice.below(150_000)
    })
}

/// Every rank, each behind wires of its own.
fn open_behind_wires(
    setup: &Setup,
    servers: &[Server],
    secret: &Secret,
    change: impl Fn(RankOptions) -> RankOptions,
) -> (Vec<Exchange>, Vec<Wires>) {
    let ranks = (0..setup.world).map(|rank| {
        let (wires, options) = (Wires::default(), setup.rank(rank, servers, secret));
        let through = options.servers.iter().map(|server| wires.to(*server)).collect();
        (Exchange::open(change(RankOptions { servers: through, ..options })).unwrap(), wires)
    });
    ranks.unzip()
}

/// Runs `body` on every rank while connections break.
fn run_while_connections_break(
    setup: &Setup,
    seed: u64,
    change: impl Fn(RankOptions) -> RankOptions,
    body: impl Fn(&Exchange) + Send + Sync + 'static,
) {
    let secret = Secret::draw().unwrap();
    let servers = setup.serve(&secret);
    let (exchanges, wires) = open_behind_wires(setup, &servers, &secret, change);
    let breaks = break_connections(wires, seed);
    let times = in_threads(exchanges, move |exchange| {
        body(&exchange);
        let stats = exchange.stats();
        assert_eq!((stats.servers_back, stats.ranks_lost), (0, 0), "{:?}", exchange.take_notices());
        stats.reconnects
    });
    breaks.end();
    assert!(times.into_iter().sum::<u64>() > 0);
}

#[test]
fn connections_that_break_at_any_moment_change_no_bit() {
    let setup = Setup { survives: true, ..Setup::new(3, 2) };
    let inner = setup.clone();
    run_while_connections_break(&setup, 5, |own| own, move |exchange| train_rank(&inner, exchange, 40));
    let (size, credit) = (NonZeroU32::new(8192).unwrap(), NonZeroU64::new(16_384).unwrap());
    let policy = Policy::partition(size, credit);
    let setup = Setup { park: Bytes::ZERO, policy, ..Setup::new(3, 3) };
    let inner = setup.clone();
    let beside = |own| RankOptions { beside: 3, ..own };
    run_while_connections_break(&setup, 7, beside, move |exchange| train_rank(&inner, exchange, 30));
    run_while_connections_break(&Setup::new(3, 2), 9, |own| own, plans_follow_each_other);
}

/// Runs `body` on every rank while servers are replaced and connections break.
fn run_while_servers_are_replaced(
    setup: &Setup,
    seed: u64,
    body: impl Fn(&Exchange) + Send + Sync + 'static,
) {
    let secret = Secret::draw().unwrap();
    let servers = setup.serve(&secret);
    let (exchanges, wires) = open_behind_wires(setup, &servers, &secret, |own| own);
    let replaced = replace_servers(setup, servers, &secret, seed);
    let breaks = break_connections(wires, seed);
    in_threads(exchanges, move |exchange| body(&exchange));
    breaks.end();
    assert!(replaced.end() > 0);
}

#[test]
fn servers_that_are_replaced_while_connections_break_change_no_bit() {
    // A rank that is about to leave waits as long for the others, should a server be lost just when they have left.
    let setup = Setup { timeout: Nanos::from_secs(20), ..Setup::new(3, 2) };
    let inner = setup.clone();
    run_while_servers_are_replaced(&setup, 2, move |exchange| train_rank(&inner, exchange, 40));
    run_while_servers_are_replaced(&setup, 3, plans_follow_each_other);
}

/// A rank alone that has a plan, its server, and where that was.
fn alone(setup: &Setup, secret: &Secret) -> (Exchange, Vec<Server>, SocketAddr) {
    let servers = setup.serve(secret);
    let exchange = Exchange::open(setup.rank(0, &servers, secret)).unwrap();
    exchange.agree(tensors()).unwrap();
    let address = servers[0].address();
    (exchange, servers, address)
}

#[test]
fn another_secret_or_version_in_the_place_of_a_lost_server_is_named_at_once() {
    let (setup, secret) = (Setup::new(1, 1), Secret::draw().unwrap());
    let (exchange, servers, address) = alone(&setup, &secret);
    drop(servers);
    let stranger = setup.serve_at(address, &Secret::draw().unwrap());
    let text = error_of(&exchange).to_string();
    assert!(text.contains(&format!("lost server 0 at {address}")) && text.contains("secret"), "{text}");
    drop((stranger, exchange));
    let (exchange, servers, address) = alone(&setup, &secret);
    drop(servers);
    let strange = TcpListener::bind(address).unwrap();
    thread::spawn(move || {
        for caller in strange.incoming() {
            let mut header = [0; HEADER_BYTES];
            (header[0], header[1]) = (MAGIC, VERSION + 8);
            caller.unwrap().write_all(&header).unwrap();
        }
    });
    let text = error_of(&exchange).to_string();
    assert!(text.contains(&format!("lost server 0 at {address}")) && text.contains("version"), "{text}");
}

#[test]
fn a_rank_that_closes_while_its_server_is_lost_waits_for_nobody_that_needs_nothing() {
    let (setup, secret) = (Setup::new(1, 1), Secret::draw().unwrap());
    let (exchange, servers, _) = alone(&setup, &secret);
    drop(servers);
    exchange.close();
    assert!(matches!(error_of(&exchange), ExchangeError::Closed));
}
