// SPDX-License-Identifier: Apache-2.0
//! The control memory of one consumer: two wake words, the ring of its requests, and the ring of the answers.
//!
//! The host creates it and chooses the capacities. The consumer learns them over its socket, so no size is ever read from
//! memory that the other side can write.

use std::sync::atomic::Ordering;

use super::error::RingError;
use super::memory::{RingMemory, SharedWords as _};
use super::queue::{DATA, HEAD, RingReader, RingWriter, TAIL};
use super::wake::RingWaiter;

/// Version of the control memory and of the messages in it.
pub const RING_VERSION: u8 = 2;

/// The smallest ring holds any message without samples.
pub(super) const CAPACITY_MIN: u64 = 64;
/// The largest ring holds several of the longest messages.
pub(super) const CAPACITY_MAX: u64 = 1 << 30;
/// Bytes of a cache line, which is the alignment of everything that one side writes.
const LINE: usize = 64;
const RING_HEAD: usize = DATA * size_of::<u64>();
/// The first bytes of a ring, before the version: `4rng`.
const MAGIC: u32 = u32::from_le_bytes(*b"4rng");

/// The sizes of the two rings of a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlLayout {
    requests: u64,
    answers: u64,
}

/// One side of an attachment: it writes to one ring and reads the other.
#[derive(Debug)]
pub struct RingPair {
    /// Requests at the consumer, answers at the host.
    pub writer: RingWriter,
    /// Answers at the consumer, requests at the host.
    pub reader: RingReader,
    /// Waits for messages in `reader` and for space in `writer`.
    pub waiter: RingWaiter,
}

/// What a ring contains; the number in its head.
#[derive(Clone, Copy)]
enum Direction {
    Requests = 1,
    Answers = 2,
}

impl ControlLayout {
    /// Rings of these capacities, in bytes.
    ///
    /// # Errors
    /// [`RingError::Capacity`]: one of them is no power of two from 64 to 2^30.
    pub fn new(requests: u64, answers: u64) -> Result<Self, RingError> {
        for found in [requests, answers] {
            if !found.is_power_of_two() || !(CAPACITY_MIN..=CAPACITY_MAX).contains(&found) {
                return Err(RingError::Capacity { found });
            }
        }
        Ok(Self { requests, answers })
    }

    /// Capacity of the ring of requests, in bytes.
    pub const fn requests(&self) -> u64 {
        self.requests
    }

    /// Capacity of the ring of answers, in bytes.
    pub const fn answers(&self) -> u64 {
        self.answers
    }

    /// Bytes of the control memory.
    pub fn bytes(&self) -> usize {
        2 * LINE + ring_bytes(self.requests) + ring_bytes(self.answers)
    }

    fn check(&self, memory: &RingMemory) -> Result<(), RingError> {
        let [found, needed, start] = [memory.len(), self.bytes(), memory.address()];
        if found < needed || !start.is_multiple_of(LINE) {
            return Err(RingError::Memory { found, needed, start });
        }
        Ok(())
    }

    fn host_word(memory: &RingMemory) -> RingMemory {
        memory.part(0, LINE)
    }

    fn consumer_word(memory: &RingMemory) -> RingMemory {
        memory.part(LINE, LINE)
    }

    fn ring(&self, memory: &RingMemory, direction: Direction) -> RingMemory {
        let requests = ring_bytes(self.requests);
        match direction {
            Direction::Requests => memory.part(2 * LINE, requests),
            Direction::Answers => memory.part(2 * LINE + requests, ring_bytes(self.answers)),
        }
    }

    fn capacity(&self, direction: Direction) -> u64 {
        match direction {
            Direction::Requests => self.requests,
            Direction::Answers => self.answers,
        }
    }
}

impl RingPair {
    /// Create empty rings as the host, before any other process has the memory.
    ///
    /// # Errors
    /// [`RingError::Memory`]: it is smaller than [`ControlLayout::bytes`], or does not begin at a multiple of 64.
    pub fn create(memory: &RingMemory, layout: &ControlLayout) -> Result<Self, RingError> {
        layout.check(memory)?;
        for direction in [Direction::Requests, Direction::Answers] {
            let ring = layout.ring(memory, direction);
            let words = ring.words();
            words[0].store(identification(direction), Ordering::Relaxed);
            words[1].store(layout.capacity(direction), Ordering::Relaxed);
            words[TAIL].store(0, Ordering::Relaxed);
            words[HEAD].store(0, Ordering::Relaxed);
        }
        for word in [ControlLayout::host_word(memory), ControlLayout::consumer_word(memory)] {
            word.wake_word().store(0, Ordering::Relaxed);
        }
        let [requests, answers] = [Direction::Requests, Direction::Answers].map(|d| layout.ring(memory, d));
        let consumer = ControlLayout::consumer_word(memory);
        Ok(Self {
            writer: RingWriter::over(answers, consumer.clone()),
            reader: RingReader::over(requests, consumer),
            waiter: RingWaiter::new(ControlLayout::host_word(memory)),
        })
    }

    /// Attach as the consumer to rings that the host has created and that no one has used.
    ///
    /// # Errors
    /// [`RingError::Memory`] as in [`create`](Self::create). [`RingError::Header`]: the rings have another version or
    /// another capacity.
    pub fn attach(memory: &RingMemory, layout: &ControlLayout) -> Result<Self, RingError> {
        layout.check(memory)?;
        for direction in [Direction::Requests, Direction::Answers] {
            let ring = layout.ring(memory, direction);
            let words = ring.words();
            let expected = [identification(direction), layout.capacity(direction)];
            for (at, (field, expected)) in
                ["identification", "capacity"].into_iter().zip(expected).enumerate()
            {
                let found = words[at].load(Ordering::Relaxed);
                if found != expected {
                    return Err(RingError::Header { field, found, expected });
                }
            }
        }
        let [requests, answers] = [Direction::Requests, Direction::Answers].map(|d| layout.ring(memory, d));
        let host = ControlLayout::host_word(memory);
        Ok(Self {
            writer: RingWriter::over(requests, host.clone()),
            reader: RingReader::over(answers, host),
            waiter: RingWaiter::new(ControlLayout::consumer_word(memory)),
        })
    }
}

/// Magic, version and direction as the first word of a ring.
fn identification(direction: Direction) -> u64 {
    u64::from(MAGIC) | u64::from(RING_VERSION) << 32 | (direction as u64) << 40
}

/// Bytes of a ring with its head.
fn ring_bytes(capacity: u64) -> usize {
    RING_HEAD + usize::try_from(capacity).expect("a capacity is at most 2^30")
}
