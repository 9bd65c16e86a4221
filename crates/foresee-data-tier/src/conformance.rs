// SPDX-License-Identifier: Apache-2.0
//! The guarantees of every tier, as one suite that each of them runs.
//!
//! [`check_reads`] is for all tiers, [`check_writes`] (which includes it) for those that store samples, and
//! [`check_faults`] for origins that fail. The suite uses a [`Tier`], its keys and its completion queue only, and
//! panics with the violated guarantee. A completion that does not come before the watchdog is a violation.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use foresee_testkit::wait_until;
use foresee_units::{Bytes, GAMMA, Nanos, ReadOutcome, SampleId};

use crate::{Completions, Dest, Done, Fingerprint, Op, Payload, SampleKey, Scratch, TagHash, Ticket, Tier};

/// A tier that contains samples.
#[derive(Debug)]
pub(crate) struct FilledTier {
    pub(crate) tier: Arc<dyn Tier>,
    /// The keys of the samples, in order.
    pub(crate) keys: Vec<SampleKey>,
    /// A key that the tier does not contain.
    pub(crate) absent: SampleKey,
}

/// Check the guarantees of reads. `open` returns a new tier with the given samples.
pub(crate) fn check_reads(open: impl Fn(Completions, &[Vec<u8>]) -> FilledTier) {
    let open_rig = |samples: &[Vec<u8>]| {
        let ends = Ends::new();
        let FilledTier { tier, keys, absent } = open(ends.completions.clone(), samples);
        (Rig::new(tier, ends), keys, absent)
    };
    let samples = samples();
    let (rig, keys, absent) = open_rig(&samples);
    reads_are_whole_and_exact(&rig, &keys, &samples);
    ranges_are_exact(&rig, &keys, &samples);
    missing_samples_are_absent(&rig, absent);
    threads_share_a_tier(&rig, &keys, &samples);
    cancel_ends_each_ticket_once(&rig, &keys, &samples);
    close_ends_each_ticket_once_and_refuses_new_ones(&rig, &keys, &samples);
    let (rig, keys, _) = open_rig(&samples);
    a_read_past_the_end_is_never_ok(&rig, &keys, &samples);
    rig.tier.close(GRACE);
}

/// Check the guarantees of tiers that store samples, with those of reads. `open` returns a new, empty tier of the
/// given capacity (4 MiB or more).
pub(crate) fn check_writes(open: impl Fn(Completions, Bytes) -> Arc<dyn Tier>) {
    let open_rig = |capacity: Bytes| {
        let ends = Ends::new();
        let tier = open(ends.completions.clone(), capacity);
        Rig::new(tier, ends)
    };
    let samples = samples();
    let open_filled = |completions: Completions, samples: &[Vec<u8>]| {
        // This rig shares the queue with the rig of `check_reads`, and takes its completions out first.
        let rig = Rig::new(open(completions.clone(), CAPACITY), Ends::over(completions));
        let keys: Vec<_> = (0..samples.len() as u64).map(key).collect();
        for (key, sample) in keys.iter().zip(samples) {
            assert_eq!(rig.write(*key, sample).outcome, ReadOutcome::Ok, "an empty tier accepts {key:?}");
        }
        FilledTier { tier: rig.tier, keys, absent: key(1 << 40) }
    };
    check_reads(open_filled);

    a_new_version_replaces_the_old(&open_rig(CAPACITY));
    a_second_drop_is_absent(&open_rig(CAPACITY), &samples);
    capacity_holds_and_freed_bytes_are_reused(&open_rig(CAPACITY));
    writers_readers_and_droppers_mix(&open_rig(CAPACITY));
    let rig = open_rig(CAPACITY);
    let _ = rig.write(key(0), &samples[0]);
    rig.tier.close(GRACE);
    assert_eq!(
        rig.write(key(1), &samples[1]).outcome,
        ReadOutcome::Cancelled,
        "a closed tier accepts no sample"
    );
    assert_eq!(rig.drop_sample(key(0)).outcome, ReadOutcome::Cancelled, "a closed tier drops none");
}

/// Check the guarantees that hold while reads fail: each ticket ends once, and `Ok` means that all bytes are right.
pub(crate) fn check_faults(open: impl Fn(Completions, &[Vec<u8>]) -> FilledTier) {
    let samples = samples();
    let ends = Ends::new();
    let FilledTier { tier, keys, .. } = open(ends.completions.clone(), &samples);
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
    close_ends_each_ticket_once_and_refuses_new_ones(&rig, &keys, &samples);
}

const CAPACITY: Bytes = Bytes::new(8 << 20);
const GRACE: Nanos = Nanos::from_secs(5);

/// Sizes at the limits where tiers change their method: nothing, one byte, a cache line, a page, large.
fn samples() -> Vec<Vec<u8>> {
    [0, 1, 63, 64, 65, 4095, 4096, 4097, 65_535, 65_536, 300_001, 1_100_000]
        .into_iter()
        .enumerate()
        .map(|(seed, len)| content(seed as u64, len))
        .collect()
}

/// `len` bytes that differ between positions and seeds.
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
        assert_eq!(done.bytes.get(), sample.len() as u64, "a completion reports the bytes moved");
        assert!(bytes == *sample, "the bytes of {key:?} are its own");
    }
    assert_eq!(rig.tier.facts().in_flight, 0, "nothing is in flight after all completions");
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

fn missing_samples_are_absent(rig: &Rig, absent: SampleKey) {
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

fn threads_share_a_tier(rig: &Rig, keys: &[SampleKey], samples: &[Vec<u8>]) {
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

fn cancel_ends_each_ticket_once(rig: &Rig, keys: &[SampleKey], samples: &[Vec<u8>]) {
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

fn close_ends_each_ticket_once_and_refuses_new_ones(rig: &Rig, keys: &[SampleKey], samples: &[Vec<u8>]) {
    let reads = read_all(rig, keys, samples);
    rig.tier.close(GRACE);
    rig.tier.close(GRACE);
    for (read, sample) in reads.into_iter().zip(samples) {
        let (done, bytes) = rig.end_of(read);
        assert!(done.outcome != ReadOutcome::Ok || bytes == *sample, "Ok means that every byte is right");
    }
    let (done, _) = rig.read(keys[1], 0, samples[1].len());
    assert_eq!(done.outcome, ReadOutcome::Cancelled, "a closed tier refuses");
    assert_eq!(rig.tier.facts().in_flight, 0, "a closed tier has nothing in flight");
}

fn a_new_version_replaces_the_old(rig: &Rig) {
    let (old, new) = (key(3), SampleKey { tag: TagHash(99), ..key(3) });
    assert_eq!(rig.write(old, &content(1, 5000)).outcome, ReadOutcome::Ok);
    assert_eq!(rig.write(old, &content(1, 5000)).outcome, ReadOutcome::Ok, "the same again is no fault");
    assert_eq!(rig.write(new, &content(2, 7000)).outcome, ReadOutcome::Ok);
    assert_eq!(rig.read(old, 0, 5000).0.outcome, ReadOutcome::Absent, "versions never mix");
    let (done, bytes) = rig.read(new, 0, 7000);
    assert!(done.outcome == ReadOutcome::Ok && bytes == content(2, 7000), "{done:?}");
    assert_eq!(
        rig.drop_sample(old).outcome,
        ReadOutcome::Absent,
        "a drop of the old version leaves the new one"
    );
    let other_set = SampleKey { fingerprint: Fingerprint([8; 16]), ..new };
    assert_eq!(rig.read(other_set, 0, 7000).0.outcome, ReadOutcome::Absent, "data sets never mix");
    rig.tier.close(GRACE);
}

fn a_second_drop_is_absent(rig: &Rig, samples: &[Vec<u8>]) {
    for (id, sample) in (0..).zip(samples) {
        assert_eq!(rig.write(key(id), sample).outcome, ReadOutcome::Ok);
        assert_eq!(rig.drop_sample(key(id)).outcome, ReadOutcome::Ok);
        assert_eq!(rig.drop_sample(key(id)).outcome, ReadOutcome::Absent);
        assert_eq!(rig.read(key(id), 0, sample.len()).0.outcome, ReadOutcome::Absent);
    }
    rig.tier.close(GRACE);
}

fn capacity_holds_and_freed_bytes_are_reused(rig: &Rig) {
    let len = 100_000;
    let too_large = vec![0; usize::try_from(CAPACITY.get()).expect("8 MiB") + 1];
    assert_eq!(
        rig.write(key(0), &too_large).outcome,
        ReadOutcome::Full,
        "no tier accepts more than its capacity"
    );
    let fill = || {
        (0..10_000)
            .take_while(|id| rig.write(key(*id), &content(*id, len)).outcome == ReadOutcome::Ok)
            .count()
    };
    let first = fill();
    assert!(first * len > 6 << 20, "most of the capacity is usable: {first} of {len} bytes");
    assert_eq!(rig.read(key(first as u64), 0, len).0.outcome, ReadOutcome::Absent, "Full stores nothing");
    for id in 0..first as u64 {
        let (done, bytes) = rig.read(key(id), 0, len);
        assert!(
            done.outcome == ReadOutcome::Ok && bytes == content(id, len),
            "Full costs no sample: {done:?}"
        );
    }
    for id in (0..first as u64).step_by(2) {
        assert_eq!(rig.drop_sample(key(id)).outcome, ReadOutcome::Ok);
    }
    for id in (0..first as u64).step_by(2) {
        let done = rig.write(key(id), &content(id, len));
        assert_eq!(done.outcome, ReadOutcome::Ok, "bytes of a dropped sample are free for another");
    }
    (0..first as u64).for_each(|id| assert_eq!(rig.drop_sample(key(id)).outcome, ReadOutcome::Ok));
    assert_eq!(fill(), first, "an emptied tier holds as much as a new one");
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
                            let outcome = rig.drop_sample(key(id)).outcome;
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

/// A tier under test, with the means to wait for its completions.
struct Rig {
    tier: Arc<dyn Tier>,
    ends: Ends,
}

/// A read in flight.
struct PendingRead {
    ticket: Ticket,
    scratch: Arc<Scratch>,
}

impl Rig {
    fn new(tier: Arc<dyn Tier>, ends: Ends) -> Self {
        Self { tier, ends }
    }

    fn begin_read(&self, key: SampleKey, offset: u64, len: usize) -> PendingRead {
        let (dest, scratch) = Dest::from_vec(vec![0xEE; len]);
        let ticket = next_ticket();
        self.tier.submit(Op::Read { ticket, key, offset, dest });
        PendingRead { ticket, scratch }
    }

    fn end_of(&self, read: PendingRead) -> (Done, Vec<u8>) {
        let done = self.end(read.ticket);
        let bytes = read.scratch.into_bytes().expect("the memory is returned before the completion");
        (done, bytes)
    }

    fn read(&self, key: SampleKey, offset: u64, len: usize) -> (Done, Vec<u8>) {
        self.end_of(self.begin_read(key, offset, len))
    }

    /// Write, and repeat the write while the tier throttles.
    fn write(&self, key: SampleKey, sample: &[u8]) -> Done {
        let payload = Payload::from_vec(sample.to_vec());
        let mut last = None;
        wait_until("an end of throttling", || {
            let ticket = next_ticket();
            self.tier.submit(Op::Write { ticket, key, payload: payload.clone() });
            let done = last.insert(self.end(ticket));
            !matches!(done.outcome, ReadOutcome::Throttled { .. })
        });
        last.expect("at least one write")
    }

    fn drop_sample(&self, key: SampleKey) -> Done {
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

fn read_all(rig: &Rig, keys: &[SampleKey], samples: &[Vec<u8>]) -> Vec<PendingRead> {
    keys.iter().zip(samples).map(|(key, sample)| rig.begin_read(*key, 0, sample.len())).collect()
}

/// Unique over all rigs, so that a stray completion of one tier never counts as one of another.
fn next_ticket() -> Ticket {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Ticket(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The completions received so far, and a signal for their waiters.
struct Ends {
    completions: Completions,
    state: Arc<Arrived>,
}

#[derive(Default)]
struct Arrived {
    woken: Mutex<bool>,
    wake: Condvar,
    ends: Mutex<HashMap<Ticket, Option<Done>>>,
}

impl Ends {
    fn new() -> Self {
        let state = Arc::new(Arrived::default());
        let waker = Arc::clone(&state);
        let completions = Completions::new(move || {
            *waker.woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
            waker.wake.notify_all();
        });
        Self { completions, state }
    }

    /// Over a queue whose waker belongs to another rig: waiters poll every 2 ms.
    fn over(completions: Completions) -> Self {
        Self { completions, state: Arc::default() }
    }

    fn wait_for(&self, ticket: Ticket) -> Done {
        let mut found = None;
        wait_until("the completion of a ticket", || {
            found = self.take(ticket).or_else(|| {
                let woken = self.state.woken.lock().unwrap_or_else(PoisonError::into_inner);
                // Another waiter may drain a completion between its arrival and this wait, so the wait is bounded.
                let slice = Duration::from_millis(2);
                let waited = self.state.wake.wait_timeout_while(woken, slice, |woken| !*woken);
                *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
                self.take(ticket)
            });
            found.is_some()
        });
        found.expect("a completion")
    }

    fn take(&self, ticket: Ticket) -> Option<Done> {
        self.drain();
        self.state.ends.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&ticket).and_then(Option::take)
    }

    /// Drain the queue. Tickets stay listed after their completion is returned, so that a second one is detected.
    fn drain(&self) {
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
