// SPDX-License-Identifier: Apache-2.0
//! A peer that writes anything anywhere in the control memory, between operations of an honest side.
//!
//! The honest side ends each operation with a result or a `RingError`. The wake words are part of the memory.

use std::sync::atomic::Ordering;
use std::time::Duration;

use foresee_testkit::{Dice, seeds};

use super::queue::{DATA, HEAD, TAIL};
use super::test_support::{Words, control_memory, word};
use super::{ControlLayout, RingError, RingPair};

/// The first word of the ring of requests.
const REQUESTS: usize = 16;

fn rings(requests: u64, answers: u64) -> (RingPair, RingPair, Words) {
    let layout = ControlLayout::new(requests, answers).unwrap();
    let (memory, words) = control_memory(layout.bytes());
    let host = RingPair::create(&memory, &layout).unwrap();
    (host, RingPair::attach(&memory, &layout).unwrap(), words)
}

fn write(words: &Words, at: usize, value: u64) {
    word(words, at).store(value, Ordering::Relaxed);
}

/// A random value, or one near a limit or near the present one.
fn hostile_value(dice: &mut Dice, words: &Words, at: usize) -> u64 {
    let near = dice.pick(&[0, 8, 64, 128, 256, 1 << 32, 1 << 63, u64::MAX]);
    let present = word(words, at).load(Ordering::Relaxed);
    let delta = dice.pick(&[0, 1, 4, 8, 16, 64, u64::MAX, u64::MAX - 7]);
    match dice.below(3) {
        0 => dice.bits(),
        1 => near.wrapping_add(delta),
        _ => present.wrapping_add(delta),
    }
}

#[test]
fn whatever_a_peer_writes_each_operation_ends_with_a_result_or_an_error() {
    let (mut popped, mut broken) = (0, 0);
    for seed in seeds(20_000) {
        let mut dice = Dice::new(seed);
        let capacities = [64 << dice.below(3), 64 << dice.below(3)];
        let (host, consumer, words) = rings(capacities[0], capacities[1]);
        let mut sides = [host, consumer];
        let answers = REQUESTS + DATA + usize::try_from(capacities[0] / 8).unwrap();
        let counters = [REQUESTS + TAIL, REQUESTS + HEAD, answers + TAIL, answers + HEAD, 0, 8];
        for _ in 0..100 {
            let number = dice.below(2);
            let side = &mut sides[number];
            match dice.below(8) {
                0 => {
                    let anywhere = dice.below(words.len() * 8);
                    let at = if dice.one_in(2) { dice.pick(&counters) } else { anywhere };
                    write(&words, at, hostile_value(&mut dice, &words, at));
                }
                1..4 => match side.reader.try_pop() {
                    Ok(Some(message)) => {
                        assert!(message.len() as u64 <= capacities[number] - 8);
                        popped += 1;
                    }
                    Ok(None) => {}
                    Err(error) => {
                        assert!(matches!(error, RingError::Counter { .. } | RingError::Length { .. }));
                        broken += 1;
                    }
                },
                4..7 => match side.writer.try_push(&vec![0x5a; dice.below(300)]) {
                    Ok(_) => {}
                    Err(RingError::TooLong { length, max }) => assert!(length > max),
                    Err(error) => assert!(matches!(error, RingError::Counter { counter: "head", .. })),
                },
                _ => {
                    let reader = &mut side.reader;
                    side.waiter.waker().wake();
                    let ready = || reader.has_message().map_or(Some(()), |ready| ready.then_some(()));
                    side.waiter.wait(Some(Duration::ZERO), ready);
                }
            }
        }
    }
    assert!(popped > 1000 && broken > 1000, "the attacks reach both outcomes: {popped}, {broken}");
}

#[test]
fn a_tail_that_is_unaligned_or_outside_the_ring_is_refused_and_a_valid_one_is_read_again() {
    let (mut host, mut consumer, words) = rings(64, 64);
    assert!(consumer.writer.try_push(b"a").unwrap());
    assert_eq!(host.reader.try_pop().unwrap(), Some(&b"a"[..]));
    for found in [0, 8, 17, 84, 88, 1 << 40, u64::MAX - 7, u64::MAX] {
        write(&words, REQUESTS + TAIL, found);
        let error = host.reader.try_pop().unwrap_err();
        assert_eq!(error, RingError::Counter { counter: "tail", found, least: 16, most: 80 });
        assert_eq!(host.reader.has_message(), Err(error));
    }
    write(&words, REQUESTS + TAIL, 16);
    assert_eq!(host.reader.try_pop(), Ok(None));
}

#[test]
fn a_head_that_is_unaligned_or_beyond_the_tail_is_refused() {
    let (_host, mut consumer, words) = rings(64, 64);
    assert!(consumer.writer.try_push(&[1; 40]).unwrap());
    for found in [4, 49, 56, 1 << 40, u64::MAX] {
        write(&words, REQUESTS + HEAD, found);
        let expected = RingError::Counter { counter: "head", found, least: 0, most: 48 };
        assert_eq!(consumer.writer.try_push(&[2; 40]), Err(expected));
    }
    write(&words, REQUESTS + HEAD, 48);
    assert!(consumer.writer.try_push(&[2; 40]).unwrap());
    // Back, once it has been there.
    write(&words, REQUESTS + HEAD, 8);
    let expected = RingError::Counter { counter: "head", found: 8, least: 48, most: 96 };
    assert_eq!(consumer.writer.try_push(&[3; 40]), Err(expected));
}

#[test]
fn a_length_beyond_the_written_bytes_is_refused() {
    let (mut host, mut consumer, words) = rings(64, 64);
    assert!(consumer.writer.try_push(&[1; 16]).unwrap());
    for found in [17, 24, 56, 57, 1 << 32, u64::MAX - 7, u64::MAX] {
        write(&words, REQUESTS + DATA, found);
        assert_eq!(host.reader.try_pop(), Err(RingError::Length { found, available: 24 }));
    }
    write(&words, REQUESTS + DATA, 3);
    assert_eq!(host.reader.try_pop(), Ok(Some(&[1, 1, 1][..])));
    // The rest of the message is taken as the next one's length.
    let found = 0x0101_0101_0101_0101;
    assert_eq!(host.reader.try_pop(), Err(RingError::Length { found, available: 8 }));
}
