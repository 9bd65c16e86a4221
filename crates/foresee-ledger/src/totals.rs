// SPDX-License-Identifier: Apache-2.0
//! Sums over entries during a run, for `stats()` without a read of the ledger.

use foresee_units::{Bytes, Nanos, ReadOutcome, Source};

use crate::entry::{Cause, Entry, Op};
use crate::histogram::Histogram;

/// The sum of entries of one kind.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Number of entries.
    pub count: u64,
    /// Number of their samples.
    pub samples: u64,
    /// Payload bytes moved.
    pub bytes: Bytes,
    /// Total time; parallel operations overlap, so it may exceed the run.
    pub time: Nanos,
    /// Distribution of their durations.
    pub durations: Histogram,
}

impl Tally {
    fn add(&mut self, entry: &Entry) {
        self.count += 1;
        self.samples += u64::from(entry.samples);
        self.bytes += entry.bytes;
        self.time += entry.duration;
        self.durations.add(entry.duration);
    }
}

/// Tallies by operation and source, and of waits by cause. A kind without entries has none.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    done: Vec<Option<Box<Tally>>>,
    failed: Vec<Option<Box<Tally>>>,
    waits: Vec<Option<Box<Tally>>>,
}

impl Totals {
    /// Add one entry.
    pub fn add(&mut self, entry: &Entry) {
        if entry.op == Op::Wait {
            let cause = entry.cause.map_or(0, |cause| cause as usize);
            tally_at(&mut self.waits, cause).add(entry);
            return;
        }
        let group = if entry.outcome == ReadOutcome::Ok { &mut self.done } else { &mut self.failed };
        tally_at(group, index_of(entry.op, entry.source)).add(entry);
    }

    /// Successful operations of a kind; `None` if there were none.
    pub fn done(&self, op: Op, source: Source) -> Option<&Tally> {
        self.done.get(index_of(op, source))?.as_deref()
    }

    /// Operations of a kind with an outcome other than `Ok`.
    pub fn failed(&self, op: Op, source: Source) -> Option<&Tally> {
        self.failed.get(index_of(op, source))?.as_deref()
    }

    /// Waits for a cause.
    pub fn wait(&self, cause: Cause) -> Option<&Tally> {
        self.waits.get(cause as usize)?.as_deref()
    }
}

const fn index_of(op: Op, source: Source) -> usize {
    op as usize * Source::ALL.len() + source as usize
}

fn tally_at(group: &mut Vec<Option<Box<Tally>>>, index: usize) -> &mut Tally {
    if group.len() <= index {
        group.resize_with(index + 1, || None);
    }
    group[index].get_or_insert_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Subject;
    use foresee_units::{Epoch, Rank, SampleId, Step};

    fn entry(op: Op, source: Source, cause: Option<Cause>, outcome: ReadOutcome) -> Entry {
        Entry {
            start: Nanos::ZERO,
            duration: Nanos::new(10),
            rank: Rank(0),
            epoch: Epoch(0),
            step: Step(0),
            subject: Subject::Sample(SampleId(1)),
            op,
            source,
            cause,
            bytes: Bytes::new(100),
            samples: 2,
            attempt: 1,
            outcome,
        }
    }

    #[test]
    fn entries_add_up_under_their_own_kind_only() {
        let mut totals = Totals::default();
        totals.add(&entry(Op::Read, Source::Origin, None, ReadOutcome::Ok));
        totals.add(&entry(Op::Read, Source::Origin, None, ReadOutcome::Ok));
        totals.add(&entry(Op::Read, Source::Origin, None, ReadOutcome::Throttled { retry_after: None }));
        totals.add(&entry(Op::Wait, Source::Origin, Some(Cause::OriginRead), ReadOutcome::Ok));
        let read = totals.done(Op::Read, Source::Origin).expect("recorded");
        assert_eq!(
            (read.count, read.samples, read.bytes, read.time),
            (2, 4, Bytes::new(200), Nanos::new(20))
        );
        assert_eq!(totals.failed(Op::Read, Source::Origin).map(|tally| tally.count), Some(1));
        assert_eq!(totals.wait(Cause::OriginRead).map(|tally| tally.count), Some(1));
        assert!(totals.done(Op::Read, Source::Ram).is_none() && totals.wait(Cause::Disk).is_none());
    }
}
