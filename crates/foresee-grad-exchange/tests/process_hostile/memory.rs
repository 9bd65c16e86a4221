// SPDX-License-Identifier: Apache-2.0
//! An allocator that counts the current and the largest memory of this process.
//!
//! A request above the bound of a test ends the process, and with it the test.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Far above the use of any test, and far below the memory of a host.
const LIMIT: usize = 2 << 30;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

pub(crate) struct Counting;

// SAFETY: memory comes from the system's allocator and returns to it unchanged; null is a valid refusal.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        if now > LIMIT {
            NOW.fetch_sub(layout.size(), Ordering::Relaxed);
            return std::ptr::null_mut();
        }
        MOST.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller makes the promises that the system's allocator requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The most bytes that were in use during `work` beyond those in use before it.
pub(crate) fn most_during(work: impl FnOnce()) -> usize {
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    work();
    MOST.load(Ordering::Relaxed).saturating_sub(before)
}
