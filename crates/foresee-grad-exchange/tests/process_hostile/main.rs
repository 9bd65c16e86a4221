// SPDX-License-Identifier: Apache-2.0
//! A peer that has the secret and then sends invalid bytes, to a server and to a rank.
//!
//! No thread panics, memory stays within the plan, and another job on the same server continues.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod healthy_job;
mod memory;
mod noise;
mod tap;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::Duration;

use foresee_grad_exchange::{
    ExchangeError, Gradient, GradientExchange, RankOptions, Server, ServerExchange, ServerOptions,
};
use foresee_grad_queue::{Pattern, PlanConfig, TensorId, TensorSpec, Wire};
use foresee_testkit::{property, wait_until};
use foresee_units::Nanos;
use foresee_wire::{
    Connection, DialOptions, FaultCode, Header, Hello, Kind, ListenOptions, Listener, Message, Plan, Purpose,
    Role, Secret, Timeouts, Wait, Welcome, dial,
};
use healthy_job::{HealthyJob, LONG, PACKET, options, tensor};
use memory::{Counting, most_during};
use noise::{Noise, noise};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tap::{Direction, Tap};

#[global_allocator]
static MEMORY: Counting = Counting;

/// Far above the use of all tests: plans of these tests have 100 KB.
const MEMORY_MAX: usize = 32 << 20;
const CASES: u32 = 300;
/// The order of a rank's two connections.
const CONTROL: usize = 0;
const DATA: usize = 1;

/// Panics of threads of this crate.
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Run one test at a time, since memory and panics are counted per process.
fn exclusive() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if thread::current().name().is_some_and(|name| name.starts_with("foresee")) {
                PANICS.fetch_add(1, Ordering::Relaxed);
            }
            usual(panic);
        }));
    });
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Try random cases with a bound on memory.
fn try_all<T: std::fmt::Debug>(cases: u32, given: impl Strategy<Value = T>, mut case: impl FnMut(T)) {
    let config = Config { max_shrink_iters: 60, ..property(cases) };
    let case = std::cell::RefCell::new(&mut case);
    let used = most_during(|| {
        let tried = TestRunner::new(config).run(&given, |one| {
            (*case.borrow_mut())(one);
            prop_assert_eq!(PANICS.swap(0, Ordering::Relaxed), 0);
            Ok(())
        });
        if let Err(why) = tried {
            panic!("{why}");
        }
    });
    assert!(used < MEMORY_MAX, "{used} bytes were in use");
}

fn serve(secret: &Secret) -> Server {
    Server::start(ServerOptions { timeouts: server_timeouts(), ..options_of(secret) }).unwrap()
}

fn options_of(secret: &Secret) -> ServerOptions {
    ServerOptions::new("127.0.0.1:0".parse().unwrap(), secret.clone())
}

/// Short, since a server waits in vain for the rest of a message whose length was damaged.
fn server_timeouts() -> Timeouts {
    Timeouts::new(Nanos::from_secs(3)).unwrap()
}

fn tensors() -> Vec<TensorSpec> {
    vec![tensor("bias", 7), tensor("weights", 25_000)]
}

fn plan() -> Vec<u8> {
    let config = PlanConfig { packet_bytes: PACKET, wire: Wire::Own, pattern: Pattern::new(&[1]).unwrap() };
    foresee_grad_queue::Plan::new(config, tensors()).unwrap().encode()
}

/// Both connections of a single rank that the test drives.
fn dial_by_hand(server: SocketAddr, secret: &Secret, continue_on_rank_loss: bool) -> [Connection; 2] {
    [Role::Control, Role::Data].map(|role| {
        let hello =
            Hello { survives: continue_on_rank_loss, ..Hello::new(Purpose::Gradients, role, "noise", 0, 1) };
        dial(server, hello, secret, &DialOptions::default(), Wait::within(LONG)).unwrap()
    })
}

fn propose(control: &mut Connection, body: Vec<u8>) {
    let proposal = Message::Plan(Plan { generation: 0, body });
    control.sender.send_message(&proposal, 0, Wait::within(LONG)).unwrap();
}

/// A server that the test drives.
fn listen(secret: &Secret) -> Listener {
    let key = secret.clone();
    let keys = Arc::new(move |_: &Hello| Some(key.clone()));
    Listener::bind("127.0.0.1:0".parse().unwrap(), keys, ListenOptions::default()).unwrap()
}

/// Accept the next connection of a rank.
fn accept(listener: &mut Listener) -> Connection {
    let arrival = listener.accept(Wait::within(LONG)).unwrap().expect("the rank dials");
    arrival.welcome(Welcome::default(), Wait::within(LONG)).unwrap()
}

/// The plan that a rank proposes.
fn proposed(control: &mut Connection) -> Vec<u8> {
    let Some(Message::Plan(proposed)) = next_message(control) else { panic!("a rank proposes first") };
    proposed.body
}

/// Agree to the proposal of a single rank.
fn agree_by_hand(control: &mut Connection) {
    let body = proposed(control);
    let plan = Message::Plan(Plan { generation: 1, body });
    control.sender.send_message(&plan, 0, Wait::within(LONG)).unwrap();
}

/// The next message other than a heartbeat; `None` at the end.
fn next_message(control: &mut Connection) -> Option<Message> {
    loop {
        match control.receiver.next_message(Wait::within(LONG)).unwrap() {
            Some(Message::Ping(_)) => {}
            other => return other,
        }
    }
}

/// The number of the hostile job's ranks at a server.
fn hostile_ranks(server: &Server) -> u32 {
    server.stats().jobs.get("noise").copied().unwrap_or(0)
}

fn connection_of(noise: &Noise) -> usize {
    if noise.on_data { DATA } else { CONTROL }
}

#[test]
fn invalid_bytes_of_an_authenticated_rank_end_only_its_own_job() {
    let _guard = exclusive();
    let secret = Secret::draw().unwrap();
    let server = serve(&secret);
    let healthy = HealthyJob::start(server.address(), &secret);
    try_all(
        CASES,
        (any::<bool>(), any::<bool>(), noise(plan())),
        |(agreed, continue_on_rank_loss, noise)| {
            let tap = Tap::before(server.address(), 2);
            let [mut control, data] = dial_by_hand(tap.address(), &secret, continue_on_rank_loss);
            if agreed {
                propose(&mut control, plan());
                assert!(matches!(next_message(&mut control), Some(Message::Plan(_))));
            }
            for bytes in &noise {
                tap.inject(Direction::ToListener, connection_of(bytes), &bytes.bytes);
            }
            drop((control, data));
            assert!(tap.ends(), "the server retains a connection of a rank that has left");
            wait_until("the server has forgotten the rank", || hostile_ranks(&server) == 0);
        },
    );
    healthy.end();
}

#[test]
fn invalid_bytes_of_an_authenticated_server_are_an_error_of_the_rank() {
    let _guard = exclusive();
    let secret = Secret::draw().unwrap();
    try_all(
        CASES,
        (any::<bool>(), any::<bool>(), noise(plan())),
        |(agreed, continue_on_rank_loss, noise)| {
            let mut listener = listen(&secret);
            let tap = Tap::before(listener.address(), 2);
            let options =
                RankOptions { continue_on_rank_loss, ..options("noise", 0, 1, tap.address(), &secret) };
            let rank = thread::spawn(move || {
                let exchange = ServerExchange::open(options).unwrap();
                train_until_it_ends(&exchange)
            });
            let (mut control, data) = (accept(&mut listener), accept(&mut listener));
            if agreed {
                agree_by_hand(&mut control);
                assert!(matches!(next_message(&mut control), Some(Message::RoundEnd(_))));
            } else {
                proposed(&mut control);
            }
            for bytes in &noise {
                tap.inject(Direction::ToDialler, connection_of(bytes), &bytes.bytes);
            }
            drop((control, data));
            let error = rank.join().unwrap();
            assert!(!matches!(error, ExchangeError::Closed), "{error}");
            assert!(tap.ends(), "the rank retains a connection of a server that has left");
        },
    );
}

#[test]
#[cfg(target_os = "linux")]
fn a_rank_that_leaves_in_the_middle_of_a_sum_leaves_no_thread_behind() {
    let _guard = exclusive();
    let secret = Secret::draw().unwrap();
    let mut listener = listen(&secret);
    let tap = Tap::before(listener.address(), 2);
    let options = options("noise", 0, 1, tap.address(), &secret);
    let rank = thread::spawn(move || {
        let exchange = ServerExchange::open(options).unwrap();
        exchange.agree(tensors()).unwrap();
        exchange.push(TensorId(0), Gradient::from_bytes(vec![1; 28])).unwrap();
        exchange
    });
    let (mut control, mut data) = (accept(&mut listener), accept(&mut listener));
    agree_by_hand(&mut control);
    let pushed = data.receiver.header(Wait::within(LONG)).unwrap().expect("it pushes");
    let sum = Header { kind: Kind::Sum, contributors: 1, checksum: None, ..pushed };
    tap.inject(Direction::ToDialler, DATA, &[&sum.encode().unwrap()[..], &[0; 12]].concat());
    // Threads of an earlier test may not have ended yet.
    wait_until("no other reads sums", || sum_readers() == 1);
    drop(rank.join().unwrap());
    wait_until("the thread that waited for the rest has ended", || sum_readers() == 0);
    drop((control, data));
    assert!(tap.ends());
}

/// Threads of this process that read sums.
#[cfg(target_os = "linux")]
fn sum_readers() -> usize {
    let names = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path().join("comm"));
    // A thread may end during the search.
    let names = names.filter_map(|name| std::fs::read_to_string(name).ok());
    names.filter(|name| name.starts_with("foresee-recv")).count()
}

/// Train until the exchange fails, and return the error.
fn train_until_it_ends(exchange: &ServerExchange) -> ExchangeError {
    let trained = (|| {
        exchange.agree(tensors())?;
        for (tensor, spec) in (0..).map(TensorId).zip(tensors()) {
            let bytes = vec![1; usize::try_from(spec.shape[0]).unwrap() * 4];
            exchange.push(tensor, Gradient::from_bytes(bytes))?;
        }
        exchange.end_round(LONG)?;
        // Received averages stay available after a loss; the next round cannot end.
        let mut lost = Ok(());
        wait_until("the end of a rank whose server has left", || {
            lost = exchange.end_round(Duration::ZERO).map(drop);
            lost.is_err()
        });
        lost
    })();
    trained.expect_err("its server has left")
}

#[test]
fn a_data_connection_without_valid_frames_ends_the_job_with_the_reason() {
    let _guard = exclusive();
    let secret = Secret::draw().unwrap();
    let server = serve(&secret);
    for bytes in [&b"what is this?"[..], &[0xF5, 1, 1, 0x81]] {
        let tap = Tap::before(server.address(), 2);
        let [mut control, data] = dial_by_hand(tap.address(), &secret, false);
        propose(&mut control, plan());
        assert!(matches!(next_message(&mut control), Some(Message::Plan(_))));
        tap.inject(Direction::ToListener, DATA, &[bytes, &[0; 40]].concat());
        let Some(Message::Error(fault)) = next_message(&mut control) else {
            panic!("the rank received no reason")
        };
        assert_eq!((fault.code, fault.rank), (FaultCode::Protocol, Some(0)));
        assert!(fault.text.contains("a frame from 127.0.0.1"), "{fault}");
        drop((control, data));
        assert!(tap.ends());
    }
}
