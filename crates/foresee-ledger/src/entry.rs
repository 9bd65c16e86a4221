// SPDX-License-Identifier: Apache-2.0
//! One line of the ledger, and the closed lists of words it may use.
//!
//! Each list is an enum with its spelling beside it: the spelling is part of the saved format
//! (`docs/formats/ledger.md`), the order of the variants is not.

use foresee_units::{Bytes, Epoch, Nanos, Rank, ReadOutcome, SampleId, Source, Step, words};

words! {
    /// What was done.
    Op {
        /// Listing the origin.
        List => "list",
        /// Asking for size, time or tag.
        Stat => "stat",
        /// Opening a file.
        Open => "open",
        /// Moving bytes towards the batch.
        Read => "read",
        /// Closing a file.
        Close => "close",
        /// Moving bytes into a cache.
        Write => "write",
        /// Encoded bytes to values, user transforms included.
        Decode => "decode",
        /// Samples to one batch.
        Collate => "collate",
        /// The consumer stood still.
        Wait => "wait",
        /// A gradient towards a server.
        Push => "push",
        /// A sum back from a server.
        Pull => "pull",
        /// Adding up on a server.
        Sum => "sum",
        /// One training step as the consumer saw it.
        Step => "step",
    }
}

words! {
    /// Why the consumer waited: the stage that its batch was in, of the first missing sample while there is one; or a
    /// gradient.
    Cause {
        /// The batch was not planned yet: start-up, a seek, an order that was not announced or is being drawn.
        Plan => "plan",
        /// In the queue for the origin: its rate or its limit on requests binds.
        OriginQueue => "origin_queue",
        /// Being read at the origin: its latency binds.
        OriginRead => "origin_read",
        /// Not there because of a fault or a throttle: attempts that failed, pauses, and further attempts.
        OriginRetry => "origin_retry",
        /// Being read from the disk tier.
        Disk => "disk",
        /// Being read from another rank's tier.
        Peer => "peer",
        /// Complete but for copies within memory, and for what handing it over takes.
        Copy => "copy",
        /// Being decoded or transformed, or waiting for a thread that does so.
        Transform => "transform",
        /// Samples being put together to a batch.
        Collate => "collate",
        /// With one of the `workers` that make batches, or waiting for one.
        Workers => "workers",
        /// A tensor's average has not landed.
        Gradient => "gradient",
    }
}

/// What the entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The whole batch of the step.
    Batch,
    /// One sample.
    Sample(SampleId),
    /// One tensor, by its place in the plan of gradients, or in the model trace.
    Tensor(u64),
    /// One job.
    Job(u64),
}

impl Subject {
    /// The spelling in the ledger.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::Sample(_) => "sample",
            Self::Tensor(_) => "tensor",
            Self::Job(_) => "job",
        }
    }

    /// The id, where the kind has one.
    pub const fn id(self) -> Option<u64> {
        match self {
            Self::Batch => None,
            Self::Sample(SampleId(id)) | Self::Tensor(id) | Self::Job(id) => Some(id),
        }
    }
}

/// One wait or one movement of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When it began, on the run's clock (0 = the engine's start).
    pub start: Nanos,
    /// How long it took.
    pub duration: Nanos,
    /// Who.
    pub rank: Rank,
    /// In which epoch.
    pub epoch: Epoch,
    /// In which step of it, the step that the bytes or the wait are for.
    pub step: Step,
    /// About what.
    pub subject: Subject,
    /// What was done.
    pub op: Op,
    /// From or to where.
    pub source: Source,
    /// Why; for waits only.
    pub cause: Option<Cause>,
    /// Payload bytes moved.
    pub bytes: Bytes,
    /// How many samples the entry stands for: the RAM hits of one batch are one entry.
    pub samples: u32,
    /// 1 for the first attempt.
    pub attempt: u32,
    /// How it ended.
    pub outcome: ReadOutcome,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_spelled_once_and_stands_where_its_variant_says() {
        fn check<T: Copy + PartialEq>(all: &[T], place: fn(T) -> usize, word: fn(T) -> &'static str) {
            for (expected, &variant) in all.iter().enumerate() {
                assert_eq!(place(variant), expected);
                assert_eq!(all.iter().filter(|&&other| word(other) == word(variant)).count(), 1);
            }
        }
        check(Op::ALL, |op| op as usize, Op::word);
        check(Source::ALL, |source| source as usize, Source::word);
        check(Cause::ALL, |cause| cause as usize, Cause::word);
        assert!(Cause::ALL.iter().all(|&cause| Cause::named(cause.word()) == Some(cause)));
        assert_eq!(Cause::named("moon"), None);
    }
}
