// SPDX-License-Identifier: Apache-2.0
//! Connections that break, servers that end and ranks that are lost while bytes are in flight.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use foresee_grad_exchange::{ExchangeError, GradientExchange, RankOptions, Server, ServerExchange};
use foresee_grad_queue::Policy;
use foresee_testkit::{pause, wait_until};
use foresee_units::{Bytes, Nanos, Rank};
use foresee_wire::Secret;

use crate::proxy::Proxy;
use crate::setup::{Random, Setup, error_of, in_threads, plans_follow_each_other, tensors, train_rank};

/// A disturbance at random times until it ends; then it returns their number.
struct Disturbance {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<u32>,
}

impl Disturbance {
    /// `happen` returns the microseconds until the next time. They grow with every `half` times, since on a host too busy to
    /// recover before the next disturbance no test would end.
    fn start(seed: u64, half: u32, mut happen: impl FnMut(&mut Random) -> u64 + Send + 'static) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            let (mut random, mut times) = (Random::new(seed), 0);
            while !stop.load(Ordering::Relaxed) {
                let micros = happen(&mut random) * u64::from(half + times) / u64::from(half);
                times += 1;
                pause(Duration::from_micros(micros));
            }
            times
        });
        Self { is_over, thread }
    }

    fn end(self) -> u32 {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Break one connection, all of a rank, or all of several at once. If only a data connection breaks, its silence next to a
/// live control connection reveals it, which takes a heartbeat.
fn break_connections(proxies: Vec<Proxy>, seed: u64) -> Disturbance {
    Disturbance::start(seed, 64, move |random| {
        let first = random.below(proxies.len() as u64) as usize;
        match random.below(8) {
            0 => proxies[first].break_one(random),
            1 => proxies[first..].iter().for_each(Proxy::break_all),
            _ => proxies[first].break_all(),
        }
        5_000 + random.below(40_000)
    })
}

/// Close one server, or several at once, and start others at their addresses.
fn replace_servers(setup: &Setup, mut servers: Vec<Server>, secret: &Secret, seed: u64) -> Disturbance {
    let (setup, secret) = (setup.clone(), secret.clone());
    Disturbance::start(seed, 16, move |random| {
        let first = random.below(servers.len() as u64) as usize;
        let lost = 1 + random.below((servers.len() - first) as u64) as usize;
        let addresses: Vec<_> = servers[first..first + lost].iter().map(Server::address).collect();
        servers[first..first + lost].iter().for_each(Server::close);
        for (place, address) in addresses.into_iter().enumerate() {
            servers[first + place] = setup.serve_at(address, &secret);
        }
        // Ranks dial every 100 ms: usually all reconnect before the next time, sometimes some or none.
        let micros = if random.below(4) == 0 { 0 } else { 250_000 };
        micros + random.below(150_000)
    })
}

#[test]
fn replaced_servers_and_broken_connections_change_no_bit() {
    let (size, credit) = (NonZeroU32::new(8192).unwrap(), NonZeroU64::new(16_384).unwrap());
    let policy = Policy::partition(size, credit);
    // If a server is lost just after the other ranks have left, the last rank waits this long for them.
    let setup = Setup { timeout: Nanos::from_secs(20), ..Setup::new(3, 2) };
    let inner = setup.clone();
    run_while_servers_are_replaced(&setup, 2, move |exchange| train_rank(&inner, exchange, 40));
    let with_credit = Setup { early_buffer: Bytes::ZERO, policy, ..setup };
    run_while_servers_are_replaced(&with_credit, 3, plans_follow_each_other);
}

/// Run `body` on every rank, each behind a proxy of its own, while servers are replaced and connections break.
fn run_while_servers_are_replaced(
    setup: &Setup,
    seed: u64,
    body: impl Fn(&ServerExchange) + Send + Sync + 'static,
) {
    let secret = Secret::draw().unwrap();
    let servers = setup.serve(&secret);
    let ranks = (0..setup.world).map(|rank| {
        let (proxy, options) = (Proxy::default(), setup.rank(rank, &servers, &secret));
        let through = options.servers.iter().map(|server| proxy.to(*server)).collect();
        (ServerExchange::open(RankOptions { servers: through, ..options }).unwrap(), proxy)
    });
    let (exchanges, proxies): (Vec<_>, Vec<_>) = ranks.unzip();
    let replaced = replace_servers(setup, servers, &secret, seed);
    let breaks = break_connections(proxies, seed);
    in_threads(exchanges, move |exchange| body(&exchange));
    assert!(breaks.end() > 0 && replaced.end() > 0);
}

#[test]
fn a_rank_reports_a_lost_rank_to_the_other_servers_before_it_closes() {
    let (setup, secret) = (Setup { recover: false, ..Setup::new(3, 2) }, Secret::draw().unwrap());
    let (servers, proxy) = (setup.serve(&secret), Proxy::default());
    let ranks = (0..3).map(|rank| {
        let mut options = setup.rank(rank, &servers, &secret);
        if rank == 2 {
            options.servers[0] = proxy.to(options.servers[0]);
        }
        ServerExchange::open(options).unwrap()
    });
    let ranks = in_threads(ranks.collect(), |rank| {
        rank.agree(tensors()).unwrap();
        rank
    });
    proxy.cut();
    // No connection to that server has broken.
    wait_until("the other server has ended the job", || servers[1].stats().jobs.get("job") == Some(&0));
    for rank in &ranks[..2] {
        let error = error_of(rank);
        assert!(matches!(error, ExchangeError::RankLost { rank: Rank(2), .. }), "{error}");
    }
}
