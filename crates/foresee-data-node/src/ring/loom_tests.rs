// SPDX-License-Identifier: Apache-2.0
//! Models of the rings and of the wake words: `loom` runs every interleaving and every value that the memory orders allow.
//!
//! It runs the same code over its own atomics, and needs no compiler flag. A sleep is a mutex and a condition variable,
//! which compare the word and sleep in one step, as the kernel does. A lost wake-up is a deadlock of the model.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};
use loom::sync::{Condvar, Mutex};

use super::memory::{SharedWord, SharedWords};
use super::queue::{DATA, HEAD, Reader, TAIL, Writer};
use super::wake::{Waiter, WakeWord, Waker};

#[derive(Clone)]
struct ModelWords(Arc<Vec<ModelWord>>);

/// A counter, or data. Data is a plain cell here: the model reports accesses that the counters do not order, which it
/// would not find in atomics, because no load of a model sees a later store.
enum ModelWord {
    Counter(AtomicU64),
    Data(UnsafeCell<u64>),
}

// SAFETY: the model reports every access of `data` that races with another.
unsafe impl Send for ModelWord {}
// SAFETY: as above.
unsafe impl Sync for ModelWord {}

impl SharedWord for ModelWord {
    fn load(&self, order: Ordering) -> u64 {
        match self {
            Self::Counter(counter) => counter.load(order),
            // SAFETY: checked by the model.
            Self::Data(data) => data.with(|data| unsafe { *data }),
        }
    }

    fn store(&self, value: u64, order: Ordering) {
        match self {
            Self::Counter(counter) => counter.store(value, order),
            // SAFETY: checked by the model.
            Self::Data(data) => data.with_mut(|data| unsafe { *data = value }),
        }
    }
}

impl SharedWords for ModelWords {
    type Word = ModelWord;

    fn words(&self) -> &[ModelWord] {
        &self.0
    }
}

#[derive(Clone)]
struct ModelWakeWord {
    word: Arc<AtomicU32>,
    sleepers: Arc<(Mutex<()>, Condvar)>,
    has_fence: bool,
}

impl ModelWakeWord {
    fn new(has_fence: bool) -> Self {
        let sleepers = Arc::new((Mutex::new(()), Condvar::new()));
        Self { word: Arc::new(AtomicU32::new(0)), sleepers, has_fence }
    }
}

impl WakeWord for ModelWakeWord {
    fn load(&self) -> u32 {
        self.word.load(Ordering::Relaxed)
    }

    fn set(&self, bits: u32) -> u32 {
        self.word.fetch_or(bits, Ordering::Relaxed)
    }

    fn replace(&self, from: u32, to: u32) -> bool {
        self.word.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn count(&self) {
        self.word.fetch_add(2, Ordering::Relaxed);
    }

    fn fence(&self) {
        if self.has_fence {
            fence(Ordering::SeqCst);
        }
    }

    fn sleep(&self, value: u32, timeout: Option<Duration>) {
        assert_eq!(timeout, None, "a model has no time");
        let (mutex, woken) = &*self.sleepers;
        let guard = mutex.lock().unwrap();
        if self.word.load(Ordering::Relaxed) == value {
            drop(woken.wait(guard).unwrap());
        }
    }

    fn wake_all(&self) {
        let (mutex, woken) = &*self.sleepers;
        let _guard = mutex.lock().unwrap();
        woken.notify_all();
    }
}

type ModelWriter = (Writer<ModelWords, ModelWakeWord>, ModelWakeWord);
type ModelReader = (Reader<ModelWords, ModelWakeWord>, ModelWakeWord);

/// The two ends of a ring of `capacity` bytes, each with the word at which it waits.
fn ring(capacity: u64) -> (ModelWriter, ModelReader) {
    let words = (0..DATA + usize::try_from(capacity / 8).unwrap()).map(|at| match at {
        TAIL | HEAD => ModelWord::Counter(AtomicU64::new(0)),
        _ => ModelWord::Data(UnsafeCell::new(0)),
    });
    let words = ModelWords(Arc::new(words.collect()));
    let [at_writer, at_reader] = [(); 2].map(|()| ModelWakeWord::new(true));
    let writer = Writer::new(words.clone(), Waker(at_reader.clone()));
    let reader = Reader::new(words, Waker(at_writer.clone()));
    ((writer, at_writer), (reader, at_reader))
}

/// Explore interleavings with at most `switches` forced switches of the thread; all of them if that is `None`.
fn explore(switches: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = switches;
    builder.check(model);
}

#[test]
fn a_reader_without_waits_sees_a_prefix_of_what_was_pushed() {
    explore(None, || {
        let ((mut writer, _), (mut reader, _)) = ring(32);
        let thread = loom::thread::spawn(move || {
            assert_eq!(writer.try_push(b"first"), Ok(true));
            assert_eq!(writer.try_push(b"second"), Ok(true));
        });
        let mut expected = [&b"first"[..], b"second"].into_iter();
        for _ in 0..2 {
            if let Some(message) = reader.try_pop().unwrap() {
                assert_eq!(Some(message), expected.next());
            }
        }
        thread.join().unwrap();
        while let Some(message) = reader.try_pop().unwrap() {
            assert_eq!(Some(message), expected.next());
        }
        assert_eq!(expected.next(), None);
    });
}

#[test]
fn messages_that_wrap_around_a_full_ring_arrive_whole_and_both_sides_sleep_and_wake() {
    // With its length a message takes 24 of 32 bytes: all but the first wrap, and only one fits.
    explore(Some(2), || {
        let ((mut writer, at_writer), (mut reader, at_reader)) = ring(32);
        let thread = loom::thread::spawn(move || {
            for value in 1..=3 {
                let waiter = Waiter(at_writer.clone());
                waiter.wait(None, || writer.has_space(16).unwrap().then_some(()));
                assert_eq!(writer.try_push(&[value; 16]), Ok(true));
            }
        });
        for value in 1..=3 {
            let waiter = Waiter(at_reader.clone());
            waiter.wait(None, || reader.has_message().unwrap().then_some(()));
            assert_eq!(reader.try_pop(), Ok(Some(&[value; 16][..])));
        }
        thread.join().unwrap();
    });
}

/// Two threads wait for a change that a third one makes, or only one, if `waiters` is 1.
fn wake_up(waiters: usize, has_fence: bool, wake: fn(&Waker<ModelWakeWord>)) -> impl Fn() {
    move || {
        let word = ModelWakeWord::new(has_fence);
        let is_changed = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..waiters)
            .map(|_| {
                let (waiter, is_changed) = (Waiter(word.clone()), Arc::clone(&is_changed));
                loom::thread::spawn(move || {
                    waiter.wait(None, || is_changed.load(Ordering::Relaxed).then_some(()));
                })
            })
            .collect();
        is_changed.store(true, Ordering::Relaxed);
        wake(&Waker(word));
        for thread in threads {
            thread.join().unwrap();
        }
    }
}

#[test]
fn no_wake_up_is_lost() {
    explore(None, wake_up(1, true, Waker::wake));
    explore(None, wake_up(1, true, Waker::interrupt));
}

#[test]
fn every_waiting_thread_is_woken() {
    explore(Some(2), wake_up(2, true, Waker::wake));
    explore(Some(2), wake_up(2, true, Waker::interrupt));
}

#[test]
fn two_changes_by_two_threads_wake_a_thread_that_waits_for_both() {
    explore(Some(2), || {
        let word = ModelWakeWord::new(true);
        let changes = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
        let threads = [0, 1].map(|number| {
            let (waker, changes) = (Waker(word.clone()), Arc::clone(&changes));
            loom::thread::spawn(move || {
                changes[number].store(true, Ordering::Relaxed);
                waker.wake();
            })
        });
        let is_done = || changes.iter().all(|change| change.load(Ordering::Relaxed)).then_some(());
        Waiter(word).wait(None, is_done);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn the_model_finds_the_wake_up_that_is_lost_without_fences() {
    explore(None, wake_up(1, false, Waker::wake));
}
