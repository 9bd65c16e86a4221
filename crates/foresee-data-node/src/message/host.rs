// SPDX-License-Identifier: Apache-2.0
//! Messages of the host: samples of a batch that are ready, those that failed, and the wish for more announcements.

use super::error::MessageError;
use super::fields::{HEAD_BYTES, Shape, encode_or_restore};
use super::list::MessageList;
use super::sample::{SampleFailure, SampleLocation};

/// A message in the ring of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HostMessage<'a> {
    /// Samples of a batch that are ready.
    Answer(BatchAnswer<'a>),
    /// Samples of a batch that cannot be read.
    Failure(BatchFailure<'a>),
    /// Announce the next epoch.
    EpochWanted(EpochWanted),
}

/// The places of some samples of a batch, or of all. A batch is complete when each of its positions was answered or has
/// failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchAnswer<'a> {
    /// Number of the batch, as in its request.
    pub batch: u64,
    /// The samples that are ready, in any order; 1 to [`SAMPLES_MAX`](super::SAMPLES_MAX).
    pub samples: MessageList<'a, SampleLocation>,
}

/// Samples of a batch that the host could not read; the rest of the batch is answered as usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchFailure<'a> {
    /// Number of the batch, as in its request.
    pub batch: u64,
    /// The failed samples, in any order; 1 to [`SAMPLES_MAX`](super::SAMPLES_MAX).
    pub samples: MessageList<'a, SampleFailure>,
}

/// The look-ahead of the host is shorter than useful: the consumer announces its next epoch. It may do so unasked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochWanted {
    /// The data set, by the number that the host gave it.
    pub data_set: u32,
}

impl BatchAnswer<'_> {
    /// Bytes of an answer without its samples.
    pub const FIXED_BYTES: usize = HEAD_BYTES + 8;
    const CODE: u8 = 17;
    const SHAPE: Shape = Shape::with_list::<SampleLocation>(Self::CODE, "answer", Self::FIXED_BYTES, 1, 0);
}

impl BatchFailure<'_> {
    /// Bytes of a failure without its samples.
    pub const FIXED_BYTES: usize = HEAD_BYTES + 8;
    const CODE: u8 = 18;
    const SHAPE: Shape = Shape::with_list::<SampleFailure>(Self::CODE, "failure", Self::FIXED_BYTES, 1, 0);
}

impl EpochWanted {
    const CODE: u8 = 19;
    const SHAPE: Shape = Shape::without_list(Self::CODE, "epoch wanted", HEAD_BYTES + 8, 0);
}

impl<'a> HostMessage<'a> {
    /// Append the encoded message to `into`, which is unchanged after an error.
    ///
    /// # Errors
    /// [`MessageError::Count`]: the list exceeds its bounds. [`MessageError::Field`]: a sample has a position outside of
    /// any batch, a source that is none of a sample, or the outcome `Ok` in a failure.
    pub fn encode_into(&self, into: &mut Vec<u8>) -> Result<(), MessageError> {
        encode_or_restore(into, |into| match self {
            Self::Answer(answer) => {
                let shape = BatchAnswer::SHAPE;
                shape.begin(0, answer.samples.len(), into)?;
                into.extend_from_slice(&answer.batch.to_le_bytes());
                answer.samples.encode_into(&shape, into)
            }
            Self::Failure(failure) => {
                let shape = BatchFailure::SHAPE;
                shape.begin(0, failure.samples.len(), into)?;
                into.extend_from_slice(&failure.batch.to_le_bytes());
                failure.samples.encode_into(&shape, into)
            }
            Self::EpochWanted(wanted) => {
                EpochWanted::SHAPE.begin(0, 0, into)?;
                into.extend_from_slice(&u64::from(wanted.data_set).to_le_bytes());
                Ok(())
            }
        })
    }

    /// Decode exactly one message of the host.
    ///
    /// # Errors
    /// The bytes are not the encoding of a message.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, MessageError> {
        let shapes = [&BatchAnswer::SHAPE, &BatchFailure::SHAPE, &EpochWanted::SHAPE];
        let (shape, _, mut fields) = Shape::open(&shapes, "host", bytes)?;
        Ok(match shape.code {
            BatchAnswer::CODE => {
                let batch = fields.u64();
                Self::Answer(BatchAnswer { batch, samples: MessageList::decode(shape, fields.0)? })
            }
            BatchFailure::CODE => {
                let batch = fields.u64();
                Self::Failure(BatchFailure { batch, samples: MessageList::decode(shape, fields.0)? })
            }
            _ => {
                let data_set = fields.u32();
                shape.check_zero(fields.u32().into())?;
                Self::EpochWanted(EpochWanted { data_set })
            }
        })
    }
}
