// SPDX-License-Identifier: Apache-2.0
//! Rings in memory of the heap, and access to their bytes as another process has it.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{ControlLayout, RingMemory, RingPair};

/// A cache line of shared words.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Line([AtomicU64; 8]);

/// The words of a heap allocation that stands for shared memory.
pub(super) type Words = Arc<Box<[Line]>>;

/// Zeroed memory of `bytes` bytes, a multiple of 64.
pub(super) fn control_memory(bytes: usize) -> (RingMemory, Words) {
    let lines: Words = Arc::new((0..bytes.div_ceil(64)).map(|_| Line::default()).collect());
    let start = NonNull::from(&**lines).cast();
    let owner = Arc::clone(&lines) as Arc<dyn Any + Send + Sync>;
    // SAFETY: the lines live as long as their owner, and consist of atomics.
    (unsafe { RingMemory::new(start, bytes, owner) }, lines)
}

/// The host's and the consumer's side of rings of these capacities.
pub(super) fn pair(requests: u64, answers: u64) -> (RingPair, RingPair) {
    let layout = ControlLayout::new(requests, answers).unwrap();
    let (memory, _) = control_memory(layout.bytes());
    let host = RingPair::create(&memory, &layout).unwrap();
    (host, RingPair::attach(&memory, &layout).unwrap())
}

/// A word of the memory.
pub(super) fn word(words: &Words, at: usize) -> &AtomicU64 {
    &words[at / 8].0[at % 8]
}

/// A copy of all bytes.
pub(super) fn bytes_of(words: &Words) -> Vec<u8> {
    (0..words.len() * 8).flat_map(|at| word(words, at).load(Ordering::Relaxed).to_le_bytes()).collect()
}
