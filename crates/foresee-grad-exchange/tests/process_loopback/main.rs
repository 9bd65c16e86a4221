// SPDX-License-Identifier: Apache-2.0
//! Ranks and servers of one process over real sockets: every average has the bits of the reference, whatever the order in
//! which packets, ranks and servers come, and whichever connection or server is lost on the way.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "values drawn for a test")]

mod broken_connection;
mod lost_rank;
mod lost_server;
mod setup;
mod two_jobs;
#[path = "../values/mod.rs"]
mod values;
mod waiting;
mod wires;

use std::num::NonZeroU32;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use foresee_grad_exchange::{
    Exchange, ExchangeError, Gradient, Interfaces, RankOptions, Server, ServerOptions,
};
use foresee_grad_queue::{Dtype, Pattern, Plan, Policy, TensorId, Wire, packet_bytes};
use foresee_testkit::{pause, wait_until};
use foresee_units::{Bytes, BytesPerSecond, Nanos, Rank};
use foresee_wire::{Fault, FaultCode, Hello, ListenOptions, Listener, Message, Secret, Timeouts, Wait};

use setup::{LONG, PACKET, Setup, dial_by_hand, end, ids, reference, tensors, train, train_rank, wait};
use values::{gradient, spec};

#[test]
fn servers_beside_ranks_and_on_machines_of_their_own_share_the_sums() {
    for extra in 0..=3 {
        let (setup, secret) = (Setup::new(3, extra), Secret::draw().unwrap());
        let others = setup.serve(&secret);
        let beside: Vec<_> = (0..3)
            .map(|_| {
                let interfaces = Interfaces::new(setup.policy.push(), NonZeroU32::new(PACKET).unwrap());
                let options = ServerOptions {
                    interfaces: Some(interfaces.clone()),
                    ..ServerOptions::new("127.0.0.1:0".parse().unwrap(), secret.clone())
                };
                (Server::start(options).unwrap(), interfaces)
            })
            .collect();
        let servers = beside.iter().map(|(server, _)| server).chain(&others);
        let addresses: Vec<_> = servers.map(Server::address).collect();
        let ranks: Vec<_> = (0..)
            .zip(&beside)
            .map(|(rank, (_, interfaces))| {
                let options = RankOptions {
                    servers: addresses.clone(),
                    shares: Pattern::mixed(3, extra).unwrap().shares().to_vec(),
                    interfaces: Some(interfaces.clone()),
                    beside: 3,
                    ..setup.rank(rank, &others, &secret)
                };
                let setup = setup.clone();
                thread::spawn(move || train_rank(&setup, &Exchange::open(options).unwrap(), 5))
            })
            .collect();
        for rank in ranks {
            rank.join().unwrap();
        }
    }
}

#[test]
fn averages_have_the_bits_of_the_reference_for_any_number_of_ranks_and_servers() {
    for world in 1..=5 {
        for servers in 1..=3 {
            train(&Setup::new(world, servers), 7);
        }
    }
}

/// The last rank does not use the large tensor, so it goes on while its part of it still waits: what it pushes next is
/// more urgent, and stays unread at servers that park nothing until the others, who want the large one, have pushed it.
#[test]
fn a_rank_that_runs_ahead_leaves_nothing_behind_that_the_others_need() {
    for servers in 1..=2 {
        let setup = Setup { park: Bytes::ZERO, ..Setup::new(3, servers) };
        setup.run(move |exchange| {
            let specs = vec![spec("first", Dtype::F32, 20_000, 0), spec("large", Dtype::F32, 2_000_000, 5)];
            exchange.agree(specs.clone()).unwrap();
            let rank = exchange.rank().0;
            for round in 0..4 {
                for (tensor, spec) in ids(&specs).into_iter().zip(&specs) {
                    if tensor.0 == 1 {
                        wait(&exchange, &[tensor]);
                    }
                    exchange.push(tensor, Gradient::from_bytes(gradient(spec, rank, round))).unwrap();
                }
                end(&exchange);
                wait(&exchange, &ids(&specs)[..if rank == 2 { 1 } else { 2 }]);
            }
            wait(&exchange, &ids(&specs));
            exchange.close();
        });
    }
}

#[test]
fn every_policy_gives_the_same_bits() {
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
        train(&Setup { policy, ..Setup::new(3, 2) }, 6);
    }
}

#[test]
fn fewer_bits_on_the_wire_are_rounded_once_each_way() {
    for wire in [Wire::Bf16, Wire::F16] {
        train(&Setup { wire, ..Setup::new(3, 2) }, 4);
    }
}

#[test]
fn ranks_that_differ_are_told_in_which_tensor() {
    let setup = Setup::new(2, 2);
    let errors = setup.run(move |exchange| {
        let mut specs = tensors();
        if exchange.rank().0 == 1 {
            specs[5].shape[0] = 7;
        }
        exchange.agree(specs).unwrap_err().to_string()
    });
    for error in errors {
        assert!(error.contains("'head'") && error.contains("12345") && error.contains("rank 1"), "{error}");
    }
}

#[test]
fn order_and_classes_are_those_of_rank_0() {
    let setup = Setup::new(2, 1);
    setup.run(move |exchange| {
        let mut specs = tensors();
        if exchange.rank().0 == 1 {
            specs.reverse();
        }
        let plan = exchange.agree(specs.clone()).unwrap();
        assert_eq!(plan.name(TensorId(0)), "embedding");
        for (tensor, spec) in specs.iter().enumerate() {
            let bytes = gradient(spec, exchange.rank().0, 0);
            exchange.push(TensorId(u32::try_from(tensor).unwrap()), Gradient::from_bytes(bytes)).unwrap();
        }
        end(&exchange);
        wait(&exchange, &ids(&specs));
        for (tensor, spec) in specs.iter().enumerate() {
            let received = exchange.received(TensorId(u32::try_from(tensor).unwrap())).unwrap();
            assert!(received.to_vec() == reference(spec, Wire::Own, &[0, 1], 2, 0), "{}", spec.name);
        }
        // A rank that leaves while another still wants something of it would be an error there.
        wait(&exchange, &ids(&specs));
    });
}

#[test]
fn plans_may_follow_each_other_as_soon_as_their_last_tensor_landed() {
    let setup = Setup::new(3, 2);
    setup.run(move |exchange| {
        let specs = tensors();
        let bias = TensorId(1);
        for round in 0..50 {
            exchange.agree(specs.clone()).unwrap();
            let bytes = gradient(&specs[1], exchange.rank().0, round);
            exchange.push(bias, Gradient::from_bytes(bytes)).unwrap();
            end(&exchange);
            // The others are known to be unused a moment later, and only then may servers forget the round.
            wait(&exchange, &[bias]);
            let received = exchange.received(bias).unwrap().to_vec();
            assert!(received == reference(&specs[1], Wire::Own, &[0, 1, 2], 3, round), "in plan {round}");
        }
        wait(&exchange, &ids(&specs));
    });
}

#[test]
fn a_rank_that_breaks_off_is_named_to_all_others() {
    let setup = Setup::new(3, 1);
    let secret = Secret::draw().unwrap();
    let servers = setup.serve(&secret);
    let config = setup.config();
    let (pushed, all_pushed) = mpsc::channel();
    let others: Vec<_> = [0, 2]
        .into_iter()
        .map(|rank| {
            let options = setup.rank(rank, &servers, &secret);
            let pushed = pushed.clone();
            thread::spawn(move || {
                let (exchange, specs) = (Exchange::open(options).unwrap(), tensors());
                exchange.agree(specs.clone()).unwrap();
                let bytes = gradient(&specs[0], rank, 0);
                exchange.push(TensorId(0), Gradient::from_bytes(bytes)).unwrap();
                end(&exchange);
                pushed.send(()).unwrap();
                loop {
                    if let Err(error) = exchange.wait(&ids(&specs), LONG) {
                        return error.to_string();
                    }
                }
            })
        })
        .collect();
    let mut lost = dial_by_hand(&setup.rank(1, &servers, &secret));
    let body = Plan::new(config, tensors()).unwrap().encode();
    let proposal = Message::Plan(foresee_wire::Plan { generation: 0, body });
    lost[0].sender.send_message(&proposal, 0, Wait::within(LONG)).unwrap();
    while !matches!(lost[0].receiver.next_message(Wait::within(LONG)).unwrap(), Some(Message::Plan(_))) {}
    all_pushed.recv_timeout(LONG).unwrap();
    all_pushed.recv_timeout(LONG).unwrap();
    // Gone without a word: what a killed process leaves is closed sockets.
    drop(lost);
    for other in others {
        let told = other.join().unwrap();
        assert!(told.contains("lost rank 1") && told.contains("'embedding'"), "{told}");
    }
}

#[test]
fn a_stranger_gets_nothing_and_disturbs_nobody() {
    let secret = Secret::draw().unwrap();
    let setup = Setup::new(1, 1);
    let servers = setup.serve(&secret);
    let exchange = Exchange::open(setup.rank(0, &servers, &secret)).unwrap();
    exchange.agree(tensors()).unwrap();
    let error = Exchange::open(setup.rank(0, &servers, &Secret::draw().unwrap())).unwrap_err();
    assert!(error.to_string().contains("secret"), "{error}");
    let impatient = Timeouts::new(Nanos::from_millis(1_500)).unwrap();
    let twin = RankOptions { timeouts: impatient, ..setup.rank(0, &servers, &secret) };
    let twin = Exchange::open(twin).unwrap_err();
    assert!(twin.to_string().contains("is here already"), "{twin}");
    let other = RankOptions { world: 3, rank: Rank(2), ..setup.rank(0, &servers, &secret) };
    let other = Exchange::open(other).unwrap_err();
    assert!(other.to_string().contains("one world size"), "{other}");
    exchange.push(TensorId(1), Gradient::from_bytes(vec![0; 12])).unwrap();
    end(&exchange);
    wait(&exchange, &[TensorId(1)]);
    assert_eq!(servers[0].stats().jobs["job"], 1);
}

#[test]
fn a_rank_whose_time_ends_during_an_attempt_names_the_refusal_before_it() {
    let (setup, secret) = (Setup::new(1, 1), Secret::draw().unwrap());
    let key = secret.clone();
    let keys = Arc::new(move |_: &Hello| Some(key.clone()));
    let anywhere = "127.0.0.1:0".parse().unwrap();
    let mut listener = Listener::bind(anywhere, keys, ListenOptions::default()).unwrap();
    let options = RankOptions {
        servers: vec![listener.address()],
        timeouts: Timeouts::new(Nanos::from_secs(2)).unwrap(),
        ..setup.rank(0, &[], &secret)
    };
    let rank = thread::spawn(move || Exchange::open(options).unwrap_err().to_string());
    let first = listener.accept(Wait::within(LONG)).unwrap().expect("the rank dials");
    first.refuse(Fault::new(FaultCode::Busy, "rank 0 is here already"), Wait::within(LONG)).unwrap();
    // The second attempt gets no answer.
    let second = listener.accept(Wait::within(LONG)).unwrap();
    let told = rank.join().unwrap();
    assert!(second.is_some() && told.contains("rank 0 is here already"), "{told}");
}

#[test]
fn ranks_that_name_the_servers_in_another_order_or_one_twice_are_told() {
    let (setup, secret) = (Setup::new(2, 2), Secret::draw().unwrap());
    let servers = setup.serve(&secret);
    let first = Exchange::open(setup.rank(0, &servers, &secret)).unwrap();
    let mut turned = setup.rank(1, &servers, &secret);
    turned.servers.reverse();
    let told = Exchange::open(turned).unwrap_err().to_string();
    let words = "rank 1 of job 'job' has this server as number 0 of its list, and others as number 1";
    assert!(told.contains(words), "{told}");
    // Whoever is here already would wait for it for ever.
    let told = first.agree(tensors()).unwrap_err().to_string();
    assert!(told.contains(words), "{told}");
    let mut twice = setup.rank(1, &servers, &secret);
    twice.servers[1] = twice.servers[0];
    let told = Exchange::open(twice).unwrap_err().to_string();
    assert!(told.contains("twice"), "{told}");
}

#[test]
fn ranks_that_are_there_hear_of_one_that_was_refused_before_they_have_a_plan() {
    let (setup, secret) = (Setup::new(2, 1), Secret::draw().unwrap());
    let servers = setup.serve(&secret);
    let first = Exchange::open(setup.rank(0, &servers, &secret)).unwrap();
    let waits = thread::spawn(move || first.agree(tensors()).unwrap_err().to_string());
    let other = RankOptions { world: 3, ..setup.rank(1, &servers, &secret) };
    Exchange::open(other).unwrap_err();
    let told = waits.join().unwrap();
    assert!(told.contains("rank 1 of job 'job' says that the job has 3 ranks"), "{told}");
}

#[test]
fn ranks_that_name_different_servers_beside_a_common_one_are_told() {
    let (setup, secret) =
        (Setup { timeout: Nanos::from_secs(2), ..Setup::new(2, 3) }, Secret::draw().unwrap());
    let servers = setup.serve(&secret);
    let ranks: Vec<_> = [[0, 1], [0, 2]]
        .into_iter()
        .zip(0..)
        .map(|(named, rank)| {
            let mut options = setup.rank(rank, &servers, &secret);
            options.servers = named.map(|server: usize| servers[server].address()).to_vec();
            thread::spawn(move || Exchange::open(options).unwrap().agree(tensors()).unwrap_err().to_string())
        })
        .collect();
    for rank in ranks {
        let told = rank.join().unwrap();
        // Whoever is told first leaves, and the other hears of that.
        assert!(told.contains("has not heard from every rank") || told.contains("has left"), "{told}");
    }
}

#[test]
fn a_rank_that_asks_for_a_plan_while_another_goes_on_is_told_and_so_is_that() {
    let setup = Setup::new(2, 1);
    let told = setup.run(|exchange| {
        exchange.agree(tensors()).unwrap();
        end(&exchange);
        wait(&exchange, &ids(&tensors()));
        if exchange.rank() == Rank(0) {
            return exchange.agree(tensors()).unwrap_err().to_string();
        }
        end(&exchange);
        exchange.wait(&[TensorId(0)], LONG).unwrap_err().to_string()
    });
    for text in told {
        assert!(
            text.contains("rank 0 agrees on tensors anew while rank 1 goes on to another round"),
            "{text}"
        );
    }
}

#[test]
fn a_rank_that_leaves_owing_a_round_is_noticed_behind_one_that_owes_none() {
    let (setup, secret) = (Setup::new(3, 1), Secret::draw().unwrap());
    let servers = setup.serve(&secret);
    let (tell, told) = mpsc::channel();
    let (go, wait_for) = mpsc::channel::<()>();
    let mut wait_for = Some(wait_for);
    let ranks: Vec<_> = (0..3)
        .map(|rank| {
            let (options, tell) = (setup.rank(rank, &servers, &secret), tell.clone());
            let wait_for = (rank == 2).then(|| wait_for.take().unwrap());
            thread::spawn(move || {
                let exchange = Exchange::open(options).unwrap();
                exchange.agree(tensors()).unwrap();
                if rank < 2 {
                    end(&exchange);
                }
                if rank == 1 {
                    exchange.close();
                    tell.send(()).unwrap();
                }
                if let Some(wait_for) = wait_for {
                    wait_for.recv().unwrap();
                    exchange.close();
                }
                (rank == 0).then(|| exchange.wait(&[TensorId(0)], LONG).unwrap_err().to_string())
            })
        })
        .collect();
    told.recv().unwrap();
    wait_until("the end of rank 1 at the server", || servers[0].stats().jobs["job"] == 2);
    go.send(()).unwrap();
    let said: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    let text = said[0].as_ref().unwrap();
    assert!(text.contains("rank 2 of job 'job' has left"), "{text}");
}

#[test]
fn a_server_that_is_full_says_so_and_has_room_again_later() {
    let (setup, secret) = (Setup::new(1, 0), Secret::draw().unwrap());
    let anywhere = "127.0.0.1:0".parse().unwrap();
    let options = ServerOptions { jobs: 1, ..ServerOptions::new(anywhere, secret.clone()) };
    let servers = [Server::start(options).unwrap()];
    let first = Exchange::open(setup.rank(0, &servers, &secret)).unwrap();
    let other = || RankOptions { job: "other".into(), ..setup.rank(0, &servers, &secret) };
    let impatient = Timeouts::new(Nanos::from_millis(1_500)).unwrap();
    let full = Exchange::open(RankOptions { timeouts: impatient, ..other() }).unwrap_err().to_string();
    assert!(full.contains("1 jobs are served, and no more may be; start another server"), "{full}");
    drop(first);
    Exchange::open(other()).unwrap();
}

#[test]
fn a_process_that_starts_again_waits_for_the_place_of_the_one_before_it() {
    let (setup, secret) = (Setup::new(1, 1), Secret::draw().unwrap());
    let servers = setup.serve(&secret);
    let before = Exchange::open(setup.rank(0, &servers, &secret)).unwrap();
    before.agree(tensors()).unwrap();
    let options = setup.rank(0, &servers, &secret);
    let after = thread::spawn(move || {
        let exchange = Exchange::open(options).unwrap();
        exchange.agree(tensors()).unwrap();
    });
    pause(Duration::from_millis(250));
    assert!(!after.is_finished(), "two processes have one place");
    drop(before);
    after.join().unwrap();
}

#[test]
fn misuse_is_refused_and_costs_nothing() {
    let setup = Setup::new(1, 1);
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
fn without_a_size_packets_are_cut_for_what_the_link_has_delivered() {
    let (setup, secret) = (Setup::new(1, 1), Secret::draw().unwrap());
    let servers = setup.serve(&secret);
    let options = RankOptions { packet_bytes: None, ..setup.rank(0, &servers, &secret) };
    let exchange = Exchange::open(options).unwrap();
    let specs = vec![spec("large", Dtype::F32, 16 << 20, 0)];
    let cut_for = |rate| packet_bytes(BytesPerSecond::new(rate)).get();
    let plan = exchange.agree(specs.clone()).unwrap();
    assert_eq!(plan.config().packet_bytes, cut_for(125_000_000), "nobody has measured anything");
    for _ in 0..3 {
        exchange.push(TensorId(0), Gradient::from_bytes(gradient(&specs[0], 0, 0))).unwrap();
        end(&exchange);
        wait(&exchange, &ids(&specs));
        // 64 MB take longer than an interval of the measurement; the last acknowledgment may still be on its way.
        let rate = || exchange.stats().interfaces[0].rate;
        let (plan, known) = loop {
            let before = rate();
            let plan = exchange.agree(specs.clone()).unwrap();
            if rate() == before {
                break (plan, before);
            }
        };
        assert!(known > 0);
        assert_eq!(plan.config().packet_bytes, cut_for(known));
    }
}
