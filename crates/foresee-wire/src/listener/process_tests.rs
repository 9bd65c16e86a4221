// SPDX-License-Identifier: Apache-2.0
//! Many unauthenticated connections with real ranks among them; the end of a listener.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};

use foresee_testkit::{WATCHDOG, pause, wait_until};
use foresee_units::Nanos;

use super::*;
use crate::handshake::{DialOptions, dial};
use crate::hello::tests::hello;
use crate::hello::{Hello, Welcome};
use crate::secret::Secret;
use crate::transport::process_tests::soon;

fn secret() -> Secret {
    Secret::from_text("the secret of this job").unwrap()
}

fn listener(options: ListenOptions) -> Listener {
    Listener::bind((Ipv4Addr::UNSPECIFIED, 0).into(), Arc::new(|_| Some(secret())), options).unwrap()
}

fn address(listener: &Listener) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, listener.address().port()).into()
}

/// A rank that dials and is accepted.
fn visit(listener: &mut Listener, rank: u32) {
    let there = address(listener);
    std::thread::scope(|scope| {
        let hello = Hello { rank, ..hello() };
        let dialler = scope.spawn(move || dial(there, hello, &secret(), &DialOptions::default(), soon()));
        let arrival = listener.accept(soon()).unwrap().expect("a rank in time");
        assert_eq!(arrival.hello().rank, rank);
        let near = arrival.welcome(Welcome::default(), soon()).unwrap();
        let far = dialler.join().unwrap().unwrap();
        assert_eq!(near.link().peer(), far.link().local());
        assert_eq!(near.hello, far.hello);
    });
}

/// Connect from another address and send nothing.
fn silent(there: SocketAddr, last: u8) -> TcpStream {
    let local = Some(Ipv4Addr::new(127, 0, 0, last).into());
    let options = LinkOptions { local, ..LinkOptions::default() };
    let tcp = socket::dial(there, &options, soon()).unwrap();
    rustix::io::dup(&tcp).unwrap().into()
}

#[test]
fn ranks_arrive_with_and_without_tls() {
    for tls in [None, Some(TlsServer::drawn().unwrap())] {
        let client = tls.is_some().then(|| crate::TlsClient::by_secret().unwrap());
        let mut listener = listener(ListenOptions { tls, ..ListenOptions::default() });
        let there = address(&listener);
        for rank in 0..4 {
            let options = DialOptions { tls: client.clone(), ..DialOptions::default() };
            std::thread::scope(|scope| {
                let hello = Hello { rank, ..hello() };
                let dialler = scope.spawn(move || dial(there, hello, &secret(), &options, soon()));
                let arrival = listener.accept(soon()).unwrap().expect("a rank in time");
                let near = arrival.welcome(Welcome::default(), soon()).unwrap();
                assert_eq!(near.hello.rank, rank);
                assert_eq!(near.link().is_encrypted(), client.is_some());
                dialler.join().unwrap().unwrap();
            });
        }
        let counts = listener.counts();
        assert_eq!((counts.accepted, counts.authenticated, counts.failed), (4, 4, 0));
    }
}

#[test]
fn a_flood_of_connections_from_one_address_evicts_its_own_and_no_rank() {
    let mut listener = listener(ListenOptions { pending_max: 8, ..ListenOptions::default() });
    let there = address(&listener);
    let first = silent(there, 2);
    let flood: Vec<_> = (0..40).map(|_| silent(there, 3)).collect();
    wait_until("all came", || listener.counts().accepted == 41);
    assert_eq!(listener.counts().evicted, 33);
    assert_eq!(listener.shared.state().pending.len(), 8);
    for rank in 0..4 {
        visit(&mut listener, rank);
    }
    // The stranger of the other address came first and stays: its address had one connection, the other one more.
    first.set_nonblocking(true).unwrap();
    assert_eq!((&first).read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    let mut oldest = &flood[0];
    oldest.set_read_timeout(Some(WATCHDOG)).unwrap();
    assert!(matches!(oldest.read(&mut [0]), Ok(0) | Err(_)));
}

#[test]
fn failures_are_counted_and_stored_up_to_a_bound() {
    let handshake = Nanos::from_millis(100);
    let timeouts = Timeouts { handshake, ..Timeouts::default() };
    let mut listener = listener(ListenOptions { timeouts, ..ListenOptions::default() });
    let there = address(&listener);
    let _silent = silent(there, 1);
    wait_until("one was late", || listener.counts().timed_out == 1);
    for _ in 0..70 {
        let mut stranger = TcpStream::connect(there).unwrap();
        stranger.write_all(&[b'?'; 40]).unwrap();
        let _ = stranger.read(&mut [0]);
    }
    let wrong = Secret::from_text("the secret of that job").unwrap();
    let fault = dial(there, hello(), &wrong, &DialOptions::default(), soon()).unwrap_err();
    assert!(matches!(fault, WireError::SecretDiffers { .. }), "{fault}");
    wait_until("all failed", || listener.counts().failed == 71);
    let failures = listener.take_failures();
    assert_eq!(failures.len(), FAILURES_MAX);
    assert!(matches!(failures[FAILURES_MAX - 1], WireError::SecretDiffers { .. }));
    assert!(listener.take_failures().is_empty());
    visit(&mut listener, 0);
}

#[test]
fn no_dialler_in_time_is_not_an_error() {
    let mut listener = listener(ListenOptions::default());
    assert!(listener.accept(Wait::Never).unwrap().is_none());
    assert!(listener.accept(Wait::within(Duration::from_millis(20))).unwrap().is_none());
}

#[test]
fn closing_ends_a_waiting_accept_and_every_unauthenticated_connection() {
    let mut listener = listener(ListenOptions::default());
    let mut stranger = silent(address(&listener), 1);
    wait_until("it came", || listener.counts().accepted == 1);
    let closer = listener.closer();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pause(Duration::from_millis(30));
            closer.close();
        });
        assert!(matches!(listener.accept(Wait::Forever), Err(WireError::Closed { .. })));
    });
    stranger.set_read_timeout(Some(WATCHDOG)).unwrap();
    assert!(matches!(stranger.read(&mut [0]), Ok(0) | Err(_)));
    let there = address(&listener);
    drop(listener);
    assert!(TcpStream::connect(there).is_err(), "the port is free again");
}

#[test]
fn a_rank_that_was_handed_over_survives_the_end_of_the_listener() {
    for _ in 0..200 {
        let mut listener = listener(ListenOptions::default());
        let there = address(&listener);
        std::thread::scope(|scope| {
            let near = scope.spawn(move || dial(there, hello(), &secret(), &DialOptions::default(), soon()));
            let arrival = listener.accept(soon()).unwrap().expect("a rank in time");
            // Its thread may still run.
            drop(listener);
            let far = arrival.welcome(Welcome::default(), soon()).unwrap();
            assert!(!far.link().tcp().is_closed());
            near.join().unwrap().unwrap();
        });
    }
}

#[test]
fn dropping_a_listener_waits_for_its_threads() {
    let listener = listener(ListenOptions::default());
    let unauthenticated: Vec<_> = (0..20).map(|_| silent(address(&listener), 1)).collect();
    wait_until("all came", || listener.counts().accepted == 20);
    let shared = Arc::downgrade(&listener.shared);
    drop(listener);
    wait_until("no thread holds it", || shared.strong_count() == 0);
    drop(unauthenticated);
}

#[test]
fn a_port_in_use_is_an_error_before_any_thread_starts() {
    let first = listener(ListenOptions::default());
    let keys: Keys = Arc::new(|_| None);
    let message = Listener::bind(first.address(), keys, ListenOptions::default()).unwrap_err().to_string();
    assert!(message.contains("is in use by another process; choose another port"), "{message}");
}
