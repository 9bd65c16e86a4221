// SPDX-License-Identifier: Apache-2.0
//! Reads of an origin in virtual time, with a fake tier whose operations the test ends.

mod fake_tier;

use foresee_data_fetch::{Class, CoalesceConfig, DispatchConfig};
use foresee_data_tier::{Detail, Fingerprint, TagHash};
use foresee_ledger::Op::{Open, Read};
use foresee_units::SampleId;

use super::*;
use crate::buffer::{BufferPool, BufferRange};
use fake_tier::{FakeRead, FakeTier, ticket_of};

/// Length of a sample.
const LEN: usize = 100;
/// First number of the reads that give the queue its latency statistics.
const WARM_UP: u64 = 1000;

/// The byte at `position` of an object.
fn byte(position: u64) -> u8 {
    u8::try_from(position % 251).expect("below 251")
}

/// Reads of two fake tiers, and the memory of each read.
struct Scene {
    tiers: [Arc<FakeTier>; 2],
    pool: Arc<BufferPool>,
    reads: OriginReads<BufferRange>,
    now: Nanos,
}

impl Scene {
    fn new(config: DispatchConfig) -> Self {
        Self {
            tiers: <[_; 2]>::default(),
            pool: Arc::new(BufferPool::new(Bytes::new(1 << 20), Arc::default())),
            reads: OriginReads::new(Dispatch::new(config), ticket_of),
            now: Nanos::ZERO,
        }
    }

    /// A queue with statistics, whose urgent attempts are hedged after 20 ms.
    fn warm() -> Self {
        let mut scene = Self::new(DispatchConfig { hedge_share: 1.0, ..DispatchConfig::adaptive() });
        for number in WARM_UP..WARM_UP + 40 {
            scene.request(number);
            let attempt = scene.only_start();
            scene.advance(10);
            scene.finish(attempt, ReadOutcome::Ok, None);
            assert_eq!(scene.ends(), [(number, "complete".to_owned())]);
        }
        scene.tiers[0].take_submissions();
        scene
    }

    fn advance(&mut self, millis: u64) {
        self.now = self.now.saturating_add(Nanos::from_millis(millis));
    }

    /// Request sample `number` of the first tier, in an object of its own; return the start of its memory.
    fn request(&mut self, number: u64) -> *const u8 {
        let memory = self.memory(LEN);
        self.request_range(number, 0, number, 0, memory)
    }

    fn memory(&self, size: usize) -> BufferRange {
        BufferRange { buffer: self.pool.lend(size), offset: 0, len: LEN }
    }

    fn request_range(
        &mut self,
        number: u64,
        tier: usize,
        object: u64,
        start: u64,
        memory: BufferRange,
    ) -> *const u8 {
        let origin: Arc<dyn Tier> = Arc::<FakeTier>::clone(&self.tiers[tier]);
        let key = SampleKey { fingerprint: Fingerprint([1; 16]), id: SampleId(number), tag: TagHash(0) };
        let request = Request {
            ticket: number,
            object,
            start,
            len: LEN as u64,
            class: Class::Staging,
            turn: 0,
            deadline: Nanos::MAX,
            group: None,
        };
        // Memory that a test cannot map has no address.
        let address = memory.ensure_mapped().map_or(std::ptr::null(), |()| memory.buffer.start().as_ptr());
        self.reads.handle_request(OriginRead { origin, key, request, memory }, self.now);
        address
    }

    /// Start attempts; return those of the first tier that are new.
    fn start(&mut self) -> Vec<u64> {
        let before = self.tiers[0].in_flight();
        self.reads.start_attempts(self.now);
        let mut after = self.tiers[0].in_flight();
        after.retain(|attempt| !before.contains(attempt));
        after
    }

    /// Start attempts; return the new one.
    fn only_start(&mut self) -> u64 {
        let started = self.start();
        assert_eq!(started.len(), 1, "{started:?}");
        started[0]
    }

    /// Start a hedge of read `number`, which the consumer waits for; return its attempt.
    fn hedge(&mut self, number: u64) -> u64 {
        self.reads.handle_urgent(number, self.now);
        self.advance(30);
        self.only_start()
    }

    /// Start of the memory that an attempt writes to.
    fn target(&self, attempt: u64) -> *const u8 {
        let mut reads = self.tiers[0].reads();
        let read = reads.iter_mut().find(|read| read.attempt == attempt).expect("it is in flight");
        read.dest.as_mut_slice().as_ptr()
    }

    fn finish(
        &mut self,
        attempt: u64,
        outcome: ReadOutcome,
        message: Option<&str>,
    ) -> Option<AttemptSummary> {
        self.finish_at(0, attempt, outcome, message)
    }

    /// End an attempt. If it succeeds, its bytes are those of an object that begins with its first sample.
    fn finish_at(
        &mut self,
        tier: usize,
        attempt: u64,
        outcome: ReadOutcome,
        message: Option<&str>,
    ) -> Option<AttemptSummary> {
        let FakeRead { offset, mut dest, .. } = self.tiers[tier].take(attempt);
        // A failed attempt has written some bytes too.
        let written = if outcome == ReadOutcome::Ok { dest.len() } else { dest.len() / 2 };
        for (position, target) in (offset..).zip(&mut dest.as_mut_slice()[..written]) {
            *target = if outcome == ReadOutcome::Ok { byte(position) } else { 255 };
        }
        drop(dest);
        let done = Done {
            ticket: ticket_of(attempt),
            outcome,
            bytes: Bytes::new(written as u64),
            queued: Nanos::ZERO,
            service: Nanos::from_millis(10),
            detail: Detail { message: message.map(Into::into), ..Detail::default() },
        };
        self.reads.handle_done(attempt, &done, self.now)
    }

    /// All ends since the last call. The bytes of a complete read begin at the byte that `finish_at` gave its sample.
    fn ends(&mut self) -> Vec<(u64, String)> {
        let mut ends = Vec::new();
        while let Some(OriginEnd { number, memory, result }) = self.reads.poll_end() {
            let text = match result {
                OriginResult::Complete => {
                    // SAFETY: the read has ended.
                    let bytes = unsafe { memory.bytes() };
                    let first = u64::from(bytes[0]);
                    assert!((first..).zip(bytes).all(|(position, &found)| found == byte(position)));
                    if first == 0 { "complete".to_owned() } else { format!("complete from {first}") }
                }
                OriginResult::Failed(failure) => {
                    let message = failure.message.as_deref().unwrap_or("no message");
                    format!("{:?} after {}: {message}", failure.outcome, failure.tries)
                }
                OriginResult::NoMemory(_) => "no memory".to_owned(),
                OriginResult::Withdrawn => "withdrawn".to_owned(),
            };
            ends.push((number, text));
        }
        ends
    }
}

fn coalescing() -> DispatchConfig {
    let coalesce = CoalesceConfig { gap: Bytes::new(50), target: Bytes::new(1 << 20), max_parts: 8 };
    DispatchConfig { coalesce: Some(coalesce), ..DispatchConfig::adaptive() }
}

fn ended(number: u64, text: &str) -> Vec<(u64, String)> {
    vec![(number, text.to_owned())]
}

#[test]
fn the_only_attempt_writes_to_the_memory_of_its_read() {
    let mut scene = Scene::new(DispatchConfig::adaptive());
    let memory = scene.request(7);
    assert_eq!(scene.reads.status(7), Some(ReadStatus::default()));
    let attempt = scene.only_start();
    assert_eq!(scene.target(attempt), memory);
    assert!(scene.reads.status(7).expect("in flight").is_in_flight);
    assert_eq!(scene.ends(), []);
    let summary = scene.finish(attempt, ReadOutcome::Ok, None);
    assert_eq!(summary, Some(AttemptSummary { first: 7, samples: 1, attempt: 1 }));
    assert_eq!(scene.ends(), ended(7, "complete"));
    assert_eq!(scene.reads.status(7), None);
}

#[test]
fn a_joined_attempt_fills_the_memory_of_each_of_its_reads() {
    let mut scene = Scene::new(coalescing());
    for (number, start) in [(1, 0), (2, 100), (3, 230)] {
        let memory = scene.memory(LEN);
        scene.request_range(number, 0, 9, start, memory);
    }
    let attempt = scene.only_start();
    let summary = scene.finish(attempt, ReadOutcome::Ok, None);
    assert_eq!(summary, Some(AttemptSummary { first: 1, samples: 3, attempt: 1 }));
    let texts = [(1, "complete"), (2, "complete from 100"), (3, "complete from 230")];
    assert_eq!(scene.ends(), texts.map(|(number, text)| (number, text.to_owned())));
}

#[test]
fn a_withdrawn_part_of_a_joined_attempt_ends_at_once_and_the_others_are_filled() {
    let mut scene = Scene::new(coalescing());
    for (number, start) in [(1, 0), (2, 100)] {
        let memory = scene.memory(LEN);
        scene.request_range(number, 0, 9, start, memory);
    }
    let attempt = scene.only_start();
    scene.reads.handle_withdraw(1, scene.now);
    assert_eq!(scene.ends(), ended(1, "withdrawn"));
    assert_eq!((scene.start(), scene.tiers[0].take_cancelled()), (vec![], vec![]));
    let summary = scene.finish(attempt, ReadOutcome::Ok, None);
    assert_eq!(summary, Some(AttemptSummary { first: 2, samples: 2, attempt: 1 }));
    assert_eq!(scene.ends(), ended(2, "complete from 100"));
}

#[test]
fn a_hedge_that_wins_is_copied_once_the_first_attempt_has_stopped_writing() {
    let mut scene = Scene::warm();
    let memory = scene.request(7);
    let first = scene.only_start();
    let hedge = scene.hedge(7);
    assert_ne!(scene.target(hedge), memory);
    let summary = scene.finish(hedge, ReadOutcome::Ok, None);
    assert_eq!(summary, Some(AttemptSummary { first: 7, samples: 1, attempt: 2 }));
    assert_eq!(scene.ends(), [], "the first attempt may still write");
    scene.start();
    assert_eq!(scene.tiers[0].take_cancelled(), [first]);
    // Half of the bytes are wrong when the attempt ends.
    let summary = scene.finish(first, ReadOutcome::Cancelled, None);
    assert_eq!(summary, Some(AttemptSummary { first: 7, samples: 1, attempt: 1 }));
    assert_eq!(scene.ends(), ended(7, "complete"));
}

#[test]
fn a_hedge_that_loses_changes_nothing() {
    let mut scene = Scene::warm();
    scene.request(7);
    let first = scene.only_start();
    let hedge = scene.hedge(7);
    scene.finish(first, ReadOutcome::Ok, None);
    assert_eq!(scene.ends(), ended(7, "complete"));
    scene.start();
    assert_eq!(scene.tiers[0].take_cancelled(), [hedge]);
    assert_eq!(scene.finish(hedge, ReadOutcome::Ok, None), None);
    assert_eq!(scene.ends(), []);
    assert_eq!(scene.reads.queue().in_flight(), 0);
}

#[test]
fn a_failure_is_reported_once_the_first_attempt_has_stopped_writing() {
    let mut scene = Scene::warm();
    scene.request(7);
    let first = scene.only_start();
    let hedge = scene.hedge(7);
    scene.finish(hedge, ReadOutcome::Absent, Some("no such key"));
    scene.start();
    assert_eq!((scene.ends(), scene.tiers[0].take_cancelled()), (vec![], vec![first]));
    let status = ReadStatus { is_in_flight: true, has_failed: true, message: Some("no such key") };
    assert_eq!(scene.reads.status(7), Some(status));
    scene.finish(first, ReadOutcome::Cancelled, None);
    assert_eq!(scene.ends(), ended(7, "Absent after 1: no such key"));
}

#[test]
fn a_read_is_tried_again_and_the_next_attempt_writes_to_its_memory() {
    let mut scene = Scene::new(DispatchConfig::adaptive());
    let memory = scene.request(7);
    let first = scene.only_start();
    scene.finish(first, ReadOutcome::Retryable, Some("reset by peer"));
    assert_eq!((scene.start(), scene.ends()), (vec![], vec![]));
    let status = ReadStatus { is_in_flight: false, has_failed: true, message: Some("reset by peer") };
    assert_eq!(scene.reads.status(7), Some(status));
    scene.now = scene.reads.queue().poll_wakeup().expect("a retry");
    let second = scene.only_start();
    assert_eq!(scene.target(second), memory);
    let summary = scene.finish(second, ReadOutcome::Ok, None);
    assert_eq!(summary, Some(AttemptSummary { first: 7, samples: 1, attempt: 2 }));
    assert_eq!(scene.ends(), ended(7, "complete"));
}

#[test]
fn a_read_that_no_attempt_can_serve_fails_with_the_message_of_the_origin() {
    let mut scene = Scene::new(DispatchConfig::adaptive());
    scene.request(7);
    let attempt = scene.only_start();
    scene.finish(attempt, ReadOutcome::Denied, Some("status 403"));
    scene.start();
    assert_eq!(scene.ends(), ended(7, "Denied after 1: status 403"));
}

#[test]
fn a_read_that_is_withdrawn_in_flight_returns_its_memory_at_the_end_of_the_attempt() {
    for outcome in [ReadOutcome::Cancelled, ReadOutcome::Ok, ReadOutcome::Absent] {
        let mut scene = Scene::new(DispatchConfig::adaptive());
        scene.request(7);
        let attempt = scene.only_start();
        scene.reads.handle_withdraw(7, scene.now);
        scene.start();
        assert_eq!((scene.ends(), scene.tiers[0].take_cancelled()), (vec![], vec![attempt]));
        assert_eq!(scene.finish(attempt, outcome, None), None);
        assert_eq!(scene.ends(), ended(7, "withdrawn"));
    }
}

#[test]
fn a_withdrawal_after_a_hedge_has_won_waits_for_the_first_attempt() {
    let mut scene = Scene::warm();
    scene.request(7);
    let first = scene.only_start();
    let hedge = scene.hedge(7);
    scene.finish(hedge, ReadOutcome::Ok, None);
    scene.reads.handle_withdraw(7, scene.now);
    assert_eq!(scene.ends(), []);
    scene.finish(first, ReadOutcome::Cancelled, None);
    assert_eq!(scene.ends(), ended(7, "withdrawn"));
}

#[test]
fn a_read_that_is_withdrawn_before_its_first_attempt_returns_its_memory_at_once() {
    let mut scene = Scene::new(DispatchConfig::adaptive());
    scene.request(7);
    scene.reads.handle_withdraw(7, scene.now);
    assert_eq!(scene.ends(), ended(7, "withdrawn"));
    scene.reads.handle_withdraw(7, scene.now);
    assert_eq!((scene.start(), scene.ends()), (vec![], vec![]));
}

#[test]
fn the_reads_of_two_origins_share_one_queue() {
    let mut scene = Scene::new(DispatchConfig::adaptive());
    for (number, tier) in [(1, 0), (2, 1), (3, 0), (4, 1)] {
        let memory = scene.memory(LEN);
        scene.request_range(number, tier, number, 0, memory);
    }
    scene.start();
    assert_eq!(scene.reads.queue().in_flight(), 4);
    for (tier, samples) in [(0, [1, 3]), (1, [2, 4])] {
        assert_eq!(scene.tiers[tier].take_submissions(), [2], "one submission per origin");
        let found: Vec<u64> = scene.tiers[tier].reads().iter().map(|read| read.sample).collect();
        assert_eq!(found, samples);
    }
    scene.reads.handle_withdraw(4, scene.now);
    scene.start();
    let cancelled = scene.tiers.each_ref().map(|tier| tier.take_cancelled().len());
    assert_eq!(cancelled, [0, 1], "the origin of a read cancels it");
    for tier in [0, 1] {
        for attempt in scene.tiers[tier].in_flight() {
            scene.finish_at(tier, attempt, ReadOutcome::Ok, None);
        }
    }
    let texts = [(1, "complete"), (3, "complete"), (2, "complete"), (4, "withdrawn")];
    assert_eq!(scene.ends(), texts.map(|(number, text)| (number, text.to_owned())));
}

#[test]
fn a_read_without_memory_ends_and_the_others_of_its_attempt_are_read() {
    let mut scene = Scene::new(coalescing());
    for (number, start, size) in [(1, 0, 1 << 60), (2, 100, LEN)] {
        let memory = scene.memory(size);
        scene.request_range(number, 0, 9, start, memory);
    }
    let attempt = scene.only_start();
    assert_eq!(scene.ends(), ended(1, "no memory"));
    let summary = scene.finish(attempt, ReadOutcome::Ok, None);
    assert_eq!(summary, Some(AttemptSummary { first: 2, samples: 1, attempt: 1 }));
    assert_eq!(scene.ends(), ended(2, "complete from 100"));
}

#[test]
fn an_attempt_whose_reads_have_no_memory_is_not_submitted() {
    let mut scene = Scene::new(DispatchConfig::adaptive());
    let memory = scene.memory(1 << 60);
    scene.request_range(7, 0, 7, 0, memory);
    assert_eq!((scene.start(), scene.ends()), (vec![], ended(7, "no memory")));
    assert_eq!((scene.reads.queue().in_flight(), scene.reads.queue().stats().queued), (0, 0));
    assert_eq!(scene.reads.queue().poll_wakeup(), None);
}

#[test]
#[should_panic(expected = "read 7 has not ended")]
fn a_number_of_a_read_in_flight_is_refused() {
    let mut scene = Scene::new(DispatchConfig::adaptive());
    scene.request(7);
    scene.request(7);
}

#[test]
fn the_ledger_gets_the_open_of_an_object_and_the_rest_of_the_time() {
    let ms = Nanos::from_millis;
    let done = |open| Done {
        ticket: Ticket(0),
        outcome: ReadOutcome::Ok,
        bytes: Bytes::new(LEN as u64),
        queued: ms(1),
        service: ms(10),
        detail: Detail { open, ..Detail::default() },
    };
    let of = |open| -> Vec<_> {
        ledger_operations(&done(open)).map(|(op, part)| (op, part.bytes.get(), part.service)).collect()
    };
    assert_eq!(of(None), [(Read, 100, ms(10))]);
    assert_eq!(of(Some(ms(3))), [(Open, 0, ms(3)), (Read, 100, ms(7))]);
}
