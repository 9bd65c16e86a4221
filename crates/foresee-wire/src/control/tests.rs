// SPDX-License-Identifier: Apache-2.0
//! Messages and their encoding: complete, truncated, too long, damaged.

use foresee_testkit::property;
use proptest::prelude::*;

use super::*;

fn examples() -> Vec<Message> {
    let set = vec![0b1000, 0, 1];
    let mut fault = Fault::new(FaultCode::Lost, "rank 3 is silent for 30 s");
    fault.rank = Some(3);
    let used = vec![Used { round: 4, used: set.clone() }, Used { round: 5, used: vec![0, 0, 1] }];
    vec![
        Message::Plan(Plan { generation: 2, body: vec![7; 300] }),
        Message::RoundEnd(RoundEnd { round: u64::MAX, absent: set.clone() }),
        Message::Used(Used { round: 1 << 40, used: set }),
        Message::Got(Got { round: 5 }),
        Message::RoundDone(RoundDone { round: 5 }),
        Message::Ping(Ping { number: 9 }),
        Message::Bye(Bye { reason: "done".into() }),
        Message::Error(fault),
        Message::Ack(Ack { round: 5, tensor: 6, partition: 7 }),
        Message::Resume(Resume { generation: 2, oldest: 1 << 40, live: vec![5], body: vec![7; 300] }),
        Message::Resumed(Resumed { generation: 2, oldest: u64::MAX, knows: true }),
        Message::Lost(Lost { rank: 3, why: "it was silent for 30 s".into() }),
        Message::Members(Members {
            generation: 3,
            rank: 3,
            live: vec![0b0111],
            why: "rank 3 is lost".into(),
        }),
        Message::Known(Known { generation: 3, oldest: 4, used: used.clone() }),
        Message::Change(Change { generation: 3, live: vec![0b0111], oldest: 4, used }),
        Message::Changed(Changed { generation: 3, oldest: 4 }),
        Message::Waiting(Waiting { text: "rank 2 to end round 7".into() }),
        Message::Samples(SampleMessage::Request(vec![
            SampleRequest { sample: 1 << 40, position: 70_000, within: Some(1_000_000) },
            SampleRequest { sample: 3, position: 70_001, within: None },
        ])),
        Message::Samples(SampleMessage::Withdraw(300)),
        Message::Samples(SampleMessage::Later(300)),
        Message::Samples(SampleMessage::Missing(300)),
        Message::Samples(SampleMessage::Offer(300)),
        Message::Samples(SampleMessage::Decline(300)),
        Message::Samples(SampleMessage::Passed(u64::MAX)),
        Message::Samples(SampleMessage::Checkpoint { position: 1 << 14, hash: u64::MAX }),
    ]
}

#[test]
fn every_message_survives_encoding_and_decoding() {
    for message in examples() {
        let (header, body) = message.encode(4).unwrap();
        assert_eq!(header.generation, 4);
        assert_eq!(Header::decode(&header.encode().unwrap()).unwrap(), header);
        assert_eq!(Message::decode(&header, &body).unwrap(), message);
    }
}

#[test]
fn every_truncated_or_extended_message_is_refused() {
    for message in examples() {
        let (header, body) = message.encode(0).unwrap();
        let unsummed = Header { checksum: None, ..header };
        for end in 0..body.len() {
            assert!(Message::decode(&unsummed, &body[..end]).is_err(), "{} cut at {end}", header.kind);
        }
        let longer = [&body[..], &[0]].concat();
        let message = Message::decode(&unsummed, &longer).unwrap_err().to_string();
        assert!(message.contains("1 bytes follow its end"), "{message}");
        assert!(matches!(Message::decode(&header, &longer), Err(FrameFault::Checksum { .. })));
    }
}

#[test]
fn the_longest_plan_and_set_fit_and_one_byte_more_is_refused() {
    let plan = |bytes| Message::Plan(Plan { generation: u32::MAX, body: vec![0xFF; bytes] });
    let end = |bytes| Message::RoundEnd(RoundEnd { round: u64::MAX, absent: vec![0xFF; bytes] });
    let all_ranks = || vec![0xFF; MEMBER_BYTES_MAX];
    let resume = |bytes| {
        let (generation, oldest) = (u32::MAX, u64::MAX);
        Message::Resume(Resume { generation, oldest, live: all_ranks(), body: vec![0xFF; bytes] })
    };
    let change = |bytes| {
        let used = Used { round: u64::MAX, used: vec![0xFF; bytes] };
        let used = vec![used; OPEN_ROUNDS_MAX];
        Message::Change(Change { generation: u32::MAX, live: all_ranks(), oldest: u64::MAX, used })
    };
    for message in [plan(PLAN_BODY_MAX), end(SET_BYTES_MAX), resume(PLAN_BODY_MAX), change(SET_BYTES_MAX)] {
        let (header, body) = message.encode(0).unwrap();
        assert_eq!(Message::decode(&header, &body).unwrap(), message);
    }
    let (plans, sets) = (PLAN_BODY_MAX + 1, SET_BYTES_MAX + 1);
    for message in [plan(plans), end(sets), resume(plans), change(sets)] {
        assert!(message.encode(0).is_err());
    }
}

#[test]
fn the_longest_request_for_samples_fits_and_one_more_is_refused() {
    let longest = SampleRequest { sample: u64::MAX, position: u64::MAX, within: Some(u64::MAX) };
    let request = |samples| Message::Samples(SampleMessage::Request(vec![longest; samples]));
    let (header, body) = request(SAMPLE_REQUESTS_MAX).encode(0).unwrap();
    assert_eq!(Message::decode(&header, &body).unwrap(), request(SAMPLE_REQUESTS_MAX));
    assert!(request(SAMPLE_REQUESTS_MAX + 1).encode(0).is_err());
    let now = foresee_units::Nanos::from_secs(1);
    assert_eq!(longest.deadline(now), foresee_units::Nanos::MAX);
    assert_eq!(SampleRequest { within: Some(5), ..longest }.deadline(now).get(), 1_000_000_005);
    assert_eq!(SampleRequest { within: None, ..longest }.deadline(now), foresee_units::Nanos::MAX);
}

#[test]
fn data_and_handshake_frames_are_not_messages() {
    for &kind in Kind::ALL {
        if kind.is_data() || kind.is_handshake() {
            let fault = Message::decode(&Header::control(kind, 0, 0), &[]).unwrap_err();
            assert!(matches!(fault, FrameFault::Unexpected { .. }));
        }
    }
}

#[test]
fn a_long_text_is_cut_at_a_character_and_its_control_characters_are_escaped() {
    let fault = Fault::new(FaultCode::Other, "ü".repeat(TEXT_BYTES_MAX));
    assert_eq!(fault.text.len(), TEXT_BYTES_MAX);
    assert!(Message::Error(fault).encode(0).is_ok());
    let fault = Fault::new(FaultCode::Other, "\u{1b}[2Jgone");
    assert_eq!(fault.to_string(), "\\u{1b}[2Jgone");
    let waiting = Waiting { text: "\u{1b}[2Jgone".into() };
    assert_eq!(waiting.to_string(), "\\u{1b}[2Jgone");
}

proptest! {
    #![proptest_config(property(10_000))]

    #[test]
    fn any_bytes_are_a_message_that_encodes_again_or_a_fault(
        kind in 0..Kind::ALL.len(), body in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let length = u32::try_from(body.len()).unwrap();
        let header = Header::control(Kind::ALL[kind], 0, length);
        if let Ok(message) = Message::decode(&header, &body) {
            // Postcard accepts padded numbers, so the bytes may differ; the message may not.
            let (header, body) = message.encode(0).unwrap();
            prop_assert_eq!(Message::decode(&header, &body).unwrap(), message);
        }
    }

    #[test]
    fn a_damaged_message_never_panics(
        which in 0..examples().len(), at in any::<proptest::sample::Index>(), byte in any::<u8>(),
    ) {
        let (header, mut body) = examples()[which].encode(0).unwrap();
        let at = at.index(body.len());
        let same = body[at] == byte;
        body[at] = byte;
        prop_assert_eq!(Message::decode(&header, &body).is_ok(), same);
        let _ = Message::decode(&Header { checksum: None, ..header }, &body);
    }
}
