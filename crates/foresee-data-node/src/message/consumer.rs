// SPDX-License-Identifier: Apache-2.0
//! Messages of a consumer: it announces accesses, requests in batches those that it does not find in the slab, and releases
//! what it has copied.

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
    /// Samples of a batch are copied, or the batch ends.
    Release(BatchRelease<'a>),
    /// Position and speed of the consumer.
    Progress(ConsumerProgress),
    /// Samples that the consumer will request.
    Announce(Announcement<'a>),
    /// Read samples of a batch again.
    Repeat(RepeatRequest<'a>),
    /// Accesses without a request.
    Hits(MemoryHits),
}

/// Request the samples of a batch, which are the next accesses that the consumer has announced, after those counted as
/// [`MemoryHits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRequest<'a> {
    /// Number of the batch, chosen by the consumer; unique until the batch ends.
    pub batch: u64,
    /// Time of `CLOCK_MONOTONIC` at which the consumer needs the batch; [`Nanos::MAX`] if it is not known.
    pub deadline: Nanos,
    /// The data set, by the number that the host gave it.
    pub data_set: u32,
    /// The samples in the order of the batch; 1 to [`SAMPLES_MAX`](super::SAMPLES_MAX). The same sample may occur twice.
    pub samples: MessageList<'a, SampleId>,
}

/// Count accesses that needed no request: the consumer found the samples in the slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryHits {
    /// Number of accesses, the next ones that the consumer has announced.
    pub accesses: u64,
}

/// Release samples of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRelease<'a> {
    /// Number of the batch.
    pub batch: u64,
    /// Positions in the batch that are copied; 0 to [`SAMPLES_MAX`](super::SAMPLES_MAX). An empty list ends the batch: it
    /// releases all of it, also samples that are not answered yet.
    pub positions: MessageList<'a, u32>,
}

/// Request samples of a batch again that the host withdrew before they were copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepeatRequest<'a> {
    /// Number of the batch, which has not ended.
    pub batch: u64,
    /// Positions in the batch that were answered and not released; 1 to [`SAMPLES_MAX`](super::SAMPLES_MAX).
    pub positions: MessageList<'a, u32>,
}

/// Report the position and the speed of the consumer, from which the host predicts its accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsumerProgress {
    /// Accesses that the consumer has consumed since its attachment.
    pub accesses: u64,
    /// Time from one access to the next; [`Nanos::ZERO`] if it is not measured yet.
    pub interval: Nanos,
    /// Whether it waits for the batch of the next access, which it needs at once.
    pub is_waiting: bool,
}

/// The [generation](Announcement::generation) of accesses in the middle of an epoch.
pub const UNKNOWN_GENERATION: u32 = u32::MAX;

/// Announce accesses in their order. A consumer announces the next epoch at the latest when it requests from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement<'a> {
    /// The data set, by the number that the host gave it.
    pub data_set: u32,
    /// How often the loader has continued elsewhere before these accesses: the ranks of a job count alike.
    /// [`UNKNOWN_GENERATION`] if this host does not know all accesses since then.
    pub generation: u32,
    /// Whether accesses that were announced before and not requested are void: the consumer continues elsewhere.
    pub is_restart: bool,
    /// Whether the epoch or window is complete with these samples. It may come in several messages.
    pub is_epoch_end: bool,
    /// Whether no epoch follows.
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

impl BatchRelease<'_> {
    /// Bytes of a release without its positions.
    pub const FIXED_BYTES: usize = HEAD_BYTES + 8;
    const CODE: u8 = 2;
    const SHAPE: Shape = Shape::with_list::<u32>(Self::CODE, "release", Self::FIXED_BYTES, 0, 0);
}

impl ConsumerProgress {
    const CODE: u8 = 3;
    const WAITING: u8 = 1;
    const SHAPE: Shape = Shape::without_list(Self::CODE, "progress", HEAD_BYTES + 16, Self::WAITING);
}

impl Announcement<'_> {
    /// Bytes of an announcement without its samples.
    pub const FIXED_BYTES: usize = HEAD_BYTES + 8;
    const CODE: u8 = 4;
    const END: u8 = 1;
    const EPOCH_END: u8 = 2;
    const RESTART: u8 = 4;
    const FLAGS: u8 = Self::END | Self::EPOCH_END | Self::RESTART;
    const SHAPE: Shape =
        Shape::with_list::<SampleId>(Self::CODE, "announcement", Self::FIXED_BYTES, 0, Self::FLAGS);

    fn flags(&self) -> u8 {
        let flags = [
            (self.is_end, Self::END),
            (self.is_epoch_end, Self::EPOCH_END),
            (self.is_restart, Self::RESTART),
        ];
        flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum()
    }
}

impl RepeatRequest<'_> {
    /// Bytes of a repeated request without its positions.
    pub const FIXED_BYTES: usize = HEAD_BYTES + 8;
    const CODE: u8 = 5;
    const SHAPE: Shape = Shape::with_list::<u32>(Self::CODE, "repeat", Self::FIXED_BYTES, 1, 0);
}

impl MemoryHits {
    const CODE: u8 = 6;
    const SHAPE: Shape = Shape::without_list(Self::CODE, "hits", HEAD_BYTES + 8, 0);
}

impl<'a> ConsumerMessage<'a> {
    /// Append the encoded message to `into`, which is unchanged after an error.
    ///
    /// # Errors
    /// [`MessageError::Count`]: the list exceeds its bounds. [`MessageError::Field`]: a position is outside of any batch.
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
                let shape = BatchRelease::SHAPE;
                shape.begin(0, release.positions.len(), into)?;
                into.extend_from_slice(&release.batch.to_le_bytes());
                release.positions.encode_into(&shape, into)
            }
            Self::Progress(progress) => {
                let flags = if progress.is_waiting { ConsumerProgress::WAITING } else { 0 };
                ConsumerProgress::SHAPE.begin(flags, 0, into)?;
                into.extend_from_slice(&progress.accesses.to_le_bytes());
                into.extend_from_slice(&progress.interval.get().to_le_bytes());
                Ok(())
            }
            Self::Announce(announcement) => {
                let shape = Announcement::SHAPE;
                shape.begin(announcement.flags(), announcement.samples.len(), into)?;
                into.extend_from_slice(&announcement.data_set.to_le_bytes());
                into.extend_from_slice(&announcement.generation.to_le_bytes());
                announcement.samples.encode_into(&shape, into)
            }
            Self::Repeat(repeat) => {
                let shape = RepeatRequest::SHAPE;
                shape.begin(0, repeat.positions.len(), into)?;
                into.extend_from_slice(&repeat.batch.to_le_bytes());
                repeat.positions.encode_into(&shape, into)
            }
            Self::Hits(hits) => {
                MemoryHits::SHAPE.begin(0, 0, into)?;
                into.extend_from_slice(&hits.accesses.to_le_bytes());
                Ok(())
            }
        })
    }

    /// Decode exactly one message of a consumer.
    ///
    /// # Errors
    /// The bytes are not the encoding of a message.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, MessageError> {
        let shapes = [
            &BatchRequest::SHAPE,
            &BatchRelease::SHAPE,
            &ConsumerProgress::SHAPE,
            &Announcement::SHAPE,
            &RepeatRequest::SHAPE,
            &MemoryHits::SHAPE,
        ];
        let (shape, flags, mut fields) = Shape::open(&shapes, "consumer", bytes)?;
        Ok(match shape.code {
            BatchRequest::CODE => {
                let (batch, deadline) = (fields.u64(), Nanos::new(fields.u64()));
                let data_set = fields.u32();
                shape.check_zero(fields.u32().into())?;
                let samples = MessageList::decode(shape, fields.0)?;
                Self::Request(BatchRequest { batch, deadline, data_set, samples })
            }
            BatchRelease::CODE => {
                let batch = fields.u64();
                Self::Release(BatchRelease { batch, positions: MessageList::decode(shape, fields.0)? })
            }
            ConsumerProgress::CODE => {
                let (accesses, interval) = (fields.u64(), Nanos::new(fields.u64()));
                let is_waiting = flags & ConsumerProgress::WAITING != 0;
                Self::Progress(ConsumerProgress { accesses, interval, is_waiting })
            }
            Announcement::CODE => {
                let (data_set, generation) = (fields.u32(), fields.u32());
                Self::Announce(Announcement {
                    data_set,
                    generation,
                    is_restart: flags & Announcement::RESTART != 0,
                    is_epoch_end: flags & Announcement::EPOCH_END != 0,
                    is_end: flags & Announcement::END != 0,
                    samples: MessageList::decode(shape, fields.0)?,
                })
            }
            MemoryHits::CODE => Self::Hits(MemoryHits { accesses: fields.u64() }),
            _ => {
                let batch = fields.u64();
                Self::Repeat(RepeatRequest { batch, positions: MessageList::decode(shape, fields.0)? })
            }
        })
    }
}
