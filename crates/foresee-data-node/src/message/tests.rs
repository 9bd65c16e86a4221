// SPDX-License-Identifier: Apache-2.0
//! The bytes of each message, as on the page of the format, and what encoders and decoders refuse.

use foresee_units::{Nanos, ReadOutcome, SampleId, Source};

use super::{
    Announcement, BatchAnswer, BatchFailure, BatchRelease, BatchRequest, ConsumerMessage, ConsumerProgress,
    EpochWanted, HostMessage, InvalidField, ListElement as _, MemoryHits, MessageError, RepeatRequest,
    SAMPLES_MAX, SampleFailure, SampleLocation,
};
use crate::SlabLocation;

/// Offset 0x4000, sequence number 3.
const LOCATION: SampleLocation = SampleLocation {
    position: 1,
    location: SlabLocation::from_bits(((0x4000 / 64) << 24) | 3),
    source: Source::Disk,
};

fn hex(text: &str) -> Vec<u8> {
    text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

#[track_caller]
fn check_consumer(message: ConsumerMessage<'_>, expected: &str) {
    let mut bytes = vec![0xee];
    message.encode_into(&mut bytes).unwrap();
    assert_eq!(bytes[1..], hex(expected));
    assert_eq!(ConsumerMessage::decode(&bytes[1..]), Ok(message));
}

#[track_caller]
fn check_host(message: HostMessage<'_>, expected: &str) {
    let mut bytes = vec![0xee];
    message.encode_into(&mut bytes).unwrap();
    assert_eq!(bytes[1..], hex(expected));
    assert_eq!(HostMessage::decode(&bytes[1..]), Ok(message));
}

#[test]
fn messages_of_a_consumer_have_the_bytes_of_the_page() {
    let samples = &[SampleId(7), SampleId(0x0102_0304_0506_0708)][..];
    check_consumer(
        ConsumerMessage::Request(BatchRequest {
            batch: 9,
            deadline: Nanos::new(0x1000),
            data_set: 3,
            samples: samples.into(),
        }),
        "01 00 00 00 02 00 00 00 09 00 00 00 00 00 00 00 00 10 00 00 00 00 00 00 03 00 00 00 00 00 00 00
         07 00 00 00 00 00 00 00 08 07 06 05 04 03 02 01",
    );
    check_consumer(
        ConsumerMessage::Release(BatchRelease { batch: 9, positions: [][..].into() }),
        "02 00 00 00 00 00 00 00 09 00 00 00 00 00 00 00",
    );
    let progress = ConsumerProgress { accesses: 512, interval: Nanos::new(1_000_000), is_waiting: false };
    let positions = &[1, 65_535][..];
    check_consumer(
        ConsumerMessage::Release(BatchRelease { batch: 9, positions: positions.into() }),
        "02 00 00 00 02 00 00 00 09 00 00 00 00 00 00 00 01 00 00 00 ff ff 00 00",
    );
    check_consumer(
        ConsumerMessage::Repeat(RepeatRequest { batch: 9, positions: positions[..1].into() }),
        "05 00 00 00 01 00 00 00 09 00 00 00 00 00 00 00 01 00 00 00",
    );
    check_consumer(
        ConsumerMessage::Progress(progress),
        "03 00 00 00 00 00 00 00 00 02 00 00 00 00 00 00 40 42 0f 00 00 00 00 00",
    );
    check_consumer(
        ConsumerMessage::Progress(ConsumerProgress { is_waiting: true, ..progress }),
        "03 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 40 42 0f 00 00 00 00 00",
    );
    check_consumer(
        ConsumerMessage::Hits(MemoryHits { accesses: 512 }),
        "06 00 00 00 00 00 00 00 00 02 00 00 00 00 00 00",
    );
    let announcement = Announcement {
        data_set: 3,
        generation: 2,
        is_restart: false,
        is_epoch_end: true,
        is_end: true,
        samples: samples[..1].into(),
    };
    check_consumer(
        ConsumerMessage::Announce(announcement),
        "04 03 00 00 01 00 00 00 03 00 00 00 02 00 00 00 07 00 00 00 00 00 00 00",
    );
    let (is_epoch_end, is_end, samples) = (false, false, samples[..0].into());
    for (is_restart, expected) in [
        (false, "04 00 00 00 00 00 00 00 03 00 00 00 02 00 00 00"),
        (true, "04 04 00 00 00 00 00 00 03 00 00 00 02 00 00 00"),
    ] {
        let announcement = Announcement { is_restart, is_epoch_end, is_end, samples, ..announcement };
        check_consumer(ConsumerMessage::Announce(announcement), expected);
    }
}

#[test]
fn messages_of_the_host_have_the_bytes_of_the_page() {
    let other = SampleLocation { position: 65_535, source: Source::Ram, ..LOCATION };
    check_host(
        HostMessage::Answer(BatchAnswer { batch: 9, samples: [LOCATION, other][..].into() }),
        "11 00 00 00 02 00 00 00 09 00 00 00 00 00 00 00
         01 00 00 00 03 00 00 00 01 00 00 00 02
         ff ff 00 00 03 00 00 00 01 00 00 00 01",
    );
    let retry_after = Some(Nanos::new(256));
    let failures = [
        SampleFailure { position: 1, outcome: ReadOutcome::Absent },
        SampleFailure { position: 2, outcome: ReadOutcome::Throttled { retry_after } },
    ];
    check_host(
        HostMessage::Failure(BatchFailure { batch: 9, samples: failures[..].into() }),
        "12 00 00 00 02 00 00 00 09 00 00 00 00 00 00 00
         01 00 00 00 01 00 00 00 00 00 00 00 00 02 00 00 00 06 00 01 00 00 00 00 00 00",
    );
    check_host(
        HostMessage::EpochWanted(EpochWanted { data_set: 3 }),
        "13 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00",
    );
}

#[test]
fn every_source_of_a_sample_and_every_failure_has_a_code_of_its_own() {
    let encoded = |element: &dyn Fn(&mut [u8]) -> Result<(), InvalidField>| {
        let mut bytes = [0; SampleLocation::BYTES];
        element(&mut bytes).ok().map(|()| bytes)
    };
    let mut codes = Vec::new();
    for source in Source::ALL {
        let location = SampleLocation { source, ..LOCATION };
        let Some(bytes) = encoded(&|into| location.encode(into)) else { continue };
        assert_eq!(SampleLocation::decode(&bytes), Ok(location));
        codes.push(bytes[12]);
    }
    assert_eq!(codes, [1, 2, 3, 4]);
    let outcomes = [
        ReadOutcome::Absent,
        ReadOutcome::Corrupt,
        ReadOutcome::Changed,
        ReadOutcome::Denied,
        ReadOutcome::Throttled { retry_after: None },
        ReadOutcome::Throttled { retry_after: Some(Nanos::ZERO) },
        ReadOutcome::Retryable,
        ReadOutcome::Full,
        ReadOutcome::Cancelled,
        ReadOutcome::Failed,
    ];
    for (code, outcome) in (1..).zip(outcomes) {
        let failure = SampleFailure { position: 0, outcome };
        let mut bytes = [0; SampleFailure::BYTES];
        failure.encode(&mut bytes).unwrap();
        assert_eq!((bytes[4], SampleFailure::decode(&bytes)), (code, Ok(failure)));
    }
}

#[test]
fn an_encoder_refuses_what_a_decoder_would_and_leaves_the_buffer_as_it_was() {
    let mut bytes = vec![1, 2, 3];
    let samples = vec![SampleId(0); SAMPLES_MAX + 1];
    let batch = |samples| BatchRequest { batch: 0, deadline: Nanos::MAX, data_set: 0, samples };
    for count in [0, SAMPLES_MAX + 1] {
        let request = ConsumerMessage::Request(batch(samples[..count].into()));
        let expected = MessageError::Count { kind: "request", found: count, least: 1, most: SAMPLES_MAX };
        assert_eq!(request.encode_into(&mut bytes), Err(expected));
    }
    for (message, kind, count) in [
        (ConsumerMessage::Repeat(RepeatRequest { batch: 0, positions: [][..].into() }), "repeat", 0),
        (
            ConsumerMessage::Release(BatchRelease {
                batch: 0,
                positions: vec![0; SAMPLES_MAX + 1][..].into(),
            }),
            "release",
            SAMPLES_MAX + 1,
        ),
    ] {
        let error = message.encode_into(&mut bytes).unwrap_err();
        assert!(
            matches!(error, MessageError::Count { kind: named, found, .. } if (named, found) == (kind, count))
        );
    }
    let release = ConsumerMessage::Release(BatchRelease { batch: 0, positions: [0, 65_536][..].into() });
    let error = release.encode_into(&mut bytes).unwrap_err();
    assert!(matches!(error, MessageError::Field { kind: "release", fault } if fault.field == "position"));
    let bad_position = SampleLocation { position: 65_536, ..LOCATION };
    let bad_source = SampleLocation { source: Source::Staging, ..LOCATION };
    for (bad, field) in [(bad_position, "position"), (bad_source, "source")] {
        let samples = [LOCATION, bad];
        let answer = HostMessage::Answer(BatchAnswer { batch: 0, samples: samples[..].into() });
        let error = answer.encode_into(&mut bytes).unwrap_err();
        assert!(matches!(error, MessageError::Field { kind: "answer", fault } if fault.field == field));
    }
    let success = [SampleFailure { position: 0, outcome: ReadOutcome::Ok }];
    let failure = HostMessage::Failure(BatchFailure { batch: 0, samples: success[..].into() });
    assert!(matches!(failure.encode_into(&mut bytes), Err(MessageError::Field { kind: "failure", .. })));
    assert_eq!(bytes, [1, 2, 3]);
    ConsumerMessage::Request(batch(samples[1..].into())).encode_into(&mut bytes).unwrap();
    let decoded = ConsumerMessage::decode(&bytes[3..]).unwrap();
    assert_eq!(decoded, ConsumerMessage::Request(batch(samples[1..].into())));
}

#[test]
fn a_decoder_refuses_other_kinds_lengths_counts_flags_and_reserved_fields() {
    let field =
        |kind, field, found, rule| MessageError::Field { kind, fault: InvalidField { field, found, rule } };
    for (text, expected) in [
        ("", MessageError::TooShort { found: 0 }),
        ("02 00 00 00 00 00 00", MessageError::TooShort { found: 7 }),
        ("00 00 00 00 00 00 00 00", MessageError::Kind { sender: "consumer", found: 0 }),
        ("11 00 00 00 01 00 00 00", MessageError::Kind { sender: "consumer", found: 17 }),
        (
            "02 00 00 00 00 00 00 00 01 01 01 01 01 01 01",
            MessageError::Length { kind: "release", found: 15, expected: 16 },
        ),
        (
            "02 00 00 00 00 00 00 00 01 01 01 01 01 01 01 01 01",
            MessageError::Length { kind: "release", found: 17, expected: 16 },
        ),
        (
            "04 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00",
            MessageError::Length { kind: "announcement", found: 16, expected: 24 },
        ),
        (
            "04 00 00 00 01 00 01 00 00 00 00 00 00 00 00 00",
            MessageError::Count { kind: "announcement", found: 65_537, least: 0, most: SAMPLES_MAX },
        ),
        (
            "02 00 00 00 ff ff ff ff 01 01 01 01 01 01 01 01",
            MessageError::Count { kind: "release", found: 0xffff_ffff, least: 0, most: SAMPLES_MAX },
        ),
        (
            "03 00 00 00 01 00 00 00 01 01 01 01 01 01 01 01",
            MessageError::Count { kind: "progress", found: 1, least: 0, most: 0 },
        ),
        (
            "05 00 00 00 00 00 00 00 01 01 01 01 01 01 01 01",
            MessageError::Count { kind: "repeat", found: 0, least: 1, most: SAMPLES_MAX },
        ),
        (
            "05 00 00 00 01 00 00 00 09 00 00 00 00 00 00 00 00 00 01 00",
            field("repeat", "position", 65_536, "0 to 65535"),
        ),
        ("02 01 00 00 00 00 00 00 01 01 01 01 01 01 01 01", field("release", "flags", 1, "known bits")),
        ("04 08 00 00 00 00 00 00 00 00 00 00 00 00 00 00", field("announcement", "flags", 8, "known bits")),
        ("02 00 00 01 00 00 00 00 01 01 01 01 01 01 01 01", field("release", "reserved field", 256, "0")),
    ] {
        assert_eq!(ConsumerMessage::decode(&hex(text)).unwrap_err(), expected, "{text}");
    }
    for (text, expected) in [
        ("01 00 00 00 01 00 00 00", MessageError::Kind { sender: "host", found: 1 }),
        ("13 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00", field("epoch wanted", "reserved field", 1, "0")),
        (
            "12 00 00 00 01 00 00 00 09 00 00 00 00 00 00 00 00 00 01 00 01 00 00 00 00 00 00 00 00",
            field("failure", "position", 65_536, "0 to 65535"),
        ),
        (
            "12 00 00 00 01 00 00 00 09 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 00",
            field("failure", "failure code", 0, "1 (absent) to 10 (failed)"),
        ),
        (
            "12 00 00 00 01 00 00 00 09 00 00 00 00 00 00 00 01 00 00 00 05 07 00 00 00 00 00 00 00",
            field("failure", "pause", 7, "0, except with code 6"),
        ),
    ] {
        assert_eq!(HostMessage::decode(&hex(text)).unwrap_err(), expected, "{text}");
    }
}
