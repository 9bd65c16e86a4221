// SPDX-License-Identifier: Apache-2.0
//! The rules of [`Transport`], which every stream must follow; and [`Choked`], a stream of small steps.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foresee_testkit::{WATCHDOG, pause, takes_at_least};

use super::{Transport, Wait};
use crate::socket::LinkOptions;
use crate::socket::process_tests::pair as tcp_pair;
use crate::tcp::Tcp;

/// Two ends of one stream.
pub(crate) type Pair = (Arc<dyn Transport>, Arc<dyn Transport>);

pub(crate) fn soon() -> Wait {
    Wait::within(WATCHDOG)
}

pub(crate) fn plain() -> Pair {
    let (near, far) = tcp_pair(&LinkOptions::default());
    (Arc::new(near), Arc::new(far))
}

pub(crate) fn choked(seed: u64) -> Pair {
    let (near, far) = tcp_pair(&LinkOptions::default());
    (Arc::new(Choked::new(near, seed)), Arc::new(Choked::new(far, !seed)))
}

/// Accepts and returns 1 to 40 bytes at a time, and refuses every third call that must not wait.
#[derive(Debug)]
pub(crate) struct Choked {
    tcp: Tcp,
    chance: AtomicU64,
}

impl Choked {
    fn new(tcp: Tcp, seed: u64) -> Self {
        Self { tcp, chance: AtomicU64::new(seed) }
    }

    /// The number of bytes that may pass now; 0 if the call is refused.
    fn gap(&self, wait: Wait) -> io::Result<usize> {
        let z = foresee_units::mix(self.chance.fetch_add(foresee_units::GAMMA, Ordering::Relaxed));
        if wait == Wait::Never && z.is_multiple_of(3) {
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(usize::try_from(z / 3 % 40).unwrap() + 1)
    }
}

impl Transport for Choked {
    fn send(&self, slices: &[IoSlice<'_>], wait: Wait) -> io::Result<usize> {
        let gap = self.gap(wait)?;
        let Some(first) = slices.iter().find(|slice| !slice.is_empty()) else { return Ok(0) };
        self.tcp.send(&[IoSlice::new(&first[..first.len().min(gap)])], wait)
    }

    fn flush(&self, wait: Wait) -> io::Result<()> {
        self.tcp.flush(wait)
    }

    fn receive(&self, slices: &mut [IoSliceMut<'_>], wait: Wait, whole: bool) -> io::Result<usize> {
        let gap = self.gap(wait)?;
        let Some(first) = slices.iter_mut().find(|slice| !slice.is_empty()) else { return Ok(0) };
        let len = first.len().min(gap);
        self.tcp.receive(&mut [IoSliceMut::new(&mut first[..len])], wait, whole)
    }

    fn held(&self) -> usize {
        0
    }

    fn binding(&self) -> Option<[u8; 32]> {
        None
    }

    fn tcp(&self) -> &Tcp {
        &self.tcp
    }
}

/// Check every rule, each on a stream of its own.
pub(crate) fn suite(pair: impl Fn() -> Pair) {
    bytes_arrive_once_and_in_order_while_both_ends_send(&pair());
    nothing_there_and_no_wait_is_would_block(&pair());
    a_deadline_ends_a_wait_and_not_before(&pair());
    a_full_stream_blocks_and_resumes(&pair());
    an_end_is_read_after_what_was_sent(pair());
    shutdown_ends_whoever_waits(&pair());
    facts_are_the_sockets(&pair());
}

fn bytes_arrive_once_and_in_order_while_both_ends_send((near, far): &Pair) {
    const BYTES: usize = 1 << 20;
    let sent: Vec<u8> = (0..BYTES).map(|at| u8::try_from(at * 31 % 251).unwrap()).collect();
    let send_all = |end: &dyn Transport| {
        let mut done = 0;
        while done < BYTES {
            let (middle, stop) = (BYTES.min(done + 1000), BYTES.min(done + 90_000));
            let slices =
                [IoSlice::new(&sent[done..middle]), IoSlice::new(&[]), IoSlice::new(&sent[middle..stop])];
            let count = end.send(&slices, soon()).unwrap();
            assert!(count > 0, "at least one byte is accepted");
            done += count;
        }
        end.flush(soon()).unwrap();
        assert_eq!(end.held(), 0);
    };
    let receive_all = |end: &dyn Transport| {
        let mut got = vec![0; BYTES];
        let mut done = 0;
        while done < BYTES {
            let (first, second) = got[done..].split_at_mut(500.min(BYTES - done));
            let mut slices = [IoSliceMut::new(first), IoSliceMut::new(second)];
            let count = end.receive(&mut slices, soon(), done % 2 == 0).unwrap();
            assert!(count > 0, "the end came too early");
            done += count;
        }
        assert!(got == sent, "other bytes came than were sent");
    };
    std::thread::scope(|scope| {
        for end in [near, far] {
            scope.spawn(|| send_all(&**end));
            scope.spawn(|| receive_all(&**end));
        }
    });
}

fn nothing_there_and_no_wait_is_would_block((near, _far): &Pair) {
    let fault = near.receive(&mut [IoSliceMut::new(&mut [0; 8])], Wait::Never, false).unwrap_err();
    assert_eq!(fault.kind(), ErrorKind::WouldBlock);
}

fn a_deadline_ends_a_wait_and_not_before((near, far): &Pair) {
    let time = Duration::from_millis(60);
    for whole in [false, true] {
        let fault = takes_at_least(time, || {
            near.receive(&mut [IoSliceMut::new(&mut [0; 8])], Wait::within(time), whole).unwrap_err()
        });
        assert_eq!(fault.kind(), ErrorKind::TimedOut);
    }
    // A wait that is over returns what is there, and does not shorten the next one without a limit.
    far.send(&[IoSlice::new(b"a")], soon()).unwrap();
    let mut got = [0; 8];
    assert_eq!(near.receive(&mut [IoSliceMut::new(&mut got)], soon(), false).unwrap(), 1);
    let over = Wait::within(Duration::ZERO);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let fault = near.receive(&mut [IoSliceMut::new(&mut [0; 8])], over, false).unwrap_err();
            assert!(matches!(fault.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock));
            let mut got = [0; 8];
            assert_eq!(near.receive(&mut [IoSliceMut::new(&mut got)], Wait::Forever, false).unwrap(), 1);
        });
        pause(2 * time);
        far.send(&[IoSlice::new(b"b")], soon()).unwrap();
    });
}

fn a_full_stream_blocks_and_resumes((near, far): &Pair) {
    let chunk = vec![7; 64 << 10];
    let mut sent = 0;
    // Buffers grow while they fill: a buffer is full if it accepts nothing for a while.
    loop {
        assert!(sent < 1 << 30, "a stream without reader takes everything");
        match near.send(&[IoSlice::new(&chunk)], Wait::within(Duration::from_millis(100))) {
            Ok(count) => sent += count,
            Err(why) => break assert_eq!(why.kind(), ErrorKind::TimedOut),
        }
    }
    // The system wakes a waiting sender when a third of a buffer is free; a call without waiting may find less.
    loop {
        match near.send(&[IoSlice::new(&chunk)], Wait::Never) {
            Ok(count) => sent += count,
            Err(why) => break assert_eq!(why.kind(), ErrorKind::WouldBlock),
        }
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let count = near.send(&[IoSlice::new(b"end")], soon()).unwrap();
            near.flush(soon()).unwrap();
            assert!(count > 0);
        });
        let mut got = vec![0; 1 << 16];
        let mut received = 0;
        while received <= sent {
            received += far.receive(&mut [IoSliceMut::new(&mut got)], soon(), false).unwrap();
        }
    });
}

fn an_end_is_read_after_what_was_sent((near, far): Pair) {
    let mut done = 0;
    while done < 4 {
        done += near.send(&[IoSlice::new(&b"last"[done..])], soon()).unwrap();
    }
    near.flush(soon()).unwrap();
    near.tcp().finish();
    drop(near);
    let mut got = [0; 16];
    let mut len = 0;
    loop {
        match far.receive(&mut [IoSliceMut::new(&mut got[len..])], soon(), false).unwrap() {
            0 => break,
            count => len += count,
        }
    }
    assert_eq!(&got[..len], b"last");
}

fn shutdown_ends_whoever_waits((near, far): &Pair) {
    let chunk = vec![7; 64 << 10];
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| near.receive(&mut [IoSliceMut::new(&mut [0; 8])], Wait::Forever, true));
        let writer = scope.spawn(|| while near.send(&[IoSlice::new(&chunk)], Wait::Forever).is_ok() {});
        pause(Duration::from_millis(50));
        assert!(!reader.is_finished() && !writer.is_finished());
        near.shutdown();
        assert!(matches!(reader.join().unwrap(), Ok(0) | Err(_)));
        writer.join().unwrap();
    });
    assert!(near.tcp().is_closed());
    assert!(near.send(&[IoSlice::new(b"x")], Wait::Never).is_err());
    drop(Arc::clone(far));
}

fn facts_are_the_sockets((near, far): &Pair) {
    assert_eq!(near.tcp().peer(), far.tcp().local());
    assert_eq!(near.binding(), far.binding());
    assert_eq!(near.held(), 0);
}

#[test]
fn tcp_follows_the_rules_of_a_transport() {
    suite(plain);
}

#[test]
fn a_stream_of_small_steps_follows_the_rules_of_a_transport() {
    suite(|| choked(7));
}

#[test]
fn tls_follows_the_rules_of_a_transport() {
    suite(crate::tls::process_tests::pair);
}
