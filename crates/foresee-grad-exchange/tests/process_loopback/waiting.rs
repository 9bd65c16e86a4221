// SPDX-License-Identifier: Apache-2.0
//! A rank that does nothing while its process lives: it is no error, and the others say whom they wait for.

use std::thread;
use std::time::Duration;

use foresee_grad_exchange::{Exchange, Gradient, Waited};
use foresee_grad_queue::{TensorId, TensorSpec};
use foresee_testkit::{pause, wait_until};
use foresee_units::Nanos;
use foresee_wire::Secret;

use crate::setup::{LONG, Setup, end, ids, tensors};
use crate::values::gradient;

fn push(rank: &Exchange, tensors: &[(TensorId, &TensorSpec)]) {
    for (tensor, spec) in tensors {
        rank.push(*tensor, Gradient::from_bytes(gradient(spec, rank.rank().0, 0))).unwrap();
    }
}

/// What each of these ranks hears that a server waits for.
fn until_each_hears(ranks: &[&Exchange], whom: &str) {
    for rank in ranks {
        wait_until(whom, || rank.missing().contains(whom));
    }
}

#[test]
fn a_rank_that_stops_without_a_word_is_named_and_is_no_error() {
    let (setup, secret) =
        (Setup { say: Nanos::from_millis(40), ..Setup::new(3, 1) }, Secret::draw().unwrap());
    let servers = setup.serve(&secret);
    let open = |rank| Exchange::open(setup.rank(rank, &servers, &secret)).unwrap();
    let (zero, one) = (open(0), open(1));
    let others = [&zero, &one];
    let specs = tensors();
    let two = thread::scope(|scope| {
        for rank in others {
            scope.spawn(|| rank.agree(specs.clone()).unwrap());
        }
        until_each_hears(&others, "no plan was agreed on; server 0 waits for rank 2 to come");
        let two = open(2);
        until_each_hears(&others, "server 0 waits for rank 2 to propose its tensors");
        two.agree(specs.clone()).unwrap();
        two
    });
    assert!(others.iter().all(|rank| rank.waits().is_empty()));
    // Nobody has begun: they may all be at work for as long as they like.
    pause(Duration::from_millis(200));
    assert!(others.iter().all(|rank| rank.waits().is_empty()));
    let all: Vec<_> = ids(&specs).into_iter().zip(&specs).collect();
    for rank in others {
        push(rank, &all);
        end(rank);
    }
    push(&two, &all[1..]);
    let owed = "server 0 waits for rank 2 to end round 0; 30 packets of 'embedding' of rank 2 have not come";
    until_each_hears(&others, owed);
    push(&two, &all[..1]);
    until_each_hears(&others, "server 0 waits for rank 2 to end round 0");
    assert!(two.waits().is_empty(), "it does not wait: {}", two.missing());
    end(&two);
    for rank in others.into_iter().chain([&two]) {
        assert_eq!(rank.wait_all(LONG).unwrap(), Waited::Landed);
    }
    // Word that the round is over travels beside its sums.
    wait_until("the end of every wait", || {
        [&zero, &one, &two].into_iter().all(|rank| rank.waits().is_empty())
    });
}
