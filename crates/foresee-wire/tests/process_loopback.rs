// SPDX-License-Identifier: Apache-2.0
//! A rank and a server over the loopback, with the public interface only, as a driver uses it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use foresee_testkit::{WATCHDOG, pause};
use foresee_units::{Bytes, BytesPerSecond, Dtype, Nanos};
use foresee_wire::{
    Connection, DialOptions, Event, Header, Hello, Kind, LinkOptions, ListenOptions, Listener, Message, Ping,
    Poller, Purpose, Role, Secret, Sending, Silence, Timeouts, TlsClient, TlsServer, Wait, Welcome,
    WireError, dial, drain_time,
};

fn soon() -> Wait {
    Wait::within(WATCHDOG)
}

fn secret() -> Secret {
    Secret::from_text("a secret of this test").unwrap()
}

fn hello(role: Role) -> Hello {
    Hello::new(Purpose::Gradients, role, "loopback", 0, 1)
}

/// Two ends of an authenticated connection, the dialled one first.
fn connect(role: Role, tls: bool, link: &LinkOptions, timeout: Nanos) -> (Connection, Connection) {
    let timeouts = Timeouts::new(timeout).unwrap();
    let server = tls.then(|| TlsServer::drawn().unwrap());
    let client = tls.then(|| TlsClient::by_secret().unwrap());
    let options = ListenOptions { tls: server, timeouts, link: link.clone(), ..ListenOptions::default() };
    let anywhere = (Ipv4Addr::LOCALHOST, 0).into();
    let mut listener = Listener::bind(anywhere, Arc::new(|_| Some(secret())), options).unwrap();
    let there = listener.address();
    let options = DialOptions { tls: client, timeouts, link: link.clone() };
    std::thread::scope(|scope| {
        let near = scope.spawn(move || dial(there, hello(role), &secret(), &options, soon()).unwrap());
        let arrival = listener.accept(soon()).unwrap().expect("a rank in time");
        let far = arrival.welcome(Welcome::default(), soon()).unwrap();
        (near.join().unwrap(), far)
    })
}

fn usual() -> Nanos {
    Nanos::from_secs(30)
}

fn push(packet: u32, class: u16, payload: &[u8]) -> Header {
    let length = u32::try_from(payload.len()).unwrap();
    Header { dtype: Some(Dtype::F32), packet, class, ..Header::control(Kind::Push, 0, length) }
}

#[test]
fn packets_and_sums_share_one_connection_in_both_directions() {
    const PACKETS: u32 = 400;
    for tls in [false, true] {
        let (mut near, mut far) = connect(Role::Data, tls, &LinkOptions::default(), usual());
        let gradient: Vec<u8> = (0..30_016_u32).map(|at| u8::try_from(at % 249).unwrap()).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for packet in 0..PACKETS {
                    near.sender
                        .send_all(&push(packet, 0, &gradient).sealed(&gradient), &gradient, soon())
                        .unwrap();
                }
            });
            scope.spawn(|| {
                let mut sum = vec![0; gradient.len()];
                for packet in 0..PACKETS {
                    let header = near.receiver.header(soon()).unwrap().expect("a sum");
                    assert_eq!((header.kind, header.packet, header.contributors), (Kind::Sum, packet, 1));
                    near.receiver.payload(&mut sum, soon()).unwrap();
                    assert!(sum == gradient);
                }
            });
            let mut slot = vec![0; gradient.len()];
            for _ in 0..PACKETS {
                let header = far.receiver.header(soon()).unwrap().expect("a packet");
                far.receiver.payload(&mut slot, soon()).unwrap();
                let sum = Header { kind: Kind::Sum, contributors: 1, checksum: None, ..header };
                far.sender.send_all(&sum.sealed(&slot), &slot, soon()).unwrap();
            }
        });
    }
}

#[test]
fn a_window_by_queued_bytes_lets_an_urgent_packet_pass_the_bulk() {
    const WINDOW: u64 = 60_000;
    const BULK: u32 = 600;
    let (mut near, mut far) = connect(Role::Data, false, &LinkOptions::default(), usual());
    let bulk = vec![1; 30_000];
    let link = near.link();
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let (mut slot, mut order) = (vec![0; 30_000], Vec::new());
            while let Some(header) = far.receiver.header(soon()).unwrap() {
                // A slow reader, so that sent bytes have to queue.
                pause(Duration::from_micros(200));
                far.receiver.payload(&mut slot, soon()).unwrap();
                order.push(header.class);
            }
            order
        });

        let mut poller = Poller::new().unwrap();
        poller.add(0, &link, true).unwrap();
        let mut events: Vec<Event> = Vec::new();
        let (mut packet, mut waits) = (0, 0);
        while packet < BULK {
            let queued = link.queued().unwrap().unwrap_or(Bytes::ZERO);
            assert!(queued <= Bytes::new(WINDOW + 30_032), "{queued} are in flight");
            if queued <= Bytes::new(WINDOW) {
                // One packet is urgent, and is offered in the middle of the stream.
                let class = if packet == BULK / 2 { 0 } else { 9 };
                let mut state = near.sender.send(&push(packet, class, &bulk), &bulk).unwrap();
                while state != Sending::Done {
                    poller.want_writable(0, true).unwrap();
                    poller.wait(soon(), &mut events).unwrap();
                    state = match state {
                        Sending::Blocked => near.sender.send(&push(packet, class, &bulk), &bulk).unwrap(),
                        _ => near.sender.resume(&bulk).unwrap(),
                    };
                }
                poller.want_writable(0, false).unwrap();
                packet += 1;
            } else {
                let timer = drain_time(queued, Bytes::new(WINDOW), BytesPerSecond::new(1_000_000)).unwrap();
                poller.wait(Wait::within(timer), &mut events).unwrap();
                waits += 1;
            }
        }
        // The system determines the number of acknowledgments. One that stays in the queue would wake the poller
        // a hundred thousand times a second.
        assert!(waits < 100 * BULK, "{waits} wake-ups for {BULK} packets: it spins");
        drop(poller);
        link.shutdown();
        let order = reader.join().unwrap();
        assert_eq!(order.len(), BULK as usize);
        assert_eq!(order.iter().position(|&class| class == 0), Some(BULK as usize / 2));
    });
}

#[test]
fn a_data_connection_outlives_a_reader_that_stops_for_longer_than_the_timeout() {
    let timeout = Nanos::from_millis(300);
    let small = LinkOptions { receive_buffer: Some(Bytes::new(16 << 10)), ..LinkOptions::default() };
    let (mut near, mut far) = connect(Role::Data, false, &small, timeout);
    let payload = vec![3; 16 << 20];
    let header = push(0, 0, &payload);
    assert_eq!(near.sender.send(&header, &payload).unwrap(), Sending::Half);

    // The peer is alive and does not read: its window is closed. The kernel's own timeout would end the
    // connection here.
    let mut silence = Silence::new(timeout, Nanos::ZERO);
    for tenth in 1..=12 {
        pause(Duration::from_millis(100));
        let now = Nanos::from_millis(100 * tenth);
        if let Some(info) = near.link().info().unwrap() {
            silence.handle_info(&info, now);
            assert!(!silence.is_dead(now), "a slow peer counts as dead: {info:?}");
        }
    }
    std::thread::scope(|scope| {
        scope.spawn(|| near.sender.resume_all(&payload, soon()).unwrap());
        assert_eq!(far.receiver.header(soon()).unwrap(), Some(header));
        let mut got = vec![0; payload.len()];
        far.receiver.payload(&mut got, soon()).unwrap();
        assert!(got == payload);
    });
}

#[test]
fn messages_pass_both_ways_and_a_late_one_can_be_awaited_again() {
    for tls in [false, true] {
        let (mut near, mut far) = connect(Role::Control, tls, &LinkOptions::default(), usual());
        let late = near.receiver.next_message(Wait::within(Duration::from_millis(20))).unwrap_err();
        assert!(late.is_late(), "{late}");
        for number in 0..100 {
            let ping = Message::Ping(Ping { number });
            near.sender.send_message(&ping, 0, soon()).unwrap();
            far.sender.send_message(&ping, 0, soon()).unwrap();
            assert_eq!(near.receiver.next_message(soon()).unwrap().as_ref(), Some(&ping));
            assert_eq!(far.receiver.next_message(soon()).unwrap().as_ref(), Some(&ping));
        }
    }
}

#[test]
fn a_lost_peer_is_an_end_a_cut_or_a_failure_and_never_a_hang() {
    for tls in [false, true] {
        let (near, mut far) = connect(Role::Data, tls, &LinkOptions::default(), usual());
        let Connection { mut sender, mut receiver, .. } = near;
        let payload = vec![0; 1 << 20];
        std::thread::scope(|scope| {
            // It sends until it is stopped: the kernels on the path determine how much they accept.
            let writer = scope.spawn(|| {
                loop {
                    if let Err(fault) = sender.send_all(&push(0, 0, &payload), &payload, Wait::Forever) {
                        return fault;
                    }
                }
            });
            let reader = scope.spawn(|| receiver.header(Wait::Forever));
            let first = far.receiver.header(soon()).unwrap();
            assert_eq!(first, Some(push(0, 0, &payload)), "the peer lives until it is dropped");
            drop(far);
            let fault = writer.join().unwrap();
            assert!(matches!(fault, WireError::Io { doing: "sending to", .. }), "{fault}");
            assert!(matches!(reader.join().unwrap(), Ok(None) | Err(WireError::Io { .. })));
        });
    }
}

#[test]
fn a_server_that_is_down_and_one_of_another_job_are_distinguished() {
    let options = ListenOptions::default();
    let anywhere: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
    let keys = Arc::new(|hello: &Hello| (hello.job == "another").then(secret));
    let listener = Listener::bind(anywhere, keys, options).unwrap();
    let there = listener.address();
    let fault = dial(there, hello(Role::Control), &secret(), &DialOptions::default(), soon()).unwrap_err();
    assert!(matches!(fault, WireError::SecretDiffers { peer } if peer == there), "{fault}");
    drop(listener);
    let fault = dial(there, hello(Role::Control), &secret(), &DialOptions::default(), soon()).unwrap_err();
    assert!(matches!(fault, WireError::ConnectionRefused { peer } if peer == there), "{fault}");
}
