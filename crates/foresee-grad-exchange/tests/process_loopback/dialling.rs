// SPDX-License-Identifier: Apache-2.0
//! Ranks that dial a server that is busy or does not answer.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use foresee_grad_exchange::{GradientExchange, RankOptions, Server, ServerExchange, ServerOptions};
use foresee_testkit::pause;
use foresee_units::Nanos;
use foresee_wire::{Fault, FaultCode, Hello, ListenOptions, Listener, Secret, Timeouts, Wait};

use crate::setup::{LONG, Setup, tensors};

#[test]
fn a_rank_that_a_busy_server_refuses_dials_until_it_is_admitted_or_times_out() {
    let (setup, secret) = (Setup::new(1, 0), Secret::draw().unwrap());
    let anywhere = "127.0.0.1:0".parse().unwrap();
    let options = ServerOptions { jobs: 1, ..ServerOptions::new(anywhere, secret.clone()) };
    let servers = [Server::start(options).unwrap()];
    let before = ServerExchange::open(setup.rank(0, &servers, &secret)).unwrap();
    before.agree(tensors()).unwrap();
    let other = RankOptions {
        job: "other".into(),
        timeouts: Timeouts::new(Nanos::from_secs(1)).unwrap(),
        ..setup.rank(0, &servers, &secret)
    };
    let full = ServerExchange::open(other).unwrap_err().to_string();
    assert!(full.contains("1 jobs are served, and no more may be; start another server"), "{full}");
    let options = setup.rank(0, &servers, &secret);
    let after = thread::spawn(move || {
        let exchange = ServerExchange::open(options).unwrap();
        exchange.agree(tensors()).unwrap();
    });
    pause(Duration::from_millis(250));
    assert!(!after.is_finished(), "two processes are one rank");
    drop(before);
    after.join().unwrap();
}

#[test]
fn a_rank_that_times_out_during_an_attempt_reports_the_earlier_refusal() {
    let (setup, secret) = (Setup::new(1, 1), Secret::draw().unwrap());
    let key = secret.clone();
    let keys = Arc::new(move |_: &Hello| Some(key.clone()));
    let anywhere = "127.0.0.1:0".parse().unwrap();
    let mut listener = Listener::bind(anywhere, keys, ListenOptions::default()).unwrap();
    let options = RankOptions {
        servers: vec![listener.address()],
        timeouts: Timeouts::new(Nanos::from_secs(1)).unwrap(),
        ..setup.rank(0, &[], &secret)
    };
    let rank = thread::spawn(move || ServerExchange::open(options).unwrap_err().to_string());
    let first = listener.accept(Wait::within(LONG)).unwrap().expect("the rank dials");
    first.refuse(Fault::new(FaultCode::Busy, "rank 0 is here already"), Wait::within(LONG)).unwrap();
    // The second attempt gets no answer.
    let second = listener.accept(Wait::within(LONG)).unwrap();
    let error = rank.join().unwrap();
    assert!(second.is_some() && error.contains("rank 0 is here already"), "{error}");
}
