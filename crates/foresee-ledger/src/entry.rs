// SPDX-License-Identifier: Apache-2.0
//! One entry of the ledger, and its enumerated values.
//!
//! Names are part of the saved format (`docs/formats/ledger.md`); the order of the variants is not.

use foresee_units::{Bytes, Epoch, Nanos, Rank, ReadOutcome, SampleId, Source, Step, named_enum};

named_enum! {
    /// The operation.
    Op {
        /// Listing the origin.
        List => "list",
        /// A query of size, time or tag.
        Stat => "stat",
        /// Opening a file.
        Open => "open",
        /// Moving bytes towards the batch.
        Read => "read",
        /// Closing a file.
        Close => "close",
        /// Moving bytes into a cache.
        Write => "write",
        /// Decoding, including user transforms.
        Decode => "decode",
        /// Assembly of samples to a batch.
        Collate => "collate",
        /// A wait of the consumer.
        Wait => "wait",
        /// A gradient to a server.
        Push => "push",
        /// A sum from a server.
        Pull => "pull",
        /// A summation on a server.
        Sum => "sum",
        /// One training step, as seen by the consumer.
        Step => "step",
    }
}

named_enum! {
    /// The cause of a wait: the stage of the batch, or of its first missing sample while there is one; or a
    /// gradient.
    Cause {
        /// The batch is not planned yet: start-up, a seek, or an order that is unannounced or being drawn.
        Plan => "plan",
        /// In the queue of the origin, whose rate or request limit is the bottleneck.
        OriginQueue => "origin_queue",
        /// Being read at the origin, whose latency is the bottleneck.
        OriginRead => "origin_read",
        /// Missing because of a fault or throttling: failed attempts, pauses, and further attempts.
        OriginRetry => "origin_retry",
        /// Being read from the disk tier.
        Disk => "disk",
        /// Being read from another rank's tier.
        Peer => "peer",
        /// Requested from the host of the node's cache, which has not answered.
        Node => "node",
        /// Complete except for copies within memory and the delivery.
        Copy => "copy",
        /// Being decoded or transformed, or waiting for a thread to do so.
        Transform => "transform",
        /// Samples are being assembled to a batch.
        Collate => "collate",
        /// In one of the `workers` that make batches, or waiting for one.
        Workers => "workers",
        /// A tensor's average has not arrived.
        Gradient => "gradient",
    }
}

/// The subject of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The whole batch of the step.
    Batch,
    /// One sample.
    Sample(SampleId),
    /// One tensor, by its index in the plan of gradients or in the model trace.
    Tensor(u64),
    /// One job.
    Job(u64),
}

impl Subject {
    /// The name in the ledger.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::Sample(_) => "sample",
            Self::Tensor(_) => "tensor",
            Self::Job(_) => "job",
        }
    }

    /// The id, if the kind has one.
    pub const fn id(self) -> Option<u64> {
        match self {
            Self::Batch => None,
            Self::Sample(SampleId(id)) | Self::Tensor(id) | Self::Job(id) => Some(id),
        }
    }
}

/// One wait or one transfer of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Start time on the run's clock (0 is the engine's start).
    pub start: Nanos,
    /// Its duration.
    pub duration: Nanos,
    /// The rank.
    pub rank: Rank,
    /// The epoch.
    pub epoch: Epoch,
    /// The step of the epoch that the bytes or the wait are for.
    pub step: Step,
    /// The subject.
    pub subject: Subject,
    /// The operation.
    pub op: Op,
    /// The source or destination.
    pub source: Source,
    /// The cause; for waits only.
    pub cause: Option<Cause>,
    /// Payload bytes moved.
    pub bytes: Bytes,
    /// The number of samples of the entry: the RAM hits of one batch are one entry.
    pub samples: u32,
    /// 1 for the first attempt.
    pub attempt: u32,
    /// Its outcome.
    pub outcome: ReadOutcome,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_unique_and_at_the_position_of_its_variant() {
        fn check<T: Copy + PartialEq>(all: &[T], position: fn(T) -> usize, name: fn(T) -> &'static str) {
            for (expected, &variant) in all.iter().enumerate() {
                assert_eq!(position(variant), expected);
                assert_eq!(all.iter().filter(|&&other| name(other) == name(variant)).count(), 1);
            }
        }
        check(&Op::ALL, |op| op as usize, Op::name);
        check(&Source::ALL, |source| source as usize, Source::name);
        check(&Cause::ALL, |cause| cause as usize, Cause::name);
        assert!(Cause::ALL.iter().all(|&cause| Cause::from_name(cause.name()) == Some(cause)));
        assert_eq!(Cause::from_name("moon"), None);
    }
}
