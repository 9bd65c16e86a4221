// SPDX-License-Identifier: Apache-2.0
//! Random messages and random bytes: every message round-trips, and every accepted text of bytes is the only encoding.

use foresee_testkit::{Dice, property, seeds};
use foresee_units::{Nanos, ReadOutcome, SampleId, Source};
use proptest::prelude::*;

use super::{
    Announcement, BatchAnswer, BatchFailure, BatchRelease, BatchRequest, ConsumerMessage, ConsumerProgress,
    EpochWanted, HostMessage, MemoryHits, MessageList, RepeatRequest, SampleFailure, SampleLocation,
};
use crate::SlabLocation;

fn location() -> impl Strategy<Value = SampleLocation> {
    let source = prop::sample::select(&[Source::Ram, Source::Disk, Source::Peer, Source::Origin]);
    (0_u32..65_536, any::<u64>(), source).prop_map(|(position, bits, source)| SampleLocation {
        position,
        location: SlabLocation::from_bits(bits),
        source,
    })
}

fn failure() -> impl Strategy<Value = SampleFailure> {
    let outcome = prop_oneof![
        Just(ReadOutcome::Absent),
        Just(ReadOutcome::Corrupt),
        Just(ReadOutcome::Changed),
        Just(ReadOutcome::Denied),
        any::<Option<u64>>().prop_map(|pause| ReadOutcome::Throttled { retry_after: pause.map(Nanos::new) }),
        Just(ReadOutcome::Retryable),
        Just(ReadOutcome::Full),
        Just(ReadOutcome::Cancelled),
        Just(ReadOutcome::Failed),
    ];
    (0_u32..65_536, outcome).prop_map(|(position, outcome)| SampleFailure { position, outcome })
}

fn check_consumer(message: ConsumerMessage<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode_into(&mut bytes).unwrap();
    assert_eq!(ConsumerMessage::decode(&bytes), Ok(message));
    check_bytes(&bytes);
    bytes
}

fn check_host(message: HostMessage<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode_into(&mut bytes).unwrap();
    assert_eq!(HostMessage::decode(&bytes), Ok(message));
    check_bytes(&bytes);
    bytes
}

/// Decode bytes as either side. Return whether they are a message; its encoding is then the same bytes.
fn check_bytes(bytes: &[u8]) -> bool {
    let mut encoded = Vec::new();
    let consumer = ConsumerMessage::decode(bytes);
    if let Ok(message) = &consumer {
        message.encode_into(&mut encoded).unwrap();
    }
    let host = HostMessage::decode(bytes);
    if let Ok(message) = &host {
        message.encode_into(&mut encoded).unwrap();
    }
    assert!(consumer.is_err() || host.is_err(), "no message is of both sides");
    let is_message = consumer.is_ok() || host.is_ok();
    assert!(!is_message || encoded == bytes, "{bytes:02x?} has another encoding: {encoded:02x?}");
    is_message
}

proptest! {
    #![proptest_config(property(100_000))]

    #[test]
    fn every_message_of_a_consumer_round_trips(
        [batch, deadline] in any::<[u64; 2]>(),
        data_set in any::<u32>(),
        [is_restart, is_epoch_end, is_end] in any::<[bool; 3]>(),
        samples in prop::collection::vec(any::<u64>().prop_map(SampleId), 0..300),
        positions in prop::collection::vec(0_u32..65_536, 0..300),
    ) {
        let deadline = Nanos::new(deadline);
        if !samples.is_empty() {
            let samples = samples[..].into();
            check_consumer(ConsumerMessage::Request(BatchRequest { batch, deadline, data_set, samples }));
        }
        let samples = samples[..].into();
        let positions = MessageList::from(&positions[..]);
        if !positions.is_empty() {
            check_consumer(ConsumerMessage::Repeat(RepeatRequest { batch, positions }));
        }
        check_consumer(ConsumerMessage::Release(BatchRelease { batch, positions }));
        let (accesses, interval, is_waiting) = (batch, deadline, is_restart);
        check_consumer(ConsumerMessage::Progress(ConsumerProgress { accesses, interval, is_waiting }));
        check_consumer(ConsumerMessage::Hits(MemoryHits { accesses }));
        let generation = data_set ^ 1;
        let announcement = Announcement { data_set, generation, is_restart, is_epoch_end, is_end, samples };
        check_consumer(ConsumerMessage::Announce(announcement));
    }

    #[test]
    fn every_message_of_the_host_round_trips(
        batch in any::<u64>(),
        locations in prop::collection::vec(location(), 1..300),
        failures in prop::collection::vec(failure(), 1..300),
        data_set in any::<u32>(),
    ) {
        check_host(HostMessage::EpochWanted(EpochWanted { data_set }));
        check_host(HostMessage::Answer(BatchAnswer { batch, samples: locations[..].into() }));
        check_host(HostMessage::Failure(BatchFailure { batch, samples: failures[..].into() }));
    }
}

/// An encoded message of each kind.
fn examples() -> Vec<Vec<u8>> {
    let (batch, data_set) = (1, 2);
    let samples = [SampleId(3), SampleId(4)];
    let location = SampleLocation { position: 0, location: SlabLocation::from_bits(1), source: Source::Ram };
    let failure = SampleFailure { position: 0, outcome: ReadOutcome::Throttled { retry_after: None } };
    let deadline = Nanos::MAX;
    let request = BatchRequest { batch, deadline, data_set, samples: samples[..].into() };
    let progress = ConsumerProgress { accesses: 5, interval: Nanos::ZERO, is_waiting: true };
    let announcement = Announcement {
        data_set,
        generation: 6,
        is_restart: true,
        is_epoch_end: false,
        is_end: true,
        samples: samples[..].into(),
    };
    let positions = [0, 1][..].into();
    vec![
        check_consumer(ConsumerMessage::Request(request)),
        check_consumer(ConsumerMessage::Release(BatchRelease { batch, positions })),
        check_consumer(ConsumerMessage::Progress(progress)),
        check_consumer(ConsumerMessage::Announce(announcement)),
        check_consumer(ConsumerMessage::Repeat(RepeatRequest { batch, positions })),
        check_consumer(ConsumerMessage::Hits(MemoryHits { accesses: 5 })),
        check_host(HostMessage::Answer(BatchAnswer { batch, samples: [location; 2][..].into() })),
        check_host(HostMessage::Failure(BatchFailure { batch, samples: [failure; 3][..].into() })),
        check_host(HostMessage::EpochWanted(EpochWanted { data_set })),
    ]
}

#[test]
fn random_and_mutated_bytes_are_refused_or_are_the_only_encoding_of_a_message() {
    let examples = examples();
    let (mut accepted, mut refused) = (0, 0);
    for seed in seeds(20_000) {
        let mut dice = Dice::new(seed);
        for _ in 0..200 {
            let mut bytes = dice.pick(&examples);
            match dice.below(4) {
                0 => bytes = (0..dice.below(80)).map(|_| dice.bits().to_le_bytes()[0]).collect(),
                1 => bytes.truncate(dice.below(bytes.len() + 1)),
                2 => bytes.extend_from_slice(&dice.bits().to_le_bytes()[..dice.below(8)]),
                _ => {}
            }
            for _ in 0..dice.below(4) {
                // Kind, flags and count decide most; the rest is fields.
                let within = if dice.one_in(2) { bytes.len().min(8) } else { bytes.len() };
                if within > 0 {
                    let at = dice.below(within);
                    bytes[at] = dice.pick(&[
                        0,
                        1,
                        2,
                        3,
                        4,
                        5,
                        6,
                        17,
                        18,
                        19,
                        255,
                        dice.clone().bits().to_le_bytes()[0],
                    ]);
                }
            }
            if check_bytes(&bytes) {
                accepted += 1;
            } else {
                refused += 1;
            }
        }
    }
    assert!(accepted > 1000 && refused > 1000, "both outcomes occur: {accepted}, {refused}");
}
