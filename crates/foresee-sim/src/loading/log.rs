// SPDX-License-Identifier: Apache-2.0
//! A simulated run as entries of the ledger, on its own clock, in the format of a real run.
//!
//! It is separate from the report's sums, which always exist; entries are optional. They go to a sink immediately
//! and none is stored, so a run of any length takes the memory of one batch.
//!
//! As in the loader, there is a row per read of origin, disk and peers, and one per batch for reads from memory.
//! Each batch has one wait, whose cause is its first missing sample. Nanoseconds are rounded to the nearest, so
//! sums of entries match the report within half a nanosecond per row.

use std::fmt;

use foresee_ledger::{Cause, Entry, Op, Subject};
use foresee_units::{Bytes, Epoch, Nanos, Rank, ReadOutcome, SampleId, Source, Step};

use super::consume::SampleTimes;
use super::rates::SourceCode;

/// Takes entries in the order of their simulation: rank after rank within a step.
pub type Sink = Box<dyn FnMut(Entry) + Send>;

pub(super) struct Log {
    /// `None`: entries are not wanted.
    sink: Option<Sink>,
    /// By source code.
    sources: Vec<Source>,
    /// Offset from training's clock to the run's clock, in seconds.
    init: f64,
    rank: Rank,
    epoch: Epoch,
    step: Step,
    /// When the rank requested its batch, on training's clock.
    requested: f64,
    samples: u32,
    cause: Option<Cause>,
    memory: Memory,
}

/// The reads of a batch from memory.
#[derive(Clone, Copy, Default)]
struct Memory {
    samples: u32,
    bytes: f64,
    start: f64,
    seconds: f64,
}

/// When a sample was requested, when it was fetched, and when the consumer wanted it.
#[derive(Clone, Copy)]
pub(super) struct ReadTimes {
    pub(super) start: f64,
    pub(super) end: f64,
    pub(super) wanted: f64,
    /// When its consumption began.
    pub(super) consumed: f64,
}

impl ReadTimes {
    pub(super) fn new(start: f64, end: f64, times: SampleTimes) -> Self {
        Self { start, end, wanted: times.wanted, consumed: times.consumed }
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("sources", &self.sources).finish_non_exhaustive()
    }
}

impl Log {
    /// `tiers`: the kind of each tier, fastest first.
    pub(super) fn new(tiers: &[Source], sink: Option<Sink>) -> Self {
        let places = tiers.len().max(1);
        let mut sources = vec![Source::Origin];
        // Without tiers, window policies still have a disk.
        sources.extend((0..places).map(|tier| tiers.get(tier).copied().unwrap_or(Source::Disk)));
        sources.resize(1 + 2 * places, Source::Peer);
        Self {
            sink,
            sources,
            init: 0.0,
            rank: Rank(0),
            epoch: Epoch(0),
            step: Step(0),
            requested: 0.0,
            samples: 0,
            cause: None,
            memory: Memory::default(),
        }
    }

    /// Begin a step of all ranks; training began `init` seconds after the run.
    pub(super) fn begin_step(&mut self, epoch: u32, step: usize, init: f64) {
        (self.epoch, self.step, self.init) = (Epoch(epoch.into()), Step(step as u64), init);
    }

    /// Begin a rank's batch.
    pub(super) fn begin_batch(&mut self, rank: usize, requested: f64) {
        (self.rank, self.requested, self.samples, self.cause) = (rank_of(rank), requested, 0, None);
        self.memory = Memory::default();
    }

    /// Log the read of a sample of the batch.
    pub(super) fn read(&mut self, id: u32, source: SourceCode, size: f64, times: ReadTimes) {
        if self.sink.is_none() {
            return;
        }
        let ReadTimes { start, end, wanted, consumed } = times;
        let place = self.sources[usize::from(source)];
        self.samples += 1;
        if consumed > wanted && self.cause.is_none() {
            self.cause = Some(match place {
                _ if end <= wanted => Cause::Transform,
                Source::Origin if start > wanted => Cause::OriginQueue,
                Source::Origin => Cause::OriginRead,
                Source::Disk => Cause::Disk,
                Source::Peer => Cause::Peer,
                _ => Cause::Copy,
            });
        }
        if place == Source::Ram {
            let memory = &mut self.memory;
            if memory.samples == 0 {
                memory.start = start;
            }
            memory.samples += 1;
            memory.bytes += size;
            memory.seconds += end - start;
        } else {
            let about = (Subject::Sample(SampleId(id.into())), Op::Read, place);
            self.add(self.rank, about, (start, end - start), (size, 1), None);
        }
    }

    /// Log a sample of the batch whose read costs no time.
    pub(super) fn add_ready(&mut self) {
        self.samples += 1;
    }

    /// Attribute the batch's wait to the origin.
    pub(super) fn blame_origin(&mut self) {
        self.cause = Some(Cause::OriginRead);
    }

    /// End the rank's batch after `waited` seconds of waiting.
    pub(super) fn end_batch(&mut self, waited: f64) {
        let Memory { samples, bytes, start, seconds } = self.memory;
        if samples > 0 {
            let about = (Subject::Batch, Op::Read, Source::Ram);
            self.add(self.rank, about, (start, seconds), (bytes, samples), None);
        }
        let cause = self.cause.unwrap_or(Cause::Copy);
        let source = match cause {
            Cause::OriginQueue | Cause::OriginRead => Source::Origin,
            Cause::Disk => Source::Disk,
            Cause::Peer => Source::Peer,
            _ => Source::None,
        };
        let about = (Subject::Batch, Op::Wait, source);
        self.add(self.rank, about, (self.requested, waited), (0.0, self.samples), Some(cause));
    }

    /// Log the load of a sample from the origin into a tier.
    pub(super) fn load(&mut self, rank: usize, id: u32, size: f64, start: f64, seconds: f64) {
        let about = (Subject::Sample(SampleId(id.into())), Op::Read, Source::Origin);
        self.add(rank_of(rank), about, (start, seconds), (size, 1), None);
    }

    /// Log a listing of the origin.
    pub(super) fn list(&mut self, rank: usize, start: f64, seconds: f64) {
        let about = (Subject::Batch, Op::List, Source::Origin);
        self.add(rank_of(rank), about, (start, seconds), (0.0, 0), None);
    }

    fn add(
        &mut self,
        rank: Rank,
        (subject, op, source): (Subject, Op, Source),
        (start, seconds): (f64, f64),
        (bytes, samples): (f64, u32),
        cause: Option<Cause>,
    ) {
        let Some(sink) = &mut self.sink else { return };
        sink(Entry {
            start: nanos(self.init + start),
            duration: nanos(seconds),
            rank,
            epoch: self.epoch,
            step: self.step,
            subject,
            op,
            source,
            cause,
            bytes: Bytes::new(whole(bytes)),
            samples,
            attempt: 1,
            outcome: ReadOutcome::Ok,
        });
    }
}

fn rank_of(rank: usize) -> Rank {
    Rank(u32::try_from(rank).expect("ranks were given in 32 bits"))
}

fn nanos(seconds: f64) -> Nanos {
    Nanos::new(whole(seconds * 1e9))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 or more, and `as` saturates")]
fn whole(value: f64) -> u64 {
    value.round() as u64
}
