// SPDX-License-Identifier: Apache-2.0
//! Rings between two real processes: the test and a second run of this program as the consumer.

use std::ffi::c_void;
use std::fs::OpenOptions;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use foresee_testkit::{Dice, WATCHDOG, pause, takes_at_least};
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

use super::test_support::{control_memory, pair, word};
use super::{ControlLayout, RingMemory, RingPair};

/// The path of the control memory, for the process that is the consumer.
const MEMORY: &str = "FORESEE_TEST_RING_MEMORY";
const MESSAGES: usize = 100_000;

fn layout() -> ControlLayout {
    ControlLayout::new(1 << 10, 1 << 10).unwrap()
}

/// A mapping, which ends with its last user.
#[derive(Debug)]
struct Mapping(NonNull<c_void>, usize);

// SAFETY: only its address is used, by `drop`.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: one whole mapping, which nothing uses any more.
        unsafe { rustix::mm::munmap(self.0.as_ptr(), self.1) }.unwrap();
    }
}

fn map(file: &OwnedFd) -> RingMemory {
    let len = layout().bytes();
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping at an address that the system chooses.
    let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, flags, file, 0) }.unwrap();
    let start = NonNull::new(start).unwrap();
    // SAFETY: mapped while the owner lives, and used by this value alone.
    unsafe { RingMemory::new(start.cast(), len, Arc::new(Mapping(start, len))) }
}

/// A consumer in a process of its own, which is killed at the end of the test.
struct Consumer(Child);

impl Consumer {
    /// Kill it with SIGKILL, and wait for its end.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Run `host` with rings, and `consumer` with their other side in a second process of the test `name`.
fn in_two_processes(name: &str, host: impl FnOnce(RingPair, &mut Consumer), consumer: impl FnOnce(RingPair)) {
    if let Some(path) = std::env::var_os(MEMORY) {
        let file: OwnedFd = OpenOptions::new().read(true).write(true).open(path).unwrap().into();
        return consumer(RingPair::attach(&map(&file), &layout()).unwrap());
    }
    let file = rustix::fs::memfd_create("foresee-test-ring", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, layout().bytes() as u64).unwrap();
    let rings = RingPair::create(&map(&file), &layout()).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("ring::process_tests::{name}"), "--nocapture"])
        .env(MEMORY, format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    host(rings, &mut Consumer(child));
}

/// The next message of a random sequence that both processes know.
fn message(dice: &mut Dice, max: usize) -> Vec<u8> {
    let length = if dice.one_in(10) { dice.below(max + 1) } else { dice.below(40) };
    let mut bytes: Vec<u8> = (0..length.div_ceil(8)).flat_map(|_| dice.bits().to_le_bytes()).collect();
    bytes.truncate(length);
    bytes
}

#[test]
fn a_hundred_thousand_messages_of_random_lengths_are_echoed_through_small_rings() {
    let host = |rings: RingPair, consumer: &mut Consumer| {
        let RingPair { mut writer, mut reader, waiter } = rings;
        let mut dice = Dice::new(1);
        for number in 0..MESSAGES {
            let expected = message(&mut dice, writer.message_max());
            let ready = || {
                let is_ready = reader.has_message().unwrap() && writer.has_space(expected.len()).unwrap();
                is_ready.then_some(())
            };
            waiter.wait(Some(WATCHDOG), ready).expect("a message");
            let found = reader.try_pop().unwrap().unwrap();
            assert!(found == expected, "message {number} differs");
            assert!(writer.try_push(found).unwrap());
        }
        assert!(consumer.0.wait().unwrap().success(), "the consumer has read every echo");
    };
    let consumer = |rings: RingPair| {
        let RingPair { mut writer, mut reader, waiter } = rings;
        let [mut sent, mut echoed] = [Dice::new(1), Dice::new(1)];
        let max = writer.message_max();
        let mut next = Some(message(&mut sent, max));
        let (mut pushed, mut received) = (0, 0);
        while received < MESSAGES {
            let ready = || {
                let has_space = next.as_ref().is_some_and(|next| writer.has_space(next.len()).unwrap());
                (has_space || reader.has_message().unwrap()).then_some(())
            };
            waiter.wait(Some(WATCHDOG), ready).expect("an echo or space");
            if let Some(bytes) = next.take_if(|bytes| writer.try_push(bytes).unwrap()) {
                drop(bytes);
                pushed += 1;
                next = (pushed < MESSAGES).then(|| message(&mut sent, max));
            }
            if let Some(found) = reader.try_pop().unwrap() {
                assert!(found == message(&mut echoed, max), "echo {received} differs");
                received += 1;
            }
        }
    };
    in_two_processes(
        "a_hundred_thousand_messages_of_random_lengths_are_echoed_through_small_rings",
        host,
        consumer,
    );
}

#[test]
fn a_consumer_killed_while_the_host_waits_ends_the_wait_at_its_timeout() {
    let host = |rings: RingPair, consumer: &mut Consumer| {
        let RingPair { mut reader, waiter, .. } = rings;
        let mut has_message = || reader.has_message().unwrap().then_some(());
        waiter.wait(Some(WATCHDOG), &mut has_message).expect("the first message");
        assert_eq!(reader.try_pop().unwrap(), Some(&b"here"[..]));
        let timeout = Duration::from_millis(300);
        std::thread::scope(|scope| {
            let mut has_message = || reader.has_message().unwrap().then_some(());
            let waiting =
                scope.spawn(move || takes_at_least(timeout, || waiter.wait(Some(timeout), &mut has_message)));
            pause(timeout / 3);
            consumer.kill();
            assert_eq!(waiting.join().unwrap(), None);
        });
    };
    let consumer = |rings: RingPair| {
        let RingPair { mut writer, mut reader, waiter } = rings;
        assert!(writer.try_push(b"here").unwrap());
        waiter.wait(None, || reader.has_message().unwrap().then_some(()));
    };
    in_two_processes("a_consumer_killed_while_the_host_waits_ends_the_wait_at_its_timeout", host, consumer);
}

#[test]
fn a_consumer_killed_while_it_writes_leaves_only_whole_messages() {
    let host = |rings: RingPair, consumer: &mut Consumer| {
        let RingPair { mut reader, waiter, .. } = rings;
        let mut dice = Dice::new(2);
        let mut read = |timeout| {
            waiter.wait(Some(timeout), || reader.has_message().unwrap().then_some(()))?;
            let found = reader.try_pop().unwrap().unwrap();
            assert_eq!(found, message(&mut dice, 1000));
            Some(())
        };
        for _ in 0..5000 {
            read(WATCHDOG).expect("a message");
        }
        consumer.kill();
        while read(Duration::ZERO).is_some() {}
    };
    let consumer = |rings: RingPair| {
        let RingPair { mut writer, waiter, .. } = rings;
        let mut dice = Dice::new(2);
        loop {
            let message = message(&mut dice, 1000);
            waiter.wait(Some(WATCHDOG), || writer.has_space(message.len()).unwrap().then_some(()));
            assert!(writer.try_push(&message).unwrap());
        }
    };
    in_two_processes("a_consumer_killed_while_it_writes_leaves_only_whole_messages", host, consumer);
}

#[test]
fn a_process_wakes_its_own_waiting_threads() {
    let (host, _consumer) = pair(64, 64);
    let is_closed = AtomicBool::new(false);
    let ready = || is_closed.load(Ordering::Relaxed).then_some(());
    std::thread::scope(|scope| {
        let waiting = [(); 2].map(|()| scope.spawn(|| host.waiter.wait(Some(WATCHDOG), ready)));
        pause(Duration::from_millis(30));
        assert!(waiting.iter().all(|thread| !thread.is_finished()));
        is_closed.store(true, Ordering::Relaxed);
        host.waiter.waker().wake();
        for thread in waiting {
            assert_eq!(thread.join().unwrap(), Some(()));
        }
    });
}

#[test]
fn a_peer_that_writes_during_operations_does_not_stop_a_side_or_break_its_timeouts() {
    let layout = layout();
    let (memory, words) = control_memory(layout.bytes());
    let RingPair { mut writer, mut reader, waiter } = RingPair::create(&memory, &layout).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut dice = Dice::new(3);
            while !is_done.load(Ordering::Relaxed) {
                let at = dice.below(words.len() * 8);
                let small = dice.bits() % 2048;
                let value = dice.pick(&[small, small & !7, dice.clone().bits()]);
                word(&words, at).store(value, Ordering::Relaxed);
            }
        });
        let (mut results, mut errors) = (0, 0);
        // On a loaded host the other thread may start late.
        while results + errors < 40_000 || results == 0 || errors == 0 {
            let length = results + errors;
            let timeout = Some(Duration::from_micros(length as u64 % 50));
            waiter.wait(timeout, || reader.has_message().map_or(Some(()), |ready| ready.then_some(())));
            for is_ok in [reader.try_pop().is_ok(), writer.try_push(&vec![0; length % 1000]).is_ok()] {
                results += usize::from(is_ok);
                errors += usize::from(!is_ok);
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
}
