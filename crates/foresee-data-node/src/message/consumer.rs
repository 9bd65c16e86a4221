// SPDX-License-Identifier: Apache-2.0
//! Messages of a consumer: it requests and releases batches, and reports what it is about to read.

use foresee_units::{Nanos, SampleId};

use super::error::MessageError;
use super::fields::{HEAD_BYTES, Shape, encode_or_restore};
use super::list::MessageList;

/// A message in the ring of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConsumerMessage<'a> {
    /// Read a batch.
    Request(BatchRequest<'a>),
    /// A batch is copied.
    Release(BatchRelease),
    /// Position and speed of the consumer.
    Progress(ConsumerProgress),
    /// Samples that the consumer will request.
    Announce(Announcement<'a>),
}

/// Request the samples of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRequest<'a> {
    /// Number of the batch, chosen by the consumer; unique until its release.
    pub batch: u64,
    /// Time of `CLOCK_MONOTONIC` at which the consumer needs the batch; [`Nanos::MAX`] if it is not known.
    pub deadline: Nanos,
    /// The data set, by the number that the host gave it.
    pub data_set: u32,
    /// The samples in the order of the batch; 1 to [`SAMPLES_MAX`](super::SAMPLES_MAX). The same sample may occur twice.
    pub samples: MessageList<'a, SampleId>,
}

/// Release the slots of a batch, answered or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRelease {
    /// Number of the batch.
    pub batch: u64,
}

/// Report the position and the speed of the consumer, from which the host predicts its accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsumerProgress {
    /// Accesses that the consumer has consumed since its attachment.
    pub accesses: u64,
    /// Time from one step to the next; [`Nanos::ZERO`] if it is not measured yet.
    pub step_time: Nanos,
}

/// Announce accesses in their order, for a data set without a known order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement<'a> {
    /// The data set, by the number that the host gave it.
    pub data_set: u32,
    /// Whether these are the last accesses of the data set.
    pub is_end: bool,
    /// The samples after those announced before; 0 to [`SAMPLES_MAX`](super::SAMPLES_MAX).
    pub samples: MessageList<'a, SampleId>,
}

impl BatchRequest<'_> {
    /// Bytes of a request without its samples.
    pub const FIXED_BYTES: usize = HEAD_BYTES + 24;
    const CODE: u8 = 1;
    const SHAPE: Shape = Shape::with_list::<SampleId>(Self::CODE, "request", Self::FIXED_BYTES, 1, 0);
}

impl BatchRelease {
    const CODE: u8 = 2;
    const SHAPE: Shape = Shape::without_list(Self::CODE, "release", HEAD_BYTES + 8);
}

impl ConsumerProgress {
    const CODE: u8 = 3;
    const SHAPE: Shape = Shape::without_list(Self::CODE, "progress", HEAD_BYTES + 16);
}

impl Announcement<'_> {
    /// Bytes of an announcement without its samples.
    pub const FIXED_BYTES: usize = HEAD_BYTES + 8;
    const CODE: u8 = 4;
    /// Flag of the last announcement.
    const END: u8 = 1;
    const SHAPE: Shape =
        Shape::with_list::<SampleId>(Self::CODE, "announcement", Self::FIXED_BYTES, 0, Self::END);
}

impl<'a> ConsumerMessage<'a> {
    /// Append the encoded message to `into`, which is unchanged after an error.
    ///
    /// # Errors
    /// [`MessageError::Count`]: the list exceeds its bounds.
    pub fn encode_into(&self, into: &mut Vec<u8>) -> Result<(), MessageError> {
        encode_or_restore(into, |into| match self {
            Self::Request(request) => {
                let shape = BatchRequest::SHAPE;
                shape.begin(0, request.samples.len(), into)?;
                into.extend_from_slice(&request.batch.to_le_bytes());
                into.extend_from_slice(&request.deadline.get().to_le_bytes());
                into.extend_from_slice(&u64::from(request.data_set).to_le_bytes());
                request.samples.encode_into(&shape, into)
            }
            Self::Release(release) => {
                BatchRelease::SHAPE.begin(0, 0, into)?;
                into.extend_from_slice(&release.batch.to_le_bytes());
                Ok(())
            }
            Self::Progress(progress) => {
                ConsumerProgress::SHAPE.begin(0, 0, into)?;
                into.extend_from_slice(&progress.accesses.to_le_bytes());
                into.extend_from_slice(&progress.step_time.get().to_le_bytes());
                Ok(())
            }
            Self::Announce(announcement) => {
                let shape = Announcement::SHAPE;
                let flags = if announcement.is_end { Announcement::END } else { 0 };
                shape.begin(flags, announcement.samples.len(), into)?;
                into.extend_from_slice(&u64::from(announcement.data_set).to_le_bytes());
                announcement.samples.encode_into(&shape, into)
            }
        })
    }

    /// Decode exactly one message of a consumer.
    ///
    /// # Errors
    /// The bytes are not the encoding of a message.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, MessageError> {
        let shapes =
            [&BatchRequest::SHAPE, &BatchRelease::SHAPE, &ConsumerProgress::SHAPE, &Announcement::SHAPE];
        let (shape, flags, mut fields) = Shape::open(&shapes, "consumer", bytes)?;
        Ok(match shape.code {
            BatchRequest::CODE => {
                let (batch, deadline) = (fields.u64(), Nanos::new(fields.u64()));
                let data_set = fields.u32();
                shape.check_zero(fields.u32().into())?;
                let samples = MessageList::decode(shape, fields.0)?;
                Self::Request(BatchRequest { batch, deadline, data_set, samples })
            }
            BatchRelease::CODE => Self::Release(BatchRelease { batch: fields.u64() }),
            ConsumerProgress::CODE => {
                let (accesses, step_time) = (fields.u64(), Nanos::new(fields.u64()));
                Self::Progress(ConsumerProgress { accesses, step_time })
            }
            _ => {
                let data_set = fields.u32();
                shape.check_zero(fields.u32().into())?;
                let samples = MessageList::decode(shape, fields.0)?;
                Self::Announce(Announcement { data_set, is_end: flags & Announcement::END != 0, samples })
            }
        })
    }
}
