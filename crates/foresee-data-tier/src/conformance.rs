// SPDX-License-Identifier: Apache-2.0
//! The guarantees of every tier and every wrapper, as one suite that each of them runs.
//!
//! [`read_half`] is for all of them, [`write_half`] (which includes it) for those that store samples, and
//! [`fault_half`] for those that fail on purpose. The suite uses a [`Tier`], its keys and its completion queue only. It
//! panics with the violated guarantee; a `Done` that does not come within a minute is a violation.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use foresee_units::{Bytes, GAMMA, Nanos, ReadOutcome, SampleId};

use crate::{Completions, Dest, Done, Fingerprint, Op, Payload, SampleKey, Scratch, TagHash, Ticket, Tier};

/// A place with samples in it, as the opener of a test hands it over.
#[derive(Debug)]
pub struct Stocked {
    /// The place; its ends go to the queue given to the opener.
    pub tier: Arc<dyn Tier>,
    /// The key of each sample asked for, in order.
    pub keys: Vec<SampleKey>,
    /// A key that the place does not hold.
    pub absent: SampleKey,
}

/// The reading promises. `open` makes a new place that holds the given samples.
///
/// # Panics
/// With the broken promise.
pub fn read_half(open: impl Fn(Completions, &[Vec<u8>]) -> Stocked) {
    let open_rig = |samples: &[Vec<u8>]| {
        let ends = Ends::new();
        let Stocked { tier, keys, absent } = open(ends.completions.clone(), samples);
        (Rig::new(tier, ends), keys, absent)
    };
    let samples = shelf();
    let (rig, keys, absent) = open_rig(&samples);
    reads_are_whole_and_exact(&rig, &keys, &samples);
    ranges_are_exact(&rig, &keys, &samples);
    what_is_not_there_is_absent(&rig, absent);
    threads_share_it(&rig, &keys, &samples);
    cancelling_ends_each_ticket_once(&rig, &keys, &samples);
    closing_ends_each_ticket_once_then_refuses(&rig, &keys, &samples);
    let (rig, keys, _) = open_rig(&samples);
    a_read_past_the_end_is_never_ok(&rig, &keys, &samples);
    rig.tier.close(GRACE);
}

/// The promises of places that keep samples, the reading ones among them. `open` makes a new, empty place of
/// that capacity (4 MiB and more).
///
/// # Panics
/// With the broken promise.
pub fn write_half(open: impl Fn(Completions, Bytes) -> Arc<dyn Tier>) {
    let open_rig = |capacity: Bytes| {
        let ends = Ends::new();
        let tier = open(ends.completions.clone(), capacity);
        Rig::new(tier, ends)
    };
    let samples = shelf();
    let opened = |completions: Completions, samples: &[Vec<u8>]| {
        // Filling shares the place's queue with the suite's own rig: its ends are taken off before.
        let rig = Rig::new(open(completions.clone(), CAPACITY), Ends::over(completions));
        let keys: Vec<_> = (0..samples.len() as u64).map(key).collect();
        for (key, sample) in keys.iter().zip(samples) {
            assert_eq!(rig.write(*key, sample).outcome, ReadOutcome::Ok, "an empty place takes {key:?}");
        }
        Stocked { tier: rig.tier, keys, absent: key(1 << 40) }
    };
    read_half(opened);

    a_new_version_replaces_the_old(&open_rig(CAPACITY));
    forgetting_is_done_once(&open_rig(CAPACITY), &samples);
    capacity_holds_and_freed_room_is_room(&open_rig(CAPACITY));
    writers_readers_and_droppers_mix(&open_rig(CAPACITY));
    let rig = open_rig(CAPACITY);
    let _ = rig.write(key(0), &samples[0]);
    rig.tier.close(GRACE);
    assert_eq!(
        rig.write(key(1), &samples[1]).outcome,
        ReadOutcome::Cancelled,
        "a closed place takes no sample"
    );
    assert_eq!(rig.forget(key(0)).outcome, ReadOutcome::Cancelled, "a closed place forgets none");
}

/// What stays true when reads fail: each ticket has one end, and the bytes are there exactly if it is `Ok`.
///
/// # Panics
/// With the broken promise.
pub fn fault_half(open: impl Fn(Completions, &[Vec<u8>]) -> Stocked) {
    let samples = shelf();
    let ends = Ends::new();
    let Stocked { tier, keys, .. } = open(ends.completions.clone(), &samples);
    let rig = Rig::new(tier, ends);
    for round in 0..8 {
        let reads: Vec<_> = read_all(&rig, &keys, &samples);
        if round % 2 == 1 {
            reads.iter().step_by(2).for_each(|read| rig.tier.cancel(read.ticket));
        }
        for (read, sample) in reads.into_iter().zip(&samples) {
            let (done, bytes) = rig.end_of(read);
            assert!(done.outcome != ReadOutcome::Ok || bytes == *sample, "Ok means that every byte is right");
        }
    }
    closing_ends_each_ticket_once_then_refuses(&rig, &keys, &samples);
}

const CAPACITY: Bytes = Bytes::new(8 << 20);
const GRACE: Nanos = Nanos::from_secs(5);
/// Far beyond any honest answer: reaching it is a hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sizes at the borders where places change their way: nothing, one byte, a cache line, a page, large.
fn shelf() -> Vec<Vec<u8>> {
    [0, 1, 63, 64, 65, 4095, 4096, 4097, 65_535, 65_536, 300_001, 1_100_000]
        .into_iter()
        .enumerate()
        .map(|(seed, len)| content(seed as u64, len))
        .collect()
}

/// `len` bytes that differ from place to place and from seed to seed.
fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(GAMMA) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        })
        .collect()
}

fn key(id: u64) -> SampleKey {
    SampleKey { fingerprint: Fingerprint([7; 16]), id: SampleId(id), tag: TagHash(id ^ 0x5EED) }
}

fn reads_are_whole_and_exact(rig: &Rig, keys: &[SampleKey], samples: &[Vec<u8>]) {
    for (key, sample) in keys.iter().zip(samples) {
        let (done, bytes) = rig.read(*key, 0, sample.len());
        assert_eq!(done.outcome, ReadOutcome::Ok, "{key:?} of {} bytes is there", sample.len());
        assert_eq!(done.bytes.get(), sample.len() as u64, "an end tells how many bytes moved");
        assert!(bytes == *sample, "the bytes of {key:?} are its own");
    }
    assert_eq!(rig.tier.facts().in_flight, 0, "nothing is under way when all ends are in");
}

fn ranges_are_exact(rig: &Rig, keys: &[SampleKey], samples: &[Vec<u8>]) {
    for (key, sample) in keys.iter().zip(samples).filter(|(_, sample)| sample.len() > 1) {
        for (offset, len) in [(1, sample.len() - 1), (sample.len() / 2, 1), (0, sample.len() / 2)] {
            let (done, bytes) = rig.read(*key, offset as u64, len);
            assert_eq!(done.outcome, ReadOutcome::Ok, "a range inside {key:?} can be read");
            assert!(bytes == sample[offset..offset + len], "a range starts at its offset");
        }
    }
}

fn what_is_not_there_is_absent(rig: &Rig, absent: SampleKey) {
    assert_eq!(rig.read(absent, 0, 10).0.outcome, ReadOutcome::Absent);
    rig.tier.cancel(Ticket(u64::MAX));
}

fn a_read_past_the_end_is_never_ok(rig: &Rig, keys: &[SampleKey], samples: &[Vec<u8>]) {
    for (key, sample) in keys.iter().zip(samples) {
        let (done, _) = rig.read(*key, 0, sample.len() + 1);
        assert_ne!(done.outcome, ReadOutcome::Ok, "a sample is not longer than it is");
        let (done, _) = rig.read(*key, u64::MAX, 1);
        assert_ne!(done.outcome, ReadOutcome::Ok, "an offset beyond all bounds is refused");
    }
}

fn threads_share_it(rig: &Rig, keys: &[SampleKey], samples: &[Vec<u8>]) {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..4).for_each(|_| reads_match(rig, keys, samples)));
        }
    });
}

fn reads_match(rig: &Rig, keys: &[SampleKey], samples: &[Vec<u8>]) {
    for (read, sample) in read_all(rig, keys, samples).into_iter().zip(samples) {
        let (done, bytes) = rig.end_of(read);
        assert!(done.outcome == ReadOutcome::Ok && bytes == *sample, "{done:?}");
    }
}

fn cancelling_ends_each_ticket_once(rig: &Rig, keys: &[SampleKey], samples: &[Vec<u8>]) {
    for _ in 0..8 {
        let reads = read_all(rig, keys, samples);
        reads.iter().rev().step_by(2).for_each(|read| rig.tier.cancel(read.ticket));
        for (nth, (read, sample)) in reads.into_iter().rev().zip(samples.iter().rev()).enumerate() {
            let (done, bytes) = rig.end_of(read);
            match done.outcome {
                ReadOutcome::Ok => assert!(bytes == *sample, "Ok means that every byte is right"),
                outcome => assert!(outcome == ReadOutcome::Cancelled && nth % 2 == 0, "{done:?}"),
            }
        }
    }
}

fn closing_ends_each_ticket_once_then_refuses(rig: &Rig, keys: &[SampleKey], samples: &[Vec<u8>]) {
    let reads = read_all(rig, keys, samples);
    rig.tier.close(GRACE);
    rig.tier.close(GRACE);
    for (read, sample) in reads.into_iter().zip(samples) {
        let (done, bytes) = rig.end_of(read);
        assert!(done.outcome != ReadOutcome::Ok || bytes == *sample, "Ok means that every byte is right");
    }
    let (done, _) = rig.read(keys[1], 0, samples[1].len());
    assert_eq!(done.outcome, ReadOutcome::Cancelled, "a closed place refuses");
    assert_eq!(rig.tier.facts().in_flight, 0, "a closed place has nothing under way");
}

fn a_new_version_replaces_the_old(rig: &Rig) {
    let (old, new) = (key(3), SampleKey { tag: TagHash(99), ..key(3) });
    assert_eq!(rig.write(old, &content(1, 5000)).outcome, ReadOutcome::Ok);
    assert_eq!(rig.write(old, &content(1, 5000)).outcome, ReadOutcome::Ok, "the same again is no fault");
    assert_eq!(rig.write(new, &content(2, 7000)).outcome, ReadOutcome::Ok);
    assert_eq!(rig.read(old, 0, 5000).0.outcome, ReadOutcome::Absent, "versions never mix");
    let (done, bytes) = rig.read(new, 0, 7000);
    assert!(done.outcome == ReadOutcome::Ok && bytes == content(2, 7000), "{done:?}");
    assert_eq!(rig.forget(old).outcome, ReadOutcome::Absent, "forgetting the old leaves the new");
    let other_set = SampleKey { fingerprint: Fingerprint([8; 16]), ..new };
    assert_eq!(rig.read(other_set, 0, 7000).0.outcome, ReadOutcome::Absent, "data sets never mix");
    rig.tier.close(GRACE);
}

fn forgetting_is_done_once(rig: &Rig, samples: &[Vec<u8>]) {
    for (id, sample) in (0..).zip(samples) {
        assert_eq!(rig.write(key(id), sample).outcome, ReadOutcome::Ok);
        assert_eq!(rig.forget(key(id)).outcome, ReadOutcome::Ok);
        assert_eq!(rig.forget(key(id)).outcome, ReadOutcome::Absent);
        assert_eq!(rig.read(key(id), 0, sample.len()).0.outcome, ReadOutcome::Absent);
    }
    rig.tier.close(GRACE);
}

fn capacity_holds_and_freed_room_is_room(rig: &Rig) {
    let len = 100_000;
    let too_large = vec![0; usize::try_from(CAPACITY.get()).expect("8 MiB") + 1];
    assert_eq!(rig.write(key(0), &too_large).outcome, ReadOutcome::Full, "no place takes more than it holds");
    let fill = || {
        (0..10_000)
            .take_while(|id| rig.write(key(*id), &content(*id, len)).outcome == ReadOutcome::Ok)
            .count()
    };
    let first = fill();
    assert!(first * len > 6 << 20, "most of the room is room for samples: {first} of {len} bytes");
    assert_eq!(rig.read(key(first as u64), 0, len).0.outcome, ReadOutcome::Absent, "Full keeps nothing");
    for id in 0..first as u64 {
        let (done, bytes) = rig.read(key(id), 0, len);
        assert!(
            done.outcome == ReadOutcome::Ok && bytes == content(id, len),
            "Full costs no sample: {done:?}"
        );
    }
    for id in (0..first as u64).step_by(2) {
        assert_eq!(rig.forget(key(id)).outcome, ReadOutcome::Ok);
    }
    for id in (0..first as u64).step_by(2) {
        let done = rig.write(key(id), &content(id, len));
        assert_eq!(done.outcome, ReadOutcome::Ok, "room of a forgotten sample is room for another");
    }
    (0..first as u64).for_each(|id| assert_eq!(rig.forget(key(id)).outcome, ReadOutcome::Ok));
    assert_eq!(fill(), first, "an emptied place holds as much as a new one");
    rig.tier.close(GRACE);
}

/// Four threads on ids of their own, and reads of anything by all: what is read is never wrong.
fn writers_readers_and_droppers_mix(rig: &Rig) {
    let len = |id: u64| [900, 70_000, 0, 5_000][usize::try_from(id % 4).expect("below 4")];
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            scope.spawn(move || {
                for turn in 0..120_u64 {
                    let id = turn * 7 % 12 * 4 + thread;
                    match turn % 3 {
                        0 => {
                            let outcome = rig.write(key(id), &content(id, len(id))).outcome;
                            assert!(matches!(outcome, ReadOutcome::Ok | ReadOutcome::Full), "{outcome:?}");
                        }
                        1 => {
                            let outcome = rig.forget(key(id)).outcome;
                            assert!(matches!(outcome, ReadOutcome::Ok | ReadOutcome::Absent), "{outcome:?}");
                        }
                        _ => {}
                    }
                    let other = turn * 5 % 48;
                    let (done, bytes) = rig.read(key(other), 0, len(other));
                    match done.outcome {
                        ReadOutcome::Ok => assert!(bytes == content(other, len(other)), "bytes of {other}"),
                        outcome => assert_eq!(outcome, ReadOutcome::Absent),
                    }
                }
            });
        }
    });
    rig.tier.close(GRACE);
}

/// One place under test, with the means to wait for its ends.
struct Rig {
    tier: Arc<dyn Tier>,
    ends: Ends,
}

/// A read under way.
struct Reading {
    ticket: Ticket,
    scratch: Arc<Scratch>,
}

impl Rig {
    fn new(tier: Arc<dyn Tier>, ends: Ends) -> Self {
        Self { tier, ends }
    }

    fn begin_read(&self, key: SampleKey, offset: u64, len: usize) -> Reading {
        let (dest, scratch) = Dest::from_vec(vec![0xEE; len]);
        let ticket = next_ticket();
        self.tier.submit(Op::Read { ticket, key, offset, dest });
        Reading { ticket, scratch }
    }

    fn end_of(&self, read: Reading) -> (Done, Vec<u8>) {
        let done = self.end(read.ticket);
        let bytes = read.scratch.into_bytes().expect("the memory is given back before the end is told");
        (done, bytes)
    }

    fn read(&self, key: SampleKey, offset: u64, len: usize) -> (Done, Vec<u8>) {
        self.end_of(self.begin_read(key, offset, len))
    }

    /// Writes, again as long as the place asks to slow down.
    fn write(&self, key: SampleKey, sample: &[u8]) -> Done {
        let began = Instant::now();
        let payload = Payload::from_vec(sample.to_vec());
        loop {
            let ticket = next_ticket();
            self.tier.submit(Op::Write { ticket, key, payload: payload.clone() });
            let done = self.end(ticket);
            if !matches!(done.outcome, ReadOutcome::Throttled { .. }) {
                return done;
            }
            assert!(began.elapsed() < PATIENCE, "a place that asks to slow down takes samples again");
            std::thread::yield_now();
        }
    }

    fn forget(&self, key: SampleKey) -> Done {
        let ticket = next_ticket();
        self.tier.submit(Op::Drop { ticket, key });
        self.end(ticket)
    }

    fn end(&self, ticket: Ticket) -> Done {
        let done = self.ends.wait_for(ticket);
        let facts = self.tier.facts();
        assert!(facts.used <= facts.capacity, "capacity is never exceeded: {facts:?}");
        done
    }
}

fn read_all(rig: &Rig, keys: &[SampleKey], samples: &[Vec<u8>]) -> Vec<Reading> {
    keys.iter().zip(samples).map(|(key, sample)| rig.begin_read(*key, 0, sample.len())).collect()
}

/// Unique over all rigs: a stray end of one place can then never pass for an end of another.
fn next_ticket() -> Ticket {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Ticket(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The ends that came in, and who waits for them.
struct Ends {
    completions: Completions,
    state: Arc<Waiting>,
}

#[derive(Default)]
struct Waiting {
    woken: Mutex<bool>,
    wake: Condvar,
    ends: Mutex<HashMap<Ticket, Option<Done>>>,
}

impl Ends {
    fn new() -> Self {
        let state = Arc::new(Waiting::default());
        let waker = Arc::clone(&state);
        let completions = Completions::new(move || {
            *waker.woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
            waker.wake.notify_all();
        });
        Self { completions, state }
    }

    /// Over a queue whose waker is another's: waits in slices instead.
    fn over(completions: Completions) -> Self {
        Self { completions, state: Arc::default() }
    }

    fn wait_for(&self, ticket: Ticket) -> Done {
        let began = Instant::now();
        loop {
            self.take_in();
            let found = {
                let mut ends = self.state.ends.lock().unwrap_or_else(PoisonError::into_inner);
                ends.get_mut(&ticket).and_then(Option::take)
            };
            if let Some(done) = found {
                return done;
            }
            assert!(began.elapsed() < PATIENCE, "{ticket:?} has no end after {PATIENCE:?}");
            let woken = self.state.woken.lock().unwrap_or_else(PoisonError::into_inner);
            // Other waiters may take an end in between its arrival and this wait, hence the slice.
            let slice = Duration::from_millis(2);
            let (mut woken, _) =
                self.state.wake.wait_timeout(woken, slice).unwrap_or_else(PoisonError::into_inner);
            *woken = false;
        }
    }

    /// Ends stay listed after they are taken, so that a second one of the same ticket shows.
    fn take_in(&self) {
        let mut ends = self.state.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let mut arrived = Vec::new();
        self.completions.drain(&mut arrived);
        let any = !arrived.is_empty();
        for done in arrived {
            let ticket = done.ticket;
            assert!(ends.insert(ticket, Some(done)).is_none(), "{ticket:?} ended twice");
        }
        drop(ends);
        if any {
            self.state.wake.notify_all();
        }
    }
}
