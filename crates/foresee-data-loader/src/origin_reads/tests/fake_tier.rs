// SPDX-License-Identifier: Apache-2.0
//! A fake tier in memory, whose operations end when the test ends them.

use std::sync::{Mutex, MutexGuard};

use foresee_data_tier::{Dest, Op, Ticket, Tier, TierFacts};
use foresee_units::{Bytes, Nanos};

/// Tickets of attempts have this bit.
const ATTEMPT: u64 = 1 << 62;

/// A tier in memory that retains each operation until the test ends it.
#[derive(Debug, Default)]
pub(super) struct FakeTier {
    reads: Mutex<Vec<FakeRead>>,
    cancelled: Mutex<Vec<u64>>,
    /// Number of operations of each submission.
    submissions: Mutex<Vec<usize>>,
}

/// A submitted operation.
#[derive(Debug)]
pub(super) struct FakeRead {
    pub(super) attempt: u64,
    pub(super) sample: u64,
    pub(super) offset: u64,
    pub(super) dest: Dest,
}

impl FakeTier {
    pub(super) fn reads(&self) -> MutexGuard<'_, Vec<FakeRead>> {
        self.reads.lock().expect("no panic")
    }

    /// Attempts that were submitted and have not ended.
    pub(super) fn in_flight(&self) -> Vec<u64> {
        self.reads().iter().map(|read| read.attempt).collect()
    }

    pub(super) fn take_cancelled(&self) -> Vec<u64> {
        std::mem::take(&mut self.cancelled.lock().expect("no panic"))
    }

    pub(super) fn take_submissions(&self) -> Vec<usize> {
        std::mem::take(&mut self.submissions.lock().expect("no panic"))
    }

    /// Take an attempt out of those in flight.
    pub(super) fn take(&self, attempt: u64) -> FakeRead {
        let mut reads = self.reads();
        let at = reads.iter().position(|read| read.attempt == attempt).expect("it is in flight");
        reads.remove(at)
    }
}

impl Tier for FakeTier {
    fn submit(&self, op: Op) {
        self.submit_many(vec![op]);
    }

    fn submit_many(&self, ops: Vec<Op>) {
        self.submissions.lock().expect("no panic").push(ops.len());
        for op in ops {
            let Op::Read { ticket, key, offset, dest } = op else { panic!("only reads are submitted") };
            let attempt = ticket.0 & !ATTEMPT;
            assert_eq!(ticket, ticket_of(attempt));
            self.reads().push(FakeRead { attempt, sample: key.id.0, offset, dest });
        }
    }

    fn cancel(&self, ticket: Ticket) {
        self.cancelled.lock().expect("no panic").push(ticket.0 & !ATTEMPT);
    }

    fn facts(&self) -> TierFacts {
        let in_flight = u32::try_from(self.reads().len()).expect("few");
        TierFacts { place: "fake".to_owned(), capacity: Bytes::MAX, used: Bytes::ZERO, in_flight }
    }

    fn close(&self, _grace: Nanos) {}
}

/// The ticket of an attempt.
pub(super) fn ticket_of(attempt: u64) -> Ticket {
    Ticket(attempt | ATTEMPT)
}
