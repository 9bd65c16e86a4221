// SPDX-License-Identifier: Apache-2.0
//! Links of ranks that connect over the loopback, and ranks that do not connect.

use foresee_units::{Bytes, Nanos};

use super::*;

fn free_port() -> SocketAddr {
    let probe = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    probe.local_addr().expect("its address")
}

#[test]
fn rank_0_measures_the_link_to_every_other_rank() {
    let (address, secret) = (free_port(), Secret::draw().expect("a secret"));
    let (short, long) = (Duration::from_millis(2), Duration::from_secs(30));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| measure_links(address, 3, &secret, 2, short, long, &stop));
        let answering = [1, 2].map(|rank| {
            let (secret, stop) = (&secret, &stop);
            scope.spawn(move || answer_links(address, rank, 3, secret, long, stop))
        });
        let measured = asking.join().expect("no panic").expect("measurements");
        assert_eq!(measured.iter().map(|repeat| repeat.rank).collect::<Vec<_>>(), [1, 1, 2, 2]);
        for repeat in measured {
            assert!(repeat.sent.bytes >= Bytes::new(u64::from(FRAME)) && repeat.sent.took > Nanos::ZERO);
            assert!(repeat.rounds.operations > 0 && repeat.rounds.latency > Nanos::ZERO);
        }
        for rank in answering {
            rank.join().expect("no panic").expect("an orderly end");
        }
    });
}

#[test]
fn missing_ranks_are_counted_and_a_raised_flag_ends_the_wait() {
    let (address, secret) = (free_port(), Secret::draw().expect("a secret"));
    let none = Duration::ZERO;
    let alone = measure_links(address, 4, &secret, 1, none, none, &AtomicBool::new(false));
    assert!(alone.expect_err("no ranks").to_string().contains("0 of 3 ranks connected"));
    let stopped = measure_links(address, 2, &secret, 1, none, none, &AtomicBool::new(true));
    assert!(matches!(stopped, Err(CalibrateError::Stopped)));
    let refused = answer_links(address, 1, 2, &secret, none, &AtomicBool::new(false));
    assert!(matches!(refused, Err(CalibrateError::Wire(WireError::ConnectionRefused { .. }))), "{refused:?}");
}
