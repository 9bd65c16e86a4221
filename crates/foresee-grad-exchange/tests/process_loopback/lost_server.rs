// SPDX-License-Identifier: Apache-2.0
//! Servers that are lost, and others that take their places: the same bits, or an error in time that says who it was.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use foresee_grad_exchange::{Exchange, ExchangeError, Gradient, RankOptions, Server};
use foresee_grad_queue::{Dtype, Plan, TensorId};
use foresee_testkit::{pause, wait_until};
use foresee_units::{Bytes, Nanos};
use foresee_wire::{Connection, HEADER_BYTES, MAGIC, Message, Resume, Secret, VERSION, Wait};

use crate::setup::{
    Dice, LONG, Setup, dial_by_hand, end, error_of, ids, in_threads, plans_follow_each_other, tensors,
    train_rank, wait,
};
use crate::values::{gradient, spec};

/// A rank that is about to leave waits as long for the others, should a server be lost just when they have left.
const SOON: Nanos = Nanos::from_secs(20);

/// Microseconds before the next fault, and longer after every `half` of them: on a machine so busy that nobody is whole again
/// before the next one comes, no test would end.
pub(crate) fn easing(pause: u64, times: u32, half: u32) -> Duration {
    Duration::from_micros(pause * u64::from(half + times) / u64::from(half))
}

/// Stops a server at drawn moments and starts another one at its address, until it is told to end; then returns how often.
pub(crate) struct Havoc {
    over: Arc<AtomicBool>,
    thread: JoinHandle<u32>,
}

impl Havoc {
    pub(crate) fn start(setup: &Setup, mut servers: Vec<Server>, secret: &Secret, seed: u64) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (setup, secret, told) = (setup.clone(), secret.clone(), Arc::clone(&over));
        let thread = thread::spawn(move || {
            let (mut dice, mut times) = (Dice::new(seed), 0);
            while !told.load(Ordering::Relaxed) {
                // Ranks look every 100 ms: mostly all come in between, and sometimes some or none.
                let micros = if dice.below(4) == 0 { 0 } else { 250_000 };
                pause(easing(micros + dice.below(150_000), times, 16));
                // One, or several at once.
                let first = dice.below(servers.len() as u64) as usize;
                let lost = 1 + dice.below((servers.len() - first) as u64) as usize;
                let addresses: Vec<_> = servers[first..first + lost].iter().map(Server::address).collect();
                servers[first..first + lost].iter().for_each(Server::close);
                for (place, address) in addresses.into_iter().enumerate() {
                    servers[first + place] = setup.serve_at(address, &secret);
                    times += 1;
                }
            }
            times
        });
        Self { over, thread }
    }

    pub(crate) fn end(self) -> u32 {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Runs `body` on every rank while servers are lost and replaced; returns how often they were.
fn run_in_havoc(setup: &Setup, seed: u64, body: impl Fn(&Exchange) + Send + Sync + 'static) -> u32 {
    let secret = Secret::draw().unwrap();
    let servers = setup.serve(&secret);
    let options: Vec<_> = (0..setup.world).map(|rank| setup.rank(rank, &servers, &secret)).collect();
    let exchanges: Vec<_> = options.into_iter().map(|options| Exchange::open(options).unwrap()).collect();
    let havoc = Havoc::start(setup, servers, &secret, seed);
    in_threads(exchanges, move |exchange| body(&exchange));
    havoc.end()
}

#[test]
fn servers_that_are_replaced_at_any_moment_give_the_same_bits() {
    for world in 1..=3 {
        for servers in 1..=3 {
            let setup = Setup { timeout: SOON, ..Setup::new(world, servers) };
            let inner = setup.clone();
            let seed = u64::from(world * 10 + u32::from(servers));
            let times = run_in_havoc(&setup, seed, move |exchange| train_rank(&inner, exchange, 60));
            assert!(times > 0);
        }
    }
}

#[test]
fn servers_without_room_to_park_are_replaced_too() {
    for world in 2..=4 {
        let setup = Setup { park: Bytes::ZERO, timeout: SOON, ..Setup::new(world, 2) };
        let inner = setup.clone();
        run_in_havoc(&setup, world.into(), move |exchange| train_rank(&inner, exchange, 40));
    }
}

#[test]
fn plans_follow_each_other_while_servers_are_replaced() {
    for servers in 1..=3 {
        let setup = Setup { timeout: SOON, ..Setup::new(3, servers) };
        run_in_havoc(&setup, u64::from(servers), plans_follow_each_other);
    }
}

/// A rank alone that has a plan, its server, and where that was.
fn alone(setup: &Setup, secret: &Secret) -> (Exchange, Vec<Server>, SocketAddr) {
    let servers = setup.serve(secret);
    let exchange = Exchange::open(setup.rank(0, &servers, secret)).unwrap();
    exchange.agree(tensors()).unwrap();
    let address = servers[0].address();
    (exchange, servers, address)
}

fn until_back(exchange: &Exchange, times: u64) {
    wait_until("the server that is back", || exchange.stats().servers_back >= times);
}

#[test]
fn a_server_lost_while_nothing_happens_is_back_before_the_next_round_and_said_to_be() {
    let (setup, secret) = (Setup::new(1, 1), Secret::draw().unwrap());
    let (exchange, mut servers, address) = alone(&setup, &secret);
    for times in 1..=3 {
        drop(servers);
        servers = vec![setup.serve_at(address, &secret)];
        until_back(&exchange, times);
    }
    let notices = exchange.take_notices();
    assert_eq!(notices.len(), 3);
    assert!(notices[0].contains(&format!("server 0 at {address} was lost")), "{notices:?}");
    assert!(exchange.take_notices().is_empty());
    let specs = tensors();
    exchange.push(TensorId(1), Gradient::from_bytes(gradient(&specs[1], 0, 0))).unwrap();
    end(&exchange);
    wait(&exchange, &ids(&specs));
    assert_eq!(servers[0].stats().jobs["job"], 1);
}

#[test]
fn a_server_lost_while_ranks_agree_is_told_again_what_they_propose() {
    let (setup, secret) = (Setup::new(2, 2), Secret::draw().unwrap());
    let servers = setup.serve(&secret);
    let addresses: Vec<_> = servers.iter().map(Server::address).collect();
    let [first, second] = [0, 1].map(|rank| setup.rank(rank, &servers, &secret));
    let first = Exchange::open(first).unwrap();
    let agree = |exchange: Exchange| {
        thread::spawn(move || {
            let specs = tensors();
            exchange.agree(specs.clone()).unwrap();
            exchange.push(TensorId(1), Gradient::from_bytes(vec![0; 12])).unwrap();
            end(&exchange);
            wait(&exchange, &ids(&specs));
            exchange.stats().servers_back
        })
    };
    let first = agree(first);
    drop(servers);
    let _servers: Vec<_> = addresses.into_iter().map(|address| setup.serve_at(address, &secret)).collect();
    // It comes when the first one has long proposed, and knows of no other server.
    let second = agree(Exchange::open(second).unwrap());
    assert_eq!((first.join().unwrap(), second.join().unwrap()), (2, 0));
}

#[test]
fn nobody_who_comes_back_is_an_error_in_time_that_names_the_server_and_what_was_missing() {
    let setup = Setup { timeout: Nanos::from_secs(2), ..Setup::new(2, 1) };
    let secret = Secret::draw().unwrap();
    let servers = setup.serve(&secret);
    let address = servers[0].address();
    let options: Vec<_> = (0..2).map(|rank| setup.rank(rank, &servers, &secret)).collect();
    let exchanges: Vec<_> = options.into_iter().map(|options| Exchange::open(options).unwrap()).collect();
    let agreed: Vec<_> = exchanges
        .into_iter()
        .map(|exchange| {
            thread::spawn(move || {
                exchange.agree(tensors()).unwrap();
                exchange
            })
        })
        .collect();
    let exchanges: Vec<_> = agreed.into_iter().map(|rank| rank.join().unwrap()).collect();
    // The other rank does not push, so that something is missing.
    exchanges[0].push(TensorId(0), Gradient::from_bytes(gradient(&tensors()[0], 0, 0))).unwrap();
    end(&exchanges[0]);
    drop(servers);
    let error = error_of(&exchanges[0]);
    let text = error.to_string();
    assert!(matches!(error, ExchangeError::ServerLost { server: 0, .. }), "{text}");
    for part in [&format!("lost server 0 at {address}"), "nobody came in its place within", "'embedding'"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_server_in_its_place_to_which_not_every_rank_comes_is_an_error_in_time() {
    let setup = Setup { timeout: Nanos::from_secs(2), ..Setup::new(2, 1) };
    let secret = Secret::draw().unwrap();
    let servers = setup.serve(&secret);
    let address = servers[0].address();
    let mut lost = dial_by_hand(&setup.rank(1, &servers, &secret));
    let exchange = Exchange::open(setup.rank(0, &servers, &secret)).unwrap();
    let body = Plan::new(setup.config(), tensors()).unwrap().encode();
    let proposal = Message::Plan(foresee_wire::Plan { generation: 0, body });
    lost[0].sender.send_message(&proposal, 0, Wait::within(LONG)).unwrap();
    exchange.agree(tensors()).unwrap();
    drop(servers);
    // The rank at the other end of these is lost with the server.
    drop(lost);
    let _server = setup.serve_at(address, &secret);
    let text = error_of(&exchange).to_string();
    assert!(text.contains("somebody came in its place, and not every rank to it"), "{text}");
}

#[test]
fn ranks_that_come_with_two_plans_to_a_server_are_told_so() {
    let (setup, secret) = (Setup::new(2, 1), Secret::draw().unwrap());
    let servers = setup.serve(&secret);
    let address = servers[0].address();
    let mut other = dial_by_hand(&setup.rank(1, &servers, &secret));
    let exchange = Exchange::open(setup.rank(0, &servers, &secret)).unwrap();
    let body = Plan::new(setup.config(), tensors()).unwrap().encode();
    let proposal = Message::Plan(foresee_wire::Plan { generation: 0, body });
    other[0].sender.send_message(&proposal, 0, Wait::within(LONG)).unwrap();
    exchange.agree(tensors()).unwrap();
    drop(servers);
    let servers = vec![setup.serve_at(address, &secret)];
    let mut other = dial_by_hand(&setup.rank(1, &servers, &secret));
    let body = Plan::new(setup.config(), vec![spec("other", Dtype::F32, 1, 0)]).unwrap().encode();
    let known = Message::Resume(Resume { generation: 1, oldest: 0, live: Vec::new(), body });
    other[0].sender.send_message(&known, 0, Wait::within(LONG)).unwrap();
    let error = error_of(&exchange);
    assert!(matches!(error, ExchangeError::Disagree(_)), "{error}");
    assert!(error.to_string().contains("rank 0 and rank 1 come from a lost server with different plans"));
}

#[test]
fn a_rank_that_hears_at_a_new_server_what_it_proposes_there_has_proposed_nothing_else() {
    let (setup, secret) = (Setup::new(2, 1), Secret::draw().unwrap());
    let servers = setup.serve(&secret);
    let address = servers[0].address();
    let mut behind = dial_by_hand(&setup.rank(1, &servers, &secret));
    let exchange = Exchange::open(setup.rank(0, &servers, &secret)).unwrap();
    let body = Plan::new(setup.config(), tensors()).unwrap().encode();
    let proposal = Message::Plan(foresee_wire::Plan { generation: 0, body });
    let tell = |rank: &mut [Connection], message: &Message| {
        rank[0].sender.send_message(message, 0, Wait::within(LONG)).unwrap();
    };
    let next_plan = |rank: &mut [Connection], wait| loop {
        match rank[0].receiver.next_message(wait) {
            Ok(Some(Message::Plan(plan))) => return Some(plan.generation),
            Ok(Some(_)) => {}
            _ => return None,
        }
    };
    tell(&mut behind, &proposal);
    exchange.agree(tensors()).unwrap();
    drop(servers);
    let servers = vec![setup.serve_at(address, &secret)];
    let mut behind = dial_by_hand(&setup.rank(1, &servers, &secret));
    let knows_nothing = Resume { generation: 0, oldest: 0, live: Vec::new(), body: Vec::new() };
    tell(&mut behind, &Message::Resume(knows_nothing));
    assert_eq!(next_plan(&mut behind, Wait::within(LONG)), Some(1));
    // This one and its answer met on their way.
    tell(&mut behind, &proposal);
    let other = thread::spawn(move || exchange.agree(tensors()).map(|_| exchange));
    assert_eq!(next_plan(&mut behind, Wait::within(Duration::from_millis(100))), None);
    tell(&mut behind, &proposal);
    assert_eq!(next_plan(&mut behind, Wait::within(LONG)), Some(2));
    drop(other.join().unwrap().unwrap());
}

#[test]
fn a_server_with_another_secret_in_its_place_is_refused_at_once() {
    let (setup, secret) = (Setup::new(1, 1), Secret::draw().unwrap());
    let (exchange, servers, address) = alone(&setup, &secret);
    drop(servers);
    let _stranger = setup.serve_at(address, &Secret::draw().unwrap());
    let text = error_of(&exchange).to_string();
    assert!(text.contains(&format!("lost server 0 at {address}")) && text.contains("secret"), "{text}");
}

#[test]
fn another_version_in_its_place_is_named_at_once() {
    let (setup, secret) = (Setup::new(1, 1), Secret::draw().unwrap());
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
fn without_recovery_and_beside_a_rank_a_lost_server_is_named_at_once() {
    let secret = Secret::draw().unwrap();
    for (recover, beside) in [(false, 0), (true, 1)] {
        let setup = Setup { recover, ..Setup::new(1, 2) };
        let mut servers = setup.serve(&secret);
        let options = RankOptions { beside, ..setup.rank(0, &servers, &secret) };
        let exchange = Exchange::open(options).unwrap();
        exchange.agree(tensors()).unwrap();
        let lost = servers.remove(0);
        let address = lost.address();
        drop(lost);
        let _next = setup.serve_at(address, &secret);
        let error = error_of(&exchange);
        assert!(error.to_string().contains(&address.to_string()), "{error}");
        assert_eq!(exchange.stats().servers_back, 0);
    }
}

#[test]
fn whoever_closes_while_a_server_is_lost_waits_for_nobody_that_needs_nothing() {
    let (setup, secret) = (Setup::new(1, 1), Secret::draw().unwrap());
    let (exchange, servers, _) = alone(&setup, &secret);
    drop(servers);
    exchange.close();
    assert!(matches!(error_of(&exchange), ExchangeError::Closed));
}
