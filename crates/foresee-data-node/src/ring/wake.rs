// SPDX-License-Identifier: Apache-2.0
//! How a side sleeps until the other one has done something, without a system call while it is awake.
//!
//! Each side has one wake word, for both rings. Bit 0 is set while a thread of that side waits or is about to; the other
//! bits count wake-ups. A waiter sets the bit, checks its condition once more, and sleeps only while the word has not
//! changed. The other side changes the memory first and then reads the bit. A fence of both sides stands between the two
//! steps, so at least one of them sees what the other did: no wake-up is lost.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

use rustix::thread::futex;
use rustix::time::Timespec;

use super::memory::RingMemory;

/// The bit of a wake word that asks for a system call.
const WAITING: u32 = 1;

/// Operations on a wake word. Relaxed orders suffice, because [`fence`](Self::fence) orders them.
pub(super) trait WakeWord {
    /// Load the word.
    fn load(&self) -> u32;
    /// Set bits, and return the value before.
    fn set(&self, bits: u32) -> u32;
    /// Replace `from` by `to`, and return whether the word had the value `from`.
    fn replace(&self, from: u32, to: u32) -> bool;
    /// Count a wake-up, and leave the bit.
    fn count(&self);
    /// Sequentially consistent fence.
    fn fence(&self);
    /// Sleep while the word has this value, for `timeout`, or forever; may return early.
    fn sleep(&self, value: u32, timeout: Option<Duration>);
    /// Wake the sleeping threads of every process.
    fn wake_all(&self);
}

/// Waits for changes that the other side makes.
#[derive(Clone, Debug)]
pub(super) struct Waiter<K>(pub(super) K);

/// Reports changes to the threads that wait at a word.
#[derive(Clone, Debug)]
pub(super) struct Waker<K>(pub(super) K);

impl<K: WakeWord> Waiter<K> {
    pub(super) fn wait<T>(
        &self,
        timeout: Option<Duration>,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if let Some(value) = ready() {
            return Some(value);
        }
        // A time that no clock reaches is no deadline.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let token = self.0.set(WAITING) | WAITING;
            // Pairs with the fence of `Waker::wake`: it sees the bit, or `ready` sees the change.
            self.0.fence();
            if let Some(value) = ready() {
                return Some(value);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            self.0.sleep(token, left);
        }
    }
}

impl<K: WakeWord> Waker<K> {
    /// Wake the waiting threads, after a change that they may wait for.
    pub(super) fn wake(&self) {
        self.0.fence();
        let token = self.0.load();
        // The sum clears the bit and counts one more. If another thread has changed the word since, it wakes all that had
        // set the bit before the fence.
        if token & WAITING != 0 && self.0.replace(token, token.wrapping_add(WAITING)) {
            self.0.wake_all();
        }
    }

    /// Wake the waiting threads of this side. It does not read the bit, which the other side may have cleared.
    pub(super) fn interrupt(&self) {
        self.0.fence();
        self.0.count();
        self.0.wake_all();
    }
}

impl WakeWord for RingMemory {
    fn load(&self) -> u32 {
        self.wake_word().load(Ordering::Relaxed)
    }

    fn set(&self, bits: u32) -> u32 {
        self.wake_word().fetch_or(bits, Ordering::Relaxed)
    }

    fn replace(&self, from: u32, to: u32) -> bool {
        self.wake_word().compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn count(&self) {
        self.wake_word().fetch_add(WAITING << 1, Ordering::Relaxed);
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn sleep(&self, value: u32, timeout: Option<Duration>) {
        sleep(self.wake_word(), value, timeout);
    }

    fn wake_all(&self) {
        // Without the flag for private futexes, it wakes threads of every process. It fails only for invalid addresses.
        let _ = futex::wake(self.wake_word(), futex::Flags::empty(), i32::MAX.cast_unsigned());
    }
}

fn sleep(word: &AtomicU32, value: u32, timeout: Option<Duration>) {
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    // Whether it was woken, timed out or interrupted: the caller checks its condition.
    let _ = futex::wait(word, futex::Flags::empty(), value, timeout.as_ref());
}

/// Waits until the other side has written a message, made space, or until this side was woken.
///
/// Any number of threads may wait; clones wait at the same word.
#[derive(Clone)]
pub struct RingWaiter(Waiter<RingMemory>);

/// Wakes the waiting threads of its own side: to close, or to report other events than those of the rings.
#[derive(Clone)]
pub struct RingWaker(Waker<RingMemory>);

impl RingWaiter {
    pub(super) fn new(word: RingMemory) -> Self {
        Self(Waiter(word))
    }

    /// Wait until `ready` returns a value, for `timeout` at most, or forever. Returns `None` after the timeout.
    ///
    /// `ready` is called at least once, and again after each change of either ring by the other side and after each
    /// [`RingWaker::wake`]. It must not block.
    ///
    /// A wait without a timeout trusts the other side: one that ends wakes no thread, and one that writes to the wake
    /// word at the right moment defeats [`RingWaker::wake`]. One that wakes without a reason costs processor time, and
    /// does not delay the timeout.
    pub fn wait<T>(&self, timeout: Option<Duration>, ready: impl FnMut() -> Option<T>) -> Option<T> {
        self.0.wait(timeout, ready)
    }

    /// A handle that wakes the threads of this side.
    pub fn waker(&self) -> RingWaker {
        RingWaker(Waker(self.0.0.clone()))
    }
}

impl RingWaker {
    /// Make the waiting threads check their condition again. Change what they check before this call.
    pub fn wake(&self) {
        self.0.interrupt();
    }
}

impl fmt::Debug for RingWaiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingWaiter").finish_non_exhaustive()
    }
}

impl fmt::Debug for RingWaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingWaker").finish_non_exhaustive()
    }
}
