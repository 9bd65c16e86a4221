// SPDX-License-Identifier: Apache-2.0
//! Asks for an entry of a table some time before it is needed.
//!
//! Samples come in an order that no processor guesses, so each look into a table by sample is a wait for memory. The planner
//! knows that order: it asks for what later accesses need, and does what earlier ones need meanwhile.
//!
//! Refuses to read: a hint beyond the end of a table is none.

/// How many accesses ahead: what is planned in the time that memory takes to answer, and more, as several accesses may
/// find no room one after the other.
pub const AHEAD: usize = 32;

/// Of accesses in their order, the one that is so far behind the `nth`; `None`: they are over before.
pub fn later<T: Copy>(accesses: &[T], nth: usize) -> Option<T> {
    accesses.get(nth + AHEAD).copied()
}

/// Asks for `table[index]`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn expect<T>(table: &[T], index: usize) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    if let Some(entry) = table.get(index) {
        // SAFETY: a hint reads nothing and cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(entry).cast()) };
    }
}

/// Elsewhere the processor is left to itself: nobody has measured that a hint helps.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub fn expect<T>(_table: &[T], _index: usize) {}
