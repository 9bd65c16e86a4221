// SPDX-License-Identifier: Apache-2.0
//! Both halves over real sockets: partial writes, slow readers, broken connections and deadlines.

use std::io::IoSlice;
use std::time::Duration;

use foresee_testkit::{pause, property};
use proptest::prelude::*;

use super::tests::{payload, push};
use super::*;
use crate::control::{Message, Ping};
use crate::error::WireError;
use crate::frame::{Header, Kind};
use crate::send::Sending;
use crate::transport::Wait;
use crate::transport::process_tests::{Pair, choked, plain, soon};

fn halves((near, far): &Pair) -> (Halves, Halves) {
    (Halves::new(Arc::clone(near)), Halves::new(Arc::clone(far)))
}

/// Send without waiting in a call, and wait between calls, as a poller does.
fn send_patiently(sender: &mut FrameSender, header: &Header, payload: &[u8]) {
    let mut state = sender.send(header, payload).unwrap();
    while state != Sending::Done {
        std::thread::yield_now();
        state = match state {
            Sending::Blocked => sender.send(header, payload).unwrap(),
            _ => sender.resume(payload).unwrap(),
        };
    }
    assert!(!sender.is_half_written());
}

fn frames_survive(pair: &Pair, lengths: &[usize], seal: bool) {
    let (mut near, mut far) = halves(pair);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (at, &length) in lengths.iter().enumerate() {
                let body = payload(at, length);
                let header = push(u32::try_from(at).unwrap(), length);
                let header = if seal { header.sealed(&body) } else { header };
                send_patiently(&mut near.sender, &header, &body);
            }
            near.sender.link().tcp().finish();
        });
        for (at, &length) in lengths.iter().enumerate() {
            let header = far.receiver.header(soon()).unwrap().expect("a frame");
            assert_eq!((header.packet as usize, header.length as usize), (at, length));
            let mut body = vec![0; length];
            far.receiver.payload(&mut body, soon()).unwrap();
            assert!(body == payload(at, length), "frame {at} has other bytes");
        }
        assert_eq!(far.receiver.header(soon()).unwrap(), None);
    });
}

const LENGTHS: [usize; 12] = [0, 1, 31, 32, 33, 64, 0, 0, 30_016, 65_536, 100_000, 5];

#[test]
fn frames_of_all_lengths_survive_every_stream() {
    frames_survive(&plain(), &LENGTHS, true);
    frames_survive(&choked(1), &LENGTHS, false);
    frames_survive(&crate::tls::process_tests::pair(), &LENGTHS, true);
}

proptest! {
    #![proptest_config(property(40))]

    #[test]
    fn frames_survive_any_partial_writes(
        seed in any::<u64>(), lengths in proptest::collection::vec(0_usize..300, 1..20), seal in any::<bool>(),
    ) {
        frames_survive(&choked(seed), &lengths, seal);
    }

    #[test]
    fn batches_survive_any_partial_writes(
        seed in any::<u64>(), lengths in proptest::collection::vec(0_usize..100, 1..80), limit in 0_usize..2000,
    ) {
        let (mut near, mut far) = halves(&choked(seed));
        let bodies: Vec<_> = lengths.iter().enumerate().map(|(at, &length)| payload(at, length)).collect();
        let frames: Vec<_> = bodies
            .iter()
            .enumerate()
            .map(|(at, body)| (push(u32::try_from(at).unwrap(), body.len()), &body[..]))
            .collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut rest = &frames[..];
                while !rest.is_empty() {
                    let sent = near.sender.send_frames(rest, limit).unwrap();
                    assert_eq!(sent.state == Sending::Half, near.sender.is_half_written());
                    assert!((sent.state == Sending::Blocked) == (sent.begun == 0));
                    while near.sender.is_half_written() {
                        let _ = near.sender.resume(rest[sent.begun - 1].1).unwrap();
                    }
                    rest = &rest[sent.begun..];
                }
            });
            for (header, body) in &frames {
                assert_eq!(far.receiver.header(soon()).unwrap(), Some(*header));
                let mut got = vec![0; body.len()];
                far.receiver.payload(&mut got, soon()).unwrap();
                assert_eq!(&got[..], *body);
            }
        });
    }
}

#[test]
fn a_batch_stops_at_its_limit_and_is_never_empty() {
    let (mut near, _far) = halves(&plain());
    let body = [0; 100];
    let frames = [(push(0, 100), &body[..]); 50];
    let mut begun = |limit| near.sender.send_frames(&frames, limit).unwrap().begun;
    assert_eq!(begun(0), 1);
    assert_eq!(begun(263), 1);
    assert_eq!(begun(264), 2);
    assert_eq!(begun(usize::MAX), crate::BATCH_MAX);
    assert_eq!(near.sender.send_frames(&[], 1).unwrap().begun, 0);
}

#[test]
fn a_half_written_packet_blocks_the_connection_until_it_is_complete() {
    for pair in [plain(), crate::tls::process_tests::pair()] {
        let (mut near, mut far) = halves(&pair);
        // More bytes than a send buffer grows to.
        let body = payload(0, 32 << 20);
        assert_eq!(near.sender.send(&push(7, body.len()), &body).unwrap(), Sending::Half);
        assert!(near.sender.is_half_written());
        let message = near.sender.send(&push(0, 0), &[]).unwrap_err();
        assert!(matches!(message, WireError::HalfWritten { .. }), "{message}");
        assert!(matches!(near.sender.send_frames(&[], 0), Err(WireError::HalfWritten { .. })));
        let message = near.sender.resume(&body[1..]).unwrap_err().to_string();
        assert!(message.contains("PUSH has 33554432 bytes, and 33554431 were given"), "{message}");
        assert_eq!(near.sender.resume(&body).unwrap(), Sending::Half);

        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(far.receiver.header(soon()).unwrap().unwrap().packet, 7);
                let mut got = vec![0; body.len()];
                far.receiver.payload(&mut got, soon()).unwrap();
                assert!(got == body);
            });
            near.sender.resume_all(&body, soon()).unwrap();
        });
        assert!(!near.sender.is_half_written());
        assert_eq!(near.sender.resume(&[]).unwrap(), Sending::Done);
    }
}

#[test]
fn a_frame_that_its_header_does_not_describe_is_not_sent() {
    let (mut near, _far) = halves(&plain());
    let message = near.sender.send(&push(0, 5), b"four").unwrap_err().to_string();
    assert!(message.contains("PUSH has 5 bytes, and 4 were given"), "{message}");
    let nameless = Header { dtype: None, ..push(0, 0) };
    assert!(near.sender.send(&nameless, &[]).unwrap_err().to_string().contains("name their element type"));
    assert!(!near.sender.is_half_written());
}

#[test]
fn a_connection_cut_within_a_frame_reports_the_missing_bytes() {
    let body = payload(0, 1000);
    let bytes = [&push(0, 1000).encode().unwrap()[..], &body].concat();
    for end in [0, 1, 31, 32, 33, 600, 1031] {
        let (near, far) = plain();
        let mut far = Halves::new(far);
        near.send(&[IoSlice::new(&bytes[..end])], soon()).unwrap();
        near.tcp().finish();
        let mut got = vec![0; 1000];
        let outcome = far.receiver.header(soon()).and_then(|header| match header {
            Some(_) => far.receiver.payload(&mut got, soon()).map(|()| true),
            None => Ok(false),
        });
        match (end, outcome) {
            (0, Ok(false)) => {}
            (1..32, Err(WireError::Cut { part: "header", missing, .. })) => assert_eq!(missing, 32 - end),
            (32.., Err(WireError::Cut { part: "payload", missing, .. })) => assert_eq!(missing, 1032 - end),
            (_, other) => panic!("cut at {end}: {other:?}"),
        }
    }
}

#[test]
fn a_deadline_within_a_frame_loses_nothing() {
    let (near, far) = plain();
    let mut far = Halves::new(far);
    let body = payload(0, 300);
    let bytes = [&push(0, 300).encode().unwrap()[..], &body].concat();
    let mut got = vec![0; 300];
    let mut headers = 0;
    for part in bytes.chunks(10) {
        near.send(&[IoSlice::new(part)], soon()).unwrap();
        if headers == 0 {
            match far.receiver.header(Wait::within(Duration::from_millis(2))) {
                Ok(Some(_)) => headers += 1,
                Err(fault) => assert!(fault.is_late(), "{fault}"),
                Ok(None) => panic!("no end was sent"),
            }
        }
        if headers == 1 {
            match far.receiver.payload(&mut got, Wait::within(Duration::from_millis(2))) {
                Ok(()) => headers += 1,
                Err(fault) => assert!(fault.is_late(), "{fault}"),
            }
        }
    }
    assert_eq!((headers, got == body), (2, true));
}

#[test]
fn an_unread_payload_stays_and_its_header_is_returned_again() {
    let (mut near, mut far) = halves(&plain());
    for packet in 0..3 {
        send_patiently(&mut near.sender, &push(packet, 40_000), &payload(packet as usize, 40_000));
    }
    assert_eq!(far.receiver.header(soon()).unwrap().unwrap().packet, 0);
    assert_eq!(far.receiver.header(Wait::Never).unwrap().unwrap().packet, 0);
    assert!(far.receiver.payload(&mut [0; 7], soon()).unwrap_err().to_string().contains("and 7 were given"));
    far.receiver.discard(soon()).unwrap();
    far.receiver.discard(soon()).unwrap();
    assert_eq!(far.receiver.header(soon()).unwrap().unwrap().packet, 1);
    let mut got = vec![0; 40_000];
    far.receiver.payload(&mut got, soon()).unwrap();
    assert!(got == payload(1, 40_000));
    assert!(matches!(far.receiver.payload(&mut [], soon()), Err(WireError::Refused { .. })));
}

#[test]
fn closing_ends_a_waiting_reader_and_the_error_names_the_side_that_closed() {
    let (_near, mut far) = halves(&plain());
    let link = far.receiver.link();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| far.receiver.header(Wait::Forever));
        pause(Duration::from_millis(30));
        link.shutdown();
        assert!(matches!(reader.join().unwrap(), Err(WireError::Closed { .. })));
    });
}

#[test]
fn a_damaged_payload_is_an_error_and_the_next_frame_is_readable() {
    let (mut near, mut far) = halves(&plain());
    let header = push(4, 6).sealed(b"bytes!");
    send_patiently(&mut near.sender, &header, b"bites!");
    send_patiently(&mut near.sender, &push(5, 0), &[]);
    far.receiver.header(soon()).unwrap();
    let message = far.receiver.payload(&mut [0; 6], soon()).unwrap_err().to_string();
    assert!(message.contains("PUSH of tensor 1, packet 4 has checksum"), "{message}");
    assert_eq!(far.receiver.header(soon()).unwrap().unwrap().packet, 5);
}

#[test]
fn messages_pass_between_packets_and_data_is_not_a_message() {
    let (mut near, mut far) = halves(&choked(3));
    near.sender.send_message(&Message::Ping(Ping { number: 300 }), 9, soon()).unwrap();
    send_patiently(&mut near.sender, &push(0, 100), &payload(0, 100));
    assert_eq!(far.receiver.next_message(soon()).unwrap(), Some(Message::Ping(Ping { number: 300 })));
    let message = far.receiver.next_message(soon()).unwrap_err().to_string();
    assert!(message.contains("received PUSH instead of a control message"), "{message}");
    far.receiver.discard(soon()).unwrap();
    near.sender.link().tcp().finish();
    assert_eq!(far.receiver.next_message(soon()).unwrap(), None);
}

#[test]
fn an_announced_length_takes_no_memory_before_its_bytes_arrive() {
    let (near, far) = plain();
    let mut far = Halves::new(far);
    let header = Header::control(Kind::Plan, 0, crate::PLAN_BYTES_MAX).encode().unwrap();
    near.send(&[IoSlice::new(&header)], soon()).unwrap();
    let message = far.receiver.next_message(Wait::within(Duration::from_millis(20))).unwrap_err();
    assert!(message.is_late());
    assert!(far.receiver.retained() <= 16 << 10, "{} bytes are retained", far.receiver.retained());
}
