// SPDX-License-Identifier: Apache-2.0
//! Connections that break, servers that end and ranks that are lost while bytes are in flight.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use foresee_grad_exchange::{Exchange, ExchangeError, RankOptions, Server};
use foresee_grad_queue::Policy;
use foresee_testkit::{pause, wait_until};
use foresee_units::{Bytes, Nanos, Rank};
use foresee_wire::Secret;

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

#[test]
fn servers_that_are_replaced_while_connections_break_change_no_bit() {
    let (size, credit) = (NonZeroU32::new(8192).unwrap(), NonZeroU64::new(16_384).unwrap());
    let policy = Policy::partition(size, credit);
    // A rank that is about to leave waits as long for the others, should a server be lost just when they have left.
    let setup = Setup { timeout: Nanos::from_secs(20), ..Setup::new(3, 2) };
    let inner = setup.clone();
    run_while_servers_are_replaced(&setup, 2, move |exchange| train_rank(&inner, exchange, 40));
    let with_credit = Setup { park: Bytes::ZERO, policy, ..setup };
    run_while_servers_are_replaced(&with_credit, 3, plans_follow_each_other);
}

/// Runs `body` on every rank, each behind wires of its own, while servers are replaced and connections break.
fn run_while_servers_are_replaced(
    setup: &Setup,
    seed: u64,
    body: impl Fn(&Exchange) + Send + Sync + 'static,
) {
    let secret = Secret::draw().unwrap();
    let servers = setup.serve(&secret);
    let ranks = (0..setup.world).map(|rank| {
        let (wires, options) = (Wires::default(), setup.rank(rank, &servers, &secret));
        let through = options.servers.iter().map(|server| wires.to(*server)).collect();
        (Exchange::open(RankOptions { servers: through, ..options }).unwrap(), wires)
    });
    let (exchanges, wires): (Vec<_>, Vec<_>) = ranks.unzip();
    let replaced = replace_servers(setup, servers, &secret, seed);
    let breaks = break_connections(wires, seed);
    in_threads(exchanges, move |exchange| body(&exchange));
    assert!(breaks.end() > 0 && replaced.end() > 0);
}

#[test]
fn a_rank_that_hears_of_a_loss_tells_the_other_servers_before_it_closes() {
    let (setup, secret) = (Setup { recover: false, ..Setup::new(3, 2) }, Secret::draw().unwrap());
    let (servers, wires) = (setup.serve(&secret), Wires::default());
    let ranks = (0..3).map(|rank| {
        let mut options = setup.rank(rank, &servers, &secret);
        if rank == 2 {
            options.servers[0] = wires.to(options.servers[0]);
        }
        Exchange::open(options).unwrap()
    });
    let ranks = in_threads(ranks.collect(), |rank| {
        rank.agree(tensors()).unwrap();
        rank
    });
    wires.cut();
    // The connections of every rank to it are as they were.
    wait_until("the other server has ended the job", || servers[1].stats().jobs.get("job") == Some(&0));
    for rank in &ranks[..2] {
        let error = error_of(rank);
        assert!(matches!(error, ExchangeError::RankLost { rank: Rank(2), .. }), "{error}");
    }
}
