// SPDX-License-Identifier: Apache-2.0
//! The two ends of one ring: messages go in at the tail and come out at the head.
//!
//! Head and tail count bytes since the creation and never wrap. The writer stores data and then the tail (release); the
//! reader loads the tail (acquire) and then the data. In the other direction the reader stores the head (release) after
//! it has copied a message, and the writer loads it (acquire) before it overwrites those bytes. The data itself needs no
//! order. Each end keeps its own counter in private memory and never reads it back.

use std::fmt;
use std::sync::atomic::Ordering;

use super::error::RingError;
use super::memory::{RingMemory, SharedWord, SharedWords};
use super::wake::{WakeWord, Waker};

/// Bytes of a word, which is the alignment of messages and the size of the length before each.
const WORD: u64 = 8;
/// Words of the head, in front of the data. Identification, tail and head have a cache line each.
pub(super) const DATA: usize = 24;
pub(super) const TAIL: usize = 8;
pub(super) const HEAD: usize = 16;

/// The writing end, over any atomics.
pub(super) struct Writer<W, K> {
    words: W,
    capacity: u64,
    tail: u64,
    /// The last valid head.
    head: u64,
    reader: Waker<K>,
}

/// The reading end, over any atomics.
pub(super) struct Reader<W, K> {
    words: W,
    capacity: u64,
    head: u64,
    /// The last valid tail.
    tail: u64,
    /// The message that was read last, padded to whole words.
    message: Vec<u8>,
    writer: Waker<K>,
}

/// Bytes of data that a ring holds.
fn capacity(words: &impl SharedWords) -> u64 {
    (words.words().len() - DATA) as u64 * WORD
}

/// The word at a position, and the data after it: up to the end of the ring, and from its beginning.
fn split<W: SharedWords>(words: &W, capacity: u64, position: u64) -> (&W::Word, [&[W::Word]; 2]) {
    let data = &words.words()[DATA..];
    let at = usize::try_from((position & (capacity - 1)) / WORD).expect("it is within the memory");
    let (before, after) = data.split_at(at);
    let (word, after) = after.split_first().expect("the position is within the data");
    (word, [after, before])
}

impl<W: SharedWords, K: WakeWord> Writer<W, K> {
    /// An empty ring's writer. `words` has `DATA` words, and then data, whose bytes are a power of two.
    pub(super) fn new(words: W, reader: Waker<K>) -> Self {
        let capacity = capacity(&words);
        Self { words, capacity, tail: 0, head: 0, reader }
    }

    pub(super) fn message_max(&self) -> usize {
        (self.words.words().len() - DATA - 1) * size_of::<u64>()
    }

    pub(super) fn has_space(&mut self, length: usize) -> Result<bool, RingError> {
        let needed = self.needed(length)?;
        if self.is_free(needed) {
            return Ok(true);
        }
        let found = self.words.words()[HEAD].load(Ordering::Acquire);
        self.head = counter("head", found, self.head, self.tail)?;
        Ok(self.is_free(needed))
    }

    pub(super) fn try_push(&mut self, message: &[u8]) -> Result<bool, RingError> {
        if !self.has_space(message.len())? {
            return Ok(false);
        }
        let (length, data) = split(&self.words, self.capacity, self.tail);
        length.store(message.len() as u64, Ordering::Relaxed);
        let (whole, rest) = message.as_chunks();
        let (first, second) = whole.split_at(whole.len().min(data[0].len()));
        for (words, chunks) in data.into_iter().zip([first, second]) {
            for (word, chunk) in words.iter().zip(chunks) {
                word.store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
            }
        }
        if !rest.is_empty() {
            let mut last = [0; size_of::<u64>()];
            last[..rest.len()].copy_from_slice(rest);
            let word = data.into_iter().flatten().nth(whole.len()).expect("space was checked");
            word.store(u64::from_le_bytes(last), Ordering::Relaxed);
        }
        self.tail += self.needed(message.len())?;
        self.words.words()[TAIL].store(self.tail, Ordering::Release);
        self.reader.wake();
        Ok(true)
    }

    fn is_free(&self, needed: u64) -> bool {
        needed <= self.capacity - (self.tail - self.head)
    }

    /// Bytes that a message takes.
    fn needed(&self, length: usize) -> Result<u64, RingError> {
        let max = self.message_max();
        if length > max {
            return Err(RingError::TooLong { length, max });
        }
        Ok(WORD + (length as u64).next_multiple_of(WORD))
    }
}

impl<W: SharedWords, K: WakeWord> Reader<W, K> {
    /// An empty ring's reader, as [`Writer::new`].
    pub(super) fn new(words: W, writer: Waker<K>) -> Self {
        let capacity = capacity(&words);
        Self { words, capacity, head: 0, tail: 0, message: Vec::new(), writer }
    }

    pub(super) fn has_message(&mut self) -> Result<bool, RingError> {
        if self.tail == self.head {
            let found = self.words.words()[TAIL].load(Ordering::Acquire);
            self.tail = counter("tail", found, self.tail, self.head + self.capacity)?;
        }
        Ok(self.tail != self.head)
    }

    pub(super) fn try_pop(&mut self) -> Result<Option<&[u8]>, RingError> {
        if !self.has_message()? {
            return Ok(None);
        }
        let available = self.tail - self.head;
        let (length, data) = split(&self.words, self.capacity, self.head);
        let found = length.load(Ordering::Relaxed);
        // Compared first, because rounding a large length up overflows.
        if found > available - WORD || found.next_multiple_of(WORD) > available - WORD {
            return Err(RingError::Length { found, available });
        }
        let padded = found.next_multiple_of(WORD);
        let [length, bytes] =
            [found, padded].map(|value| usize::try_from(value).expect("it is within the memory"));
        if self.message.len() < bytes {
            self.message.resize(bytes, 0);
        }
        let (chunks, _) = self.message[..bytes].as_chunks_mut();
        let (first, second) = chunks.split_at_mut(chunks.len().min(data[0].len()));
        for (words, chunks) in data.into_iter().zip([first, second]) {
            for (word, chunk) in words.iter().zip(chunks) {
                *chunk = word.load(Ordering::Relaxed).to_le_bytes();
            }
        }
        self.head += WORD + padded;
        self.words.words()[HEAD].store(self.head, Ordering::Release);
        self.writer.wake();
        Ok(Some(&self.message[..length]))
    }
}

/// Check a counter of the other side: it counts whole words, never back, and never past `most`.
fn counter(name: &'static str, found: u64, least: u64, most: u64) -> Result<u64, RingError> {
    if (least..=most).contains(&found) && found.is_multiple_of(WORD) {
        return Ok(found);
    }
    Err(RingError::Counter { counter: name, found, least, most })
}

/// The writing end of a ring. One thread uses it at a time.
pub struct RingWriter(Writer<RingMemory, RingMemory>);

/// The reading end of a ring. One thread uses it at a time.
pub struct RingReader(Reader<RingMemory, RingMemory>);

impl RingWriter {
    pub(super) fn over(ring: RingMemory, reader: RingMemory) -> Self {
        Self(Writer::new(ring, Waker(reader)))
    }

    /// The longest message, in bytes.
    pub fn message_max(&self) -> usize {
        self.0.message_max()
    }

    /// Whether a message of `length` bytes fits now. Wait for it with [`RingWaiter::wait`](super::RingWaiter::wait).
    ///
    /// # Errors
    /// [`RingError::TooLong`]: it never fits. [`RingError::Counter`]: the ring is broken.
    pub fn has_space(&mut self, length: usize) -> Result<bool, RingError> {
        self.0.has_space(length)
    }

    /// Append a message and wake the reader if it waits. Returns `false`, and changes nothing, while the ring is full.
    ///
    /// # Errors
    /// As [`has_space`](Self::has_space); nothing is written.
    pub fn try_push(&mut self, message: &[u8]) -> Result<bool, RingError> {
        self.0.try_push(message)
    }
}

impl RingReader {
    pub(super) fn over(ring: RingMemory, writer: RingMemory) -> Self {
        Self(Reader::new(ring, Waker(writer)))
    }

    /// Whether a message is there. Wait for it with [`RingWaiter::wait`](super::RingWaiter::wait).
    ///
    /// # Errors
    /// [`RingError::Counter`]: the ring is broken.
    pub fn has_message(&mut self) -> Result<bool, RingError> {
        self.0.has_message()
    }

    /// Remove the oldest message and wake the writer if it waits. Returns `None` while the ring is empty.
    ///
    /// The bytes are a copy in memory of this process, which is reused by the next call. It grows to the longest message,
    /// at most to the capacity.
    ///
    /// # Errors
    /// [`RingError::Counter`], [`RingError::Length`]: the ring is broken, and nothing is removed.
    pub fn try_pop(&mut self) -> Result<Option<&[u8]>, RingError> {
        self.0.try_pop()
    }
}

impl fmt::Debug for RingWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Writer { capacity, tail, head, .. } = self.0;
        f.debug_struct("RingWriter")
            .field("capacity", &capacity)
            .field("tail", &tail)
            .field("head", &head)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for RingReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reader { capacity, head, tail, .. } = self.0;
        f.debug_struct("RingReader")
            .field("capacity", &capacity)
            .field("head", &head)
            .field("tail", &tail)
            .finish_non_exhaustive()
    }
}
