// SPDX-License-Identifier: Apache-2.0
//! The rings in one thread: order and content against a model, the layout, and misuse by the caller.

use std::collections::VecDeque;

use foresee_testkit::property;
use proptest::prelude::*;

use super::test_support::{bytes_of, control_memory, pair};
use super::{ControlLayout, RING_VERSION, RingError, RingPair};

/// Messages that a ring of `capacity` bytes takes, by its definition.
fn fits(queue: &VecDeque<Vec<u8>>, length: usize, capacity: usize) -> bool {
    let needed = |length: usize| 8 + length.next_multiple_of(8);
    queue.iter().map(|message| needed(message.len())).sum::<usize>() + needed(length) <= capacity
}

/// Bytes of which no two neighbours are equal.
fn pattern(seed: u8, length: usize) -> Vec<u8> {
    std::iter::successors(Some(seed), |byte| Some(byte.wrapping_add(1))).take(length).collect()
}

proptest! {
    #![proptest_config(property(20_000))]

    #[test]
    fn messages_come_out_once_in_order_and_a_full_ring_refuses_as_the_model_says(
        capacity in 6_u32..10,
        steps in prop::collection::vec(prop::option::of((any::<u8>(), 0_usize..600)), 1..200),
    ) {
        let capacity = 1_usize << capacity;
        let (mut host, mut consumer) = pair(capacity as u64, 64);
        let mut model: VecDeque<Vec<u8>> = VecDeque::new();
        for step in steps {
            if let Some((seed, length)) = step {
                let message = pattern(seed, length % (capacity - 7));
                let expected = fits(&model, message.len(), capacity);
                prop_assert_eq!(consumer.writer.has_space(message.len()), Ok(expected));
                prop_assert_eq!(consumer.writer.try_push(&message), Ok(expected));
                if expected {
                    model.push_back(message);
                }
            } else {
                prop_assert_eq!(host.reader.has_message(), Ok(!model.is_empty()));
                let expected = model.pop_front();
                prop_assert_eq!(host.reader.try_pop(), Ok(expected.as_deref()));
            }
        }
    }
}

#[test]
fn the_layout_is_the_one_of_the_page() {
    let (memory, owner) = control_memory(2 * 64 + 2 * (192 + 64));
    let layout = ControlLayout::new(64, 64).unwrap();
    assert_eq!(layout.bytes(), memory.len());
    let mut host = RingPair::create(&memory, &layout).unwrap();
    let mut consumer = RingPair::attach(&memory, &layout).unwrap();
    assert!(consumer.writer.try_push(b"request").unwrap());
    assert!(consumer.writer.try_push(&[0xab; 9]).unwrap());
    assert_eq!(host.reader.try_pop().unwrap(), Some(&b"request"[..]));
    assert!(host.writer.try_push(b"").unwrap());
    let bytes = bytes_of(&owner);
    assert_eq!(bytes[128..144], *b"4rng\x02\x01\0\0\x40\0\0\0\0\0\0\0");
    assert_eq!(RING_VERSION, 2);
    // Tail and head of the requests, then the data.
    assert_eq!((bytes[128 + 64], bytes[128 + 128]), (40, 16));
    let mut data = *b"\x07\0\0\0\0\0\0\0request\0\x09\0\0\0\0\0\0\0........\xab\0\0\0\0\0\0\0";
    data[24..32].fill(0xab);
    assert_eq!(bytes[320..360], data);
    let answers = 320 + 64;
    assert_eq!(bytes[answers..answers + 6], *b"4rng\x02\x02");
    assert_eq!((bytes[answers + 64], bytes[answers + 128]), (8, 0));
}

#[test]
fn a_ring_takes_its_longest_message_and_refuses_a_longer_one() {
    let (mut host, mut consumer) = pair(64, 1 << 12);
    assert_eq!((consumer.writer.message_max(), host.writer.message_max()), (56, 4088));
    for _ in 0..5 {
        assert!(consumer.writer.try_push(&[7; 56]).unwrap());
        assert!(!consumer.writer.try_push(b"").unwrap());
        assert_eq!(host.reader.try_pop().unwrap(), Some(&[7; 56][..]));
    }
    let error = consumer.writer.try_push(&[7; 57]).unwrap_err();
    assert_eq!(error, RingError::TooLong { length: 57, max: 56 });
    assert!(consumer.writer.try_push(b"the ring is as before").unwrap());
}

#[test]
fn capacities_and_memory_that_cannot_hold_the_rings_are_refused() {
    for found in [0, 32, 65, 96, 1 << 31, u64::MAX] {
        assert_eq!(ControlLayout::new(found, 64), Err(RingError::Capacity { found }));
        assert_eq!(ControlLayout::new(64, found), Err(RingError::Capacity { found }));
    }
    let layout = ControlLayout::new(64, 128).unwrap();
    let (memory, _) = control_memory(layout.bytes() + 64);
    for (offset, len) in [(0, layout.bytes() - 1), (8, layout.bytes())] {
        let start = memory.address() + offset;
        let expected = RingError::Memory { found: len, needed: layout.bytes(), start };
        assert_eq!(RingPair::create(&memory.part(offset, len), &layout).unwrap_err(), expected);
        assert_eq!(RingPair::attach(&memory.part(offset, len), &layout).unwrap_err(), expected);
    }
}

#[test]
fn a_consumer_refuses_rings_of_another_version_or_capacity() {
    let layout = ControlLayout::new(64, 128).unwrap();
    let (memory, _) = control_memory(ControlLayout::new(128, 128).unwrap().bytes());
    let error = RingPair::attach(&memory, &layout).unwrap_err();
    assert!(matches!(error, RingError::Header { field: "identification", found: 0, .. }), "{error}");
    RingPair::create(&memory, &layout).unwrap();
    RingPair::attach(&memory, &layout).unwrap();
    let other = ControlLayout::new(128, 128).unwrap();
    let error = RingPair::attach(&memory, &other).unwrap_err();
    assert_eq!(error, RingError::Header { field: "capacity", found: 64, expected: 128 });
}

#[test]
fn a_waiter_that_is_ready_does_not_sleep() {
    let (host, mut consumer) = pair(64, 64);
    assert_eq!(host.waiter.wait(None, || Some(1)), Some(1));
    host.waiter.waker().wake();
    assert!(consumer.writer.try_push(b"a").unwrap());
    let RingPair { mut reader, waiter, .. } = host;
    assert_eq!(waiter.wait(None, || reader.has_message().unwrap().then_some(())), Some(()));
}
