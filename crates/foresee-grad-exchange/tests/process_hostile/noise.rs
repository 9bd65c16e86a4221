// SPDX-License-Identifier: Apache-2.0
//! Bytes of a hostile peer: random bytes, frames with random fields, messages with random contents.
//!
//! Most are nearly valid, since a wrong first byte is refused immediately.

use foresee_wire::{
    Ack, Bye, Change, Changed, Fault, FaultCode, Got, HEADER_BYTES, Kind, Known, Lost, MAGIC, Members,
    Message, Ping, Plan, Resume, Resumed, RoundDone, RoundEnd, Used, VERSION, Waiting,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// Bytes on one of a rank's two connections.
#[derive(Clone, Debug)]
pub(crate) struct Noise {
    pub(crate) on_data: bool,
    pub(crate) bytes: Vec<u8>,
}

/// Up to six sequences of bytes, by a peer that knows `plan`.
pub(crate) fn noise(plan: Vec<u8>) -> impl Strategy<Value = Vec<Noise>> {
    let bytes = prop_oneof![
        1 => vec(any::<u8>(), 1..100),
        4 => frame(),
        4 => (prop_oneof![message(plan.clone()), loss_message(plan)], 0_u32..3).prop_map(|(message, generation)| {
            let (header, body) = message.encode(generation).expect("no message is too long");
            [&header.encode().expect("as above")[..], &body].concat()
        }),
    ];
    let damaged = (bytes, any::<prop::sample::Index>(), prop_oneof![3 => Just(0), 1 => any::<u8>()]);
    let damaged = damaged.prop_map(|(mut bytes, at, bits)| {
        let at = at.index(bytes.len());
        bytes[at] ^= bits;
        bytes
    });
    vec((any::<bool>(), damaged).prop_map(|(on_data, bytes)| Noise { on_data, bytes }), 1..6)
}

/// A number that is usually small.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0_u32..4, 1 => any::<u32>()]
}

fn round() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0_u64..4, 1 => any::<u64>(), 1 => Just(u64::MAX)]
}

/// A data frame. If its payload is shorter than announced, the receiver reads the next bytes as payload.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![3 => Just(Kind::Push as u8), 3 => Just(Kind::Sum as u8), 1 => any::<u8>()];
    let length = prop_oneof![3 => Just(4096), 1 => 0_u32..5000, 1 => any::<u32>()];
    let numbers = (number(), number(), number(), number());
    (kind, 0_u8..9, numbers, length, any::<u16>(), 0_u16..3, any::<bool>()).prop_map(
        |(kind, dtype, (generation, round, tensor, packet), length, class, contributors, whole)| {
            let mut bytes = vec![MAGIC, VERSION, kind, dtype];
            for number in [generation, round, tensor, packet, length] {
                bytes.extend(number.to_le_bytes());
            }
            bytes.extend(class.to_le_bytes());
            bytes.extend(contributors.to_le_bytes());
            bytes.extend([0; 4]);
            let payload = if whole { length.min(10_000) } else { 10 };
            bytes.resize(HEADER_BYTES + payload as usize, 0x3F);
            bytes
        },
    )
}

fn message(plan: Vec<u8>) -> impl Strategy<Value = Message> {
    let set = || vec(any::<u8>(), 0..4);
    let body = prop_oneof![Just(plan), vec(any::<u8>(), 0..200)];
    prop_oneof![
        (any::<u32>(), body).prop_map(|(generation, body)| Message::Plan(Plan { generation, body })),
        (round(), set()).prop_map(|(round, absent)| Message::RoundEnd(RoundEnd { round, absent })),
        (round(), set()).prop_map(|(round, used)| Message::Used(Used { round, used })),
        round().prop_map(|round| Message::Got(Got { round })),
        round().prop_map(|round| Message::RoundDone(RoundDone { round })),
        (round(), number(), number()).prop_map(|(round, tensor, partition)| Message::Ack(Ack {
            round,
            tensor,
            partition
        })),
        any::<u64>().prop_map(|number| Message::Ping(Ping { number })),
        ".{0,20}".prop_map(|reason| Message::Bye(Bye { reason })),
        (number(), ".{0,20}").prop_map(|(rank, text)| {
            let mut fault = Fault::new(FaultCode::Lost, text);
            fault.rank = Some(rank);
            Message::Error(fault)
        }),
    ]
}

/// Messages about a lost or slow server or rank.
fn loss_message(plan: Vec<u8>) -> impl Strategy<Value = Message> {
    let body = prop_oneof![3 => Just(plan), 1 => vec(any::<u8>(), 0..200)];
    // Rank 0, which is the world, or random ranks.
    let live = || prop_oneof![3 => Just(vec![1]), 1 => Just(Vec::new()), 1 => vec(any::<u8>(), 0..4)];
    let set = vec(any::<u8>(), 0..3);
    let used = move || vec((round(), set.clone()).prop_map(|(round, used)| Used { round, used }), 0..3);
    prop_oneof![
        (number(), round(), live(), body).prop_map(|(generation, oldest, live, body)| {
            Message::Resume(Resume { generation, oldest, live, body })
        }),
        (number(), round(), any::<bool>())
            .prop_map(|(generation, oldest, knows)| Message::Resumed(Resumed { generation, oldest, knows })),
        (number(), ".{0,20}").prop_map(|(rank, why)| Message::Lost(Lost { rank, why })),
        (number(), number(), live(), ".{0,20}").prop_map(|(generation, rank, live, why)| {
            Message::Members(Members { generation, rank, live, why })
        }),
        (number(), round(), used())
            .prop_map(|(generation, oldest, used)| { Message::Known(Known { generation, oldest, used }) }),
        (number(), live(), round(), used()).prop_map(|(generation, live, oldest, used)| {
            Message::Change(Change { generation, live, oldest, used })
        }),
        ".{0,20}".prop_map(|text| Message::Waiting(Waiting { text })),
        (number(), round()).prop_map(|(generation, oldest)| Message::Changed(Changed { generation, oldest })),
    ]
}
