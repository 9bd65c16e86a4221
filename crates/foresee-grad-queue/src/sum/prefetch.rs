// SPDX-License-Identifier: Apache-2.0
//! Prefetch hints for memory that a loop is about to read.
//!
//! A processor's hardware prefetcher stops at the end of each page, and a packet spans a few pages, so each page
//! would begin with a cache miss. Hints raise the sum rate by a tenth (`examples/sum_rate.rs`: four ranks, in
//! memory that no cache holds). Reading a packet at four places in turn, one line each, is another tenth faster
//! on one machine with an AMD EPYC, but takes 1.6 times as long on another.
//!
//! A hint only names an address: beyond the end of a payload it costs nothing and cannot fault.

/// Bytes between two hints: several cache lines, so that a loop over them is still vectorized.
pub(super) const BLOCK: usize = 256;
/// Prefetch distance: slightly more than a core reads during the latency of memory.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 6144;

/// Issue a hint for each line of `block`, at the prefetch distance ahead of it.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn ahead_of(block: &[u8]) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    for line in (0..BLOCK).step_by(64) {
        let place = block.as_ptr().wrapping_add(AHEAD + line);
        // SAFETY: a hint reads nothing and cannot fault, for any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) };
    }
}

/// No hint on other processors, where its effect was not measured.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(super) const fn ahead_of(_block: &[u8]) {}
