// SPDX-License-Identifier: Apache-2.0
//! Prefetch hints for table entries.
//!
//! Samples come in an unpredictable order, so each look-up by sample is a cache miss. The planner knows that order,
//! and prefetches entries of later accesses while it plans earlier ones.

/// Prefetch distance in accesses: more than is planned during the latency of memory, because several accesses in
/// a row may find no space.
pub const AHEAD: usize = 32;

/// The access [`AHEAD`] places after the `nth`; `None` past the end.
pub fn later<T: Copy>(accesses: &[T], nth: usize) -> Option<T> {
    accesses.get(nth + AHEAD).copied()
}

/// Prefetch `table[index]`; no effect beyond the end.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn prefetch<T>(table: &[T], index: usize) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    if let Some(entry) = table.get(index) {
        // SAFETY: a hint reads nothing and cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(entry).cast()) };
    }
}

/// No hint on other processors, where its effect was not measured.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub fn prefetch<T>(_table: &[T], _index: usize) {}
