// SPDX-License-Identifier: Apache-2.0
//! Events that end a wait, and those that do not: one suite for both pollers, and acknowledgments for epoll.

use std::io::IoSliceMut;
use std::time::Duration;

use foresee_testkit::{pause, takes_at_least, wait_until};

use super::*;
use crate::link::Link;
use crate::transport::Wait;
use crate::transport::process_tests::{plain, soon};

macro_rules! suite {
    ($module:ident, $poller:ty) => {
        mod $module {
            use super::*;

            #[test]
            fn a_wake_up_ends_the_current_wait_or_the_next_one() {
                let mut poller = <$poller>::new().unwrap();
                let (waker, mut events) = (poller.waker(), Vec::new());
                waker.wake();
                assert!(poller.wait(Wait::Forever, &mut events).unwrap());
                assert!(!poller.wait(Wait::Never, &mut events).unwrap());
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        pause(Duration::from_millis(20));
                        waker.wake();
                    });
                    assert!(poller.wait(Wait::Forever, &mut events).unwrap());
                });
                assert!(events.is_empty());
            }

            #[test]
            fn a_deadline_ends_only_its_own_wait() {
                let mut poller = <$poller>::new().unwrap();
                let mut events = Vec::new();
                for micros in [1, 300, 2_500, 40_000] {
                    let time = Duration::from_micros(micros);
                    takes_at_least(time, || assert!(!poller.wait(Wait::within(time), &mut events).unwrap()));
                }
                // A wait that another event ended leaves no deadline.
                let waker = poller.waker();
                waker.wake();
                assert!(poller.wait(Wait::within(Duration::from_millis(10)), &mut events).unwrap());
                let late = Duration::from_millis(50);
                takes_at_least(late, || {
                    std::thread::scope(|scope| {
                        scope.spawn(|| {
                            pause(late);
                            waker.wake();
                        });
                        assert!(poller.wait(Wait::Forever, &mut events).unwrap());
                    });
                });
            }

            #[test]
            fn buffer_space_ends_a_wait_only_on_request() {
                let (near, far) = plain();
                let mut poller = <$poller>::new().unwrap();
                let mut events = Vec::new();
                let short = || Wait::within(Duration::from_millis(20));
                poller.add(7, &Link::new(std::sync::Arc::clone(&near)), false).unwrap();
                assert!(!poller.wait(short(), &mut events).unwrap() && events.is_empty());
                poller.want_writable(7, true).unwrap();
                poller.wait(soon(), &mut events).unwrap();
                assert_eq!(events, [Event { token: 7, writable: true, acked: false, broken: false }]);

                let chunk = vec![0; 1 << 20];
                while near.send(&[std::io::IoSlice::new(&chunk)], short()).is_ok() {}
                assert!(!poller.wait(short(), &mut events).unwrap() && events.is_empty());
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        let mut sink = vec![0; 1 << 16];
                        while matches!(far.receive(&mut [IoSliceMut::new(&mut sink)], soon(), false), Ok(1..))
                        {
                        }
                    });
                    poller.wait(soon(), &mut events).unwrap();
                    assert!(events[0].writable && !events[0].broken);
                    near.shutdown();
                });
            }

            #[test]
            fn a_broken_connection_is_reported_once() {
                let ((near, far), (other, _far)) = (plain(), plain());
                let mut poller = <$poller>::new().unwrap();
                let mut events = Vec::new();
                poller.add(1, &Link::new(std::sync::Arc::clone(&near)), true).unwrap();
                poller.add(2, &Link::new(other), true).unwrap();
                // Unread bytes turn its end into a reset.
                near.send(&[std::io::IoSlice::new(b"x")], soon()).unwrap();
                far.tcp().peek(soon()).unwrap();
                drop(far);
                wait_until("the report of the broken connection", || {
                    poller.wait(soon(), &mut events).unwrap();
                    assert!(events.iter().all(|event: &Event| event.token == 1));
                    events.iter().any(|event| event.broken)
                });
                poller.wait(Wait::within(Duration::from_millis(30)), &mut events).unwrap();
                assert_eq!(events, []);
                poller.remove(1);
                poller.want_writable(1, true).unwrap();
            }
        }
    };
}

suite!(over_poll, portable::Poller);
#[cfg(target_os = "linux")]
suite!(over_epoll, Poller);

#[cfg(target_os = "linux")]
mod acks {
    use std::io::IoSlice;
    use std::sync::Arc;

    use foresee_units::Bytes;

    use super::*;
    use crate::socket::LinkOptions;
    use crate::transport::Transport;
    use crate::transport::process_tests::Pair;

    fn watched(pair: &Pair) -> (Poller, Link) {
        let mut poller = Poller::new().unwrap();
        let link = Link::new(Arc::clone(&pair.0));
        assert!(poller.add(1, &link, true).unwrap(), "this kernel has events of acknowledgments");
        (poller, link)
    }

    fn queued(link: &Link) -> Bytes {
        link.queued().unwrap().expect("Linux tells")
    }

    #[test]
    fn an_acknowledgment_ends_one_wait_and_leaves_the_queue_empty() {
        for pair in [plain(), crate::tls::process_tests::pair()] {
            let (mut poller, link) = watched(&pair);
            let mut events = Vec::new();
            for _ in 0..20 {
                pair.0.send(&[IoSlice::new(&[1; 5_000])], soon()).unwrap();
                poller.wait(soon(), &mut events).unwrap();
                assert_eq!(events, [Event { token: 1, writable: false, acked: true, broken: false }]);
                assert_eq!(queued(&link), Bytes::ZERO);
                // The queue is empty: no event repeats, so a waiting thread would not spin.
                poller.wait(Wait::within(Duration::from_millis(5)), &mut events).unwrap();
                assert_eq!(events, []);
            }
        }
    }

    #[test]
    fn many_acknowledgments_are_one_event() {
        let pair = plain();
        let (mut poller, link) = watched(&pair);
        let mut events = Vec::new();
        for _ in 0..10 {
            pair.0.send(&[IoSlice::new(&[1; 100])], soon()).unwrap();
            // Each packet is acknowledged before the next, so each has an entry of its own.
            wait_until("an acknowledgment", || queued(&link) == Bytes::ZERO);
        }
        pause(Duration::from_millis(10));
        poller.wait(soon(), &mut events).unwrap();
        assert_eq!(events.len(), 1);
        poller.wait(Wait::within(Duration::from_millis(5)), &mut events).unwrap();
        assert_eq!(events, []);
    }

    #[test]
    fn a_reader_sleeps_while_acknowledgments_come() {
        let pair = plain();
        let (mut poller, _link) = watched(&pair);
        std::thread::scope(|scope| {
            // `near` receives in one thread while another sends on it: only bytes may wake the reader.
            let reader = scope.spawn(|| {
                let mut got = [0; 1];
                let wait = Wait::within(Duration::from_millis(200));
                pair.0.receive(&mut [IoSliceMut::new(&mut got)], wait, false)
            });
            let mut events = Vec::new();
            for _ in 0..100 {
                pair.0.send(&[IoSlice::new(&[1; 100])], soon()).unwrap();
                poller.wait(soon(), &mut events).unwrap();
            }
            assert_eq!(reader.join().unwrap().unwrap_err().kind(), std::io::ErrorKind::TimedOut);
        });
    }

    #[test]
    fn the_queue_grows_while_a_reader_stops_and_drains_when_it_goes_on() {
        // A small receive buffer, so that few bytes fill it.
        let options = LinkOptions { receive_buffer: Some(Bytes::new(16 << 10)), ..LinkOptions::default() };
        let (near, far) = crate::socket::process_tests::pair(&options);
        let pair: Pair = (Arc::new(near), Arc::new(far));
        let (mut poller, link) = watched(&pair);
        let mut events = Vec::new();
        let chunk = vec![0; 100_000];
        let (mut sent, mut before) = (0, Bytes::ZERO);
        for _ in 0..8 {
            sent += pair.0.send(&[IoSlice::new(&chunk)], soon()).unwrap();
            let now = queued(&link);
            assert!(now >= before, "{before} fell to {now} although the peer does not read");
            before = now;
        }
        assert!(before > Bytes::new(500_000), "{before}");
        let info = link.info().unwrap().unwrap();
        assert!(info.unsent <= before && info.segment > Bytes::ZERO, "{info:?}");

        // The reader goes on: the queue drains, and acknowledgments wake the sender, which waits for nothing
        // else.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut sink, mut got) = (vec![0; 10_000], 0);
                while got < sent {
                    got += pair.1.receive(&mut [IoSliceMut::new(&mut sink)], soon(), false).unwrap();
                }
            });
            wait_until("the end of the queue", || {
                // A timer for dropped events.
                poller.wait(Wait::within(Duration::from_millis(100)), &mut events).unwrap();
                queued(&link) == Bytes::ZERO
            });
        });
        let info = link.info().unwrap().unwrap();
        assert_eq!((info.unacked, info.unsent), (0, Bytes::ZERO));
        assert_eq!(info.acked.get(), sent as u64 + 1, "the kernel counts the connection's first segment");
        assert!(info.min_rtt.is_some() && info.delivery_rate.is_some(), "{info:?}");
    }

    #[test]
    fn read_bytes_are_acknowledged_without_waiting_for_an_answer() {
        let (near, far) = plain();
        let link = Link::new(Arc::clone(&near));
        let pass = |from: &Arc<dyn Transport>, to: &Arc<dyn Transport>| {
            from.send(&[IoSlice::new(b"x")], soon()).unwrap();
            assert_eq!(to.receive(&mut [IoSliceMut::new(&mut [0])], soon(), true).unwrap(), 1);
        };
        for _ in 0..20 {
            // If an end answers, its system delays the acknowledgment up to 40 ms to send it with the next
            // answer, unless each read disables this.
            pass(&near, &far);
            pass(&far, &near);
            pass(&near, &far);
            assert!(rustix::net::sockopt::tcp_quickack(far.tcp()).unwrap());
            wait_until("the acknowledgment", || queued(&link) == Bytes::ZERO);
        }
    }

    #[test]
    fn a_dropped_poller_leaves_no_events_enabled() {
        let pair = plain();
        let (poller, link) = watched(&pair);
        drop(poller);
        pair.0.send(&[IoSlice::new(b"x")], soon()).unwrap();
        let (mut poller, mut events) = (Poller::new().unwrap(), Vec::new());
        poller.add(1, &link, false).unwrap();
        poller.wait(Wait::within(Duration::from_millis(30)), &mut events).unwrap();
        assert_eq!(events, []);
    }

    #[test]
    fn a_send_buffer_is_set_below_the_systems_limit_and_unchanged_above() {
        let (near, _far) = plain();
        let link = Link::new(near);
        let size = || rustix::net::sockopt::socket_send_buffer_size(link.tcp()).unwrap();
        let before = size();
        assert!(!link.limit_send_buffer(crate::sys::send_buffer_max()).unwrap());
        assert_eq!(size(), before);
        assert!(link.limit_send_buffer(Bytes::new(50_000)).unwrap());
        assert_eq!(size(), 2 * 100_000, "Linux doubles the requested size");
    }
}
