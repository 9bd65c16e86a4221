// SPDX-License-Identifier: Apache-2.0
//! Connections that break between ranks and servers that live: they are made again, and nobody notices in the bits.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use foresee_grad_exchange::{Exchange, ExchangeError, Gradient, RankOptions, Server, Waited};
use foresee_grad_queue::{Policy, TensorId};
use foresee_testkit::{pause, takes_at_least, wait_until};
use foresee_units::{Bytes, Nanos};
use foresee_wire::{
    COMES_AGAIN, Connection, DialOptions, Hello, Message, Plan, Purpose, Resume, Role, Secret, Wait, dial,
};

use crate::lost_server::{Havoc, easing};
use crate::setup::{
    Dice, LONG, Setup, end, error_of, ids, in_threads, plans_follow_each_other, tensors, train_rank,
};
use crate::values::gradient;
use crate::wires::Wires;

/// The wires of every rank, which break at drawn moments until it is told to end.
struct Storm {
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Storm {
    fn start(wires: Vec<Wires>, seed: u64) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let (mut dice, mut times) = (Dice::new(seed), 0);
            while !told.load(Ordering::Relaxed) {
                pause(easing(5_000 + dice.below(40_000), times, 64));
                times += 1;
                let first = dice.below(wires.len() as u64) as usize;
                // One connection, all of a rank, all of several at once. A data connection that breaks by itself is found
                // by its silence beside a control connection that lives, which takes a sign of life.
                match dice.below(8) {
                    0 => wires[first].break_one(&mut dice),
                    1 => wires[first..].iter().for_each(Wires::break_all),
                    _ => wires[first].break_all(),
                }
            }
        });
        Self { over, thread }
    }

    fn end(self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

/// Every rank's options, each behind wires of its own.
fn behind_wires(setup: &Setup, servers: &[Server], secret: &Secret) -> (Vec<RankOptions>, Vec<Wires>) {
    let ranks = (0..setup.world).map(|rank| {
        let (wires, options) = (Wires::default(), setup.rank(rank, servers, secret));
        let through = options.servers.iter().map(|server| wires.to(*server)).collect();
        (RankOptions { servers: through, ..options }, wires)
    });
    ranks.unzip()
}

/// Runs `body` on every rank while connections break; returns how often they were made again.
fn run_in_storm(
    setup: &Setup,
    seed: u64,
    change: impl Fn(RankOptions) -> RankOptions,
    body: impl Fn(&Exchange) + Send + Sync + 'static,
) -> u64 {
    let secret = Secret::draw().unwrap();
    let servers = setup.serve(&secret);
    let (options, wires) = behind_wires(setup, &servers, &secret);
    let exchanges: Vec<_> =
        options.into_iter().map(|options| Exchange::open(change(options)).unwrap()).collect();
    let storm = Storm::start(wires, seed);
    let times = in_threads(exchanges, move |exchange| {
        body(&exchange);
        let stats = exchange.stats();
        assert_eq!((stats.servers_back, stats.ranks_lost), (0, 0), "{:?}", exchange.take_notices());
        stats.reconnects
    });
    storm.end();
    times.into_iter().sum()
}

#[test]
fn connections_that_break_at_any_moment_change_no_bit() {
    for world in 1..=3 {
        for servers in 1..=3 {
            let setup = Setup::new(world, servers);
            let inner = setup.clone();
            let seed = u64::from(world * 10 + u32::from(servers));
            let times =
                run_in_storm(&setup, seed, |own| own, move |exchange| train_rank(&inner, exchange, 60));
            assert!(times > 0);
        }
    }
}

#[test]
fn every_policy_goes_on_without_room_to_park_and_with_servers_beside_ranks() {
    let (size, credit) = (NonZeroU32::new(8192).unwrap(), NonZeroU64::new(16_384).unwrap());
    let partition = Policy::partition(size, credit);
    let policies =
        [Policy::fifo_tensor(), Policy::fifo_packet(), Policy::mercury(), Policy::foresee(), partition];
    for (seed, policy) in (1..).zip(policies) {
        let setup = Setup { park: Bytes::ZERO, policy, ..Setup::new(3, 3) };
        let inner = setup.clone();
        let beside = |own| RankOptions { beside: 3, ..own };
        run_in_storm(&setup, seed, beside, move |exchange| train_rank(&inner, exchange, 30));
    }
}

#[test]
fn ranks_that_may_be_lost_are_not_while_they_come_again() {
    let setup = Setup { survives: true, ..Setup::new(3, 2) };
    let inner = setup.clone();
    run_in_storm(&setup, 5, |own| own, move |exchange| train_rank(&inner, exchange, 40));
}

#[test]
fn plans_follow_each_other_while_connections_break() {
    for servers in 1..=3 {
        run_in_storm(&Setup::new(3, servers), servers.into(), |own| own, plans_follow_each_other);
    }
}

#[test]
fn servers_are_replaced_while_connections_break() {
    for servers in 1..=3 {
        let setup = Setup { timeout: Nanos::from_secs(20), ..Setup::new(3, servers) };
        let secret = Secret::draw().unwrap();
        let own = setup.serve(&secret);
        let (options, wires) = behind_wires(&setup, &own, &secret);
        let exchanges: Vec<_> = options.into_iter().map(|options| Exchange::open(options).unwrap()).collect();
        let (havoc, storm) =
            (Havoc::start(&setup, own, &secret, servers.into()), Storm::start(wires, servers.into()));
        in_threads(exchanges, move |exchange| train_rank(&setup, &exchange, 40));
        storm.end();
        havoc.end();
    }
}

/// Two ranks under a plan, the second one behind wires.
fn two(setup: &Setup) -> (Vec<Exchange>, Wires, Vec<Server>, Secret) {
    let secret = Secret::draw().unwrap();
    let servers = setup.serve(&secret);
    let (mut options, wires) = behind_wires(setup, &servers, &secret);
    options[0].servers = servers.iter().map(Server::address).collect();
    let ranks: Vec<_> = options
        .into_iter()
        .map(|options| {
            thread::spawn(move || {
                let exchange = Exchange::open(options).unwrap();
                exchange.agree(tensors()).unwrap();
                exchange
            })
        })
        .collect();
    let ranks = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    (ranks, wires[1].clone(), servers, secret)
}

#[test]
fn a_connection_that_is_made_again_is_told_of_and_counted() {
    let (ranks, wires, servers, _) = two(&Setup::new(2, 1));
    wires.break_all();
    until_reconnected(&ranks[1], 1);
    let notices = ranks[1].take_notices();
    assert!(notices.len() == 1 && notices[0].contains("the connection to server 0 at"), "{notices:?}");
    assert!(notices[0].contains("was made again after"), "{notices:?}");
    assert!(ranks[0].take_notices().is_empty());
    assert_eq!(servers[0].stats().jobs["job"], 2);
}

fn until_reconnected(rank: &Exchange, times: u64) {
    wait_until("the connection that is made again", || rank.stats().reconnects >= times);
}

#[test]
fn a_data_connection_that_ends_with_nothing_on_its_way_is_made_again() {
    let (ranks, wires, _servers, _) = two(&Setup { timeout: Nanos::from_secs(2), ..Setup::new(2, 1) });
    wires.break_last();
    until_reconnected(&ranks[1], 1);
}

#[test]
fn a_way_that_breaks_whenever_data_flow_is_lost_in_time_and_says_so() {
    let (setup, secret) =
        (Setup { timeout: Nanos::from_secs(2), ..Setup::new(1, 1) }, Secret::draw().unwrap());
    let servers = setup.serve(&secret);
    let (options, wires) = behind_wires(&setup, &servers, &secret);
    // Proofs and plans pass, a packet does not.
    wires[0].break_after(3000);
    let exchange = Exchange::open(options.into_iter().next().unwrap()).unwrap();
    let specs = tensors();
    exchange.agree(specs.clone()).unwrap();
    let error = takes_at_least(Duration::from_secs(2), || {
        exchange.push(TensorId(0), Gradient::from_bytes(gradient(&specs[0], 0, 0))).unwrap();
        end(&exchange);
        error_of(&exchange)
    });
    assert!(matches!(error, ExchangeError::ServerLost { server: 0, .. }), "{error}");
    assert!(error.to_string().contains("nothing came over any of them"), "{error}");
    assert!(exchange.stats().reconnects >= 30, "{error}");
}

#[test]
fn patience_begins_anew_with_each_break() {
    // A rank that is away is waited for for 4.5 s: less than both silences together, and far more than the second.
    let (ranks, wires, _servers, _) = two(&Setup { timeout: Nanos::from_secs(6), ..Setup::new(2, 1) });
    wires.break_all();
    until_reconnected(&ranks[1], 1);
    pause(Duration::from_millis(3_500));
    wires.shut(true);
    pause(Duration::from_millis(1_500));
    wires.shut(false);
    until_reconnected(&ranks[1], 2);
    ranks.iter().for_each(end);
    for rank in &ranks {
        assert_eq!(rank.wait_all(LONG).unwrap(), Waited::Landed);
    }
}

#[test]
fn whoever_does_not_come_again_is_lost_and_named_in_time() {
    let setup = Setup { timeout: Nanos::from_secs(2), ..Setup::new(2, 2) };
    let (ranks, wires, _servers, _) = two(&setup);
    wires.cut();
    let error = error_of(&ranks[0]);
    assert!(matches!(error, ExchangeError::RankLost { rank, .. } if rank.0 == 1), "{error}");
    assert!(error.to_string().contains("it did not come again within 1.5 s"), "{error}");
    let error = error_of(&ranks[1]);
    assert!(matches!(error, ExchangeError::ServerLost { .. }), "{error}");
}

#[test]
fn without_recovery_a_broken_connection_is_named_at_once() {
    let (ranks, wires, _servers, _) = two(&Setup { recover: false, ..Setup::new(2, 1) });
    wires.break_all();
    for (rank, exchange) in (0..).zip(&ranks) {
        let error = error_of(exchange);
        let named = match &error {
            ExchangeError::RankLost { rank, .. } => rank.0 == 1,
            ExchangeError::ServerLost { server, .. } => rank == 1 && *server == 0,
            _ => false,
        };
        assert!(named, "{error}");
    }
}

#[test]
fn another_process_in_the_place_of_a_rank_that_is_away_says_that_it_is_lost() {
    let (ranks, wires, servers, secret) = two(&Setup::new(2, 1));
    wires.cut();
    let hello = Hello {
        session: 1,
        capabilities: COMES_AGAIN,
        ..Hello::new(Purpose::Gradients, Role::Control, "job", 1, 2)
    };
    let error = loop {
        // While the job is there it is refused, also once the server knows that the one before is away.
        let how = DialOptions::default();
        drop(dial(servers[0].address(), hello.clone(), &secret, &how, Wait::within(LONG)));
        if let Err(error) = ranks[0].end_round(Duration::from_millis(10)) {
            break error;
        }
    };
    assert!(error.to_string().contains("another process of it has come"), "{error}");
}

#[test]
fn a_proposal_is_forgotten_with_its_connection_and_said_again_counts_once() {
    let (setup, secret) = (Setup::new(2, 1), Secret::draw().unwrap());
    let servers = setup.serve(&secret);
    let address = servers[0].address();
    let first = Exchange::open(setup.rank(0, &servers, &secret)).unwrap();
    let call = |role| {
        let hello = Hello {
            session: 1,
            capabilities: COMES_AGAIN,
            ..Hello::new(Purpose::Gradients, role, "job", 1, 2)
        };
        dial(address, hello, &secret, &DialOptions::default(), Wait::within(LONG)).unwrap()
    };
    let body = foresee_grad_queue::Plan::new(setup.config(), tensors()).unwrap().encode();
    let proposal = Message::Plan(Plan { generation: 0, body });
    let tell = |control: &mut Connection, message: &Message| {
        control.sender.send_message(message, 0, Wait::within(LONG)).unwrap();
    };
    let (mut control, data) = (call(Role::Control), call(Role::Data));
    tell(&mut control, &proposal);
    // Heard before the connections break, and nothing comes of it while rank 0 proposes nothing.
    pause(Duration::from_millis(50));
    drop((control, data));
    let first = thread::spawn(move || {
        first.agree(tensors()).unwrap();
        first
    });
    let mut control = call(Role::Control);
    tell(
        &mut control,
        &Message::Resume(Resume { generation: 0, oldest: 0, live: Vec::new(), body: Vec::new() }),
    );
    // With this one it is here again, and has not said what it proposes.
    let _data = call(Role::Data);
    tell(&mut control, &proposal);
    let first = first.join().unwrap();
    end(&first);
    // Were the same proposal there once more, it would be for the next plan, and the rank that goes on would be told so.
    assert_eq!(first.wait_all(Duration::from_millis(100)).unwrap(), Waited::Tick);
    first.close();
}

#[test]
fn what_landed_before_a_connection_broke_does_not_travel_again() {
    let (ranks, wires, _servers, _) = two(&Setup::new(2, 1));
    let (specs, all) = (tensors(), ids(&tensors()));
    for rank in &ranks {
        for (tensor, spec) in all.iter().zip(&specs) {
            rank.push(*tensor, Gradient::from_bytes(gradient(spec, rank.rank().0, 0))).unwrap();
        }
        end(rank);
    }
    for rank in &ranks {
        assert_eq!(rank.wait_all(LONG).unwrap(), Waited::Landed);
    }
    let sent =
        |rank: &Exchange| rank.stats().interfaces.iter().map(|interface| interface.sent.get()).sum::<u64>();
    let before = sent(&ranks[1]);
    wires.break_all();
    until_reconnected(&ranks[1], 1);
    ranks.iter().for_each(end);
    for rank in &ranks {
        assert_eq!(rank.wait_all(LONG).unwrap(), Waited::Landed);
    }
    assert_eq!(sent(&ranks[1]), before);
    // Before the server, for whose successor they would wait.
    drop(ranks);
}
