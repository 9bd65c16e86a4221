// SPDX-License-Identifier: Apache-2.0
//! Messages to the host in their order: replies to its answers, then the driver's commands, then the progress. A report
//! that the consumer waits for a batch is without effect before the request for that batch.
//!
//! A message that finds no space in the ring stays encoded until it does. Replies are bounded by the positions of the
//! batches, and commands by the staging buffer of the driver.

use std::collections::VecDeque;

use foresee_data_node::NodeError;
use foresee_data_node::message::{
    Announcement, BatchRelease, BatchRequest, ConsumerMessage, ConsumerProgress, ListElement as _,
    MemoryHits, RepeatRequest, SAMPLES_MAX,
};
use foresee_data_node::ring::RingError;
use foresee_units::SampleId;

use super::batches::{Batches, invalid};
use super::shared::ClientCommand;

/// An announcement takes at most this part of the ring, so that the host reads while the next part is written.
const ANNOUNCEMENT_SHARE: usize = 4;

/// A reply to an answer of the host.
#[derive(Debug)]
enum Reply {
    /// Positions are copied.
    Release(u64, Box<[u32]>),
    /// The batch is complete.
    End(u64),
    /// Positions were taken back.
    Repeat(u64, Box<[u32]>),
}

/// What follows once a message is in the ring.
#[derive(Debug)]
enum Sent {
    Nothing,
    Request(u64),
    Repeat(u64, Box<[u32]>),
}

/// The messages that are not in the ring yet.
#[derive(Debug)]
pub(super) struct Outgoing {
    data_set: u32,
    /// The longest message of the ring.
    message_max: usize,
    replies: VecDeque<Reply>,
    progress: Option<ConsumerProgress>,
    pub(super) commands: VecDeque<ClientCommand>,
    /// Samples of the first command that are announced already.
    announced: usize,
    /// The next message, unless it is empty.
    encoded: Vec<u8>,
    sent: Sent,
}

impl Outgoing {
    pub(super) fn new(data_set: u32, message_max: usize) -> Self {
        Self {
            data_set,
            message_max,
            replies: VecDeque::new(),
            progress: None,
            commands: VecDeque::new(),
            announced: 0,
            encoded: Vec::new(),
            sent: Sent::Nothing,
        }
    }

    /// Send the progress, instead of an earlier one.
    pub(super) fn report(&mut self, progress: ConsumerProgress) {
        self.progress = Some(progress);
    }

    /// Release positions that are copied.
    pub(super) fn release(&mut self, batch: u64, positions: &[u32]) {
        let most = self.positions_max(BatchRelease::FIXED_BYTES);
        self.replies.extend(positions.chunks(most).map(|part| Reply::Release(batch, part.into())));
    }

    /// Release all of a batch.
    pub(super) fn end(&mut self, batch: u64) {
        self.replies.push_back(Reply::End(batch));
    }

    /// Request positions again.
    pub(super) fn repeat(&mut self, batch: u64, positions: &[u32]) {
        let most = self.positions_max(RepeatRequest::FIXED_BYTES);
        self.replies.extend(positions.chunks(most).map(|part| Reply::Repeat(batch, part.into())));
    }

    /// Pass messages to `try_push` until there is none, or it returns `false`. Returns whether any was written.
    ///
    /// # Errors
    /// The ring is broken.
    pub(super) fn push(
        &mut self,
        mut try_push: impl FnMut(&[u8]) -> Result<bool, RingError>,
        batches: &mut Batches,
    ) -> Result<bool, NodeError> {
        let mut has_pushed = false;
        while self.prepare(batches)? {
            if !try_push(&self.encoded)? {
                break;
            }
            has_pushed = true;
            self.encoded.clear();
            match std::mem::replace(&mut self.sent, Sent::Nothing) {
                Sent::Nothing => {}
                Sent::Request(batch) => batches.on_requested(batch),
                Sent::Repeat(batch, positions) => batches.on_repeated(batch, &positions),
            }
        }
        Ok(has_pushed)
    }

    /// Bytes of the message that waits for space.
    pub(super) fn waiting_bytes(&self) -> Option<usize> {
        (!self.encoded.is_empty()).then_some(self.encoded.len())
    }

    /// Encode the next message; `false` if there is none.
    fn prepare(&mut self, batches: &mut Batches) -> Result<bool, NodeError> {
        if !self.encoded.is_empty() {
            return Ok(true);
        }
        if let Some(reply) = self.replies.pop_front() {
            self.encode_reply(reply)?;
            return Ok(true);
        }
        while self.encoded.is_empty() {
            if let Some(command) = self.commands.pop_front() {
                self.encode_command(command, batches)?;
            } else if let Some(progress) = self.progress.take() {
                encode(&ConsumerMessage::Progress(progress), &mut self.encoded)?;
            } else {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn encode_reply(&mut self, reply: Reply) -> Result<(), NodeError> {
        match reply {
            Reply::Release(batch, positions) => {
                let release = BatchRelease { batch, positions: positions[..].into() };
                encode(&ConsumerMessage::Release(release), &mut self.encoded)
            }
            Reply::End(batch) => encode(&end(batch), &mut self.encoded),
            Reply::Repeat(batch, positions) => {
                let repeat = RepeatRequest { batch, positions: positions[..].into() };
                encode(&ConsumerMessage::Repeat(repeat), &mut self.encoded)?;
                self.sent = Sent::Repeat(batch, positions);
                Ok(())
            }
        }
    }

    /// Encode the next message of a command; none if its batch has ended.
    fn encode_command(&mut self, command: ClientCommand, batches: &mut Batches) -> Result<(), NodeError> {
        match command {
            ClientCommand::Announce(announcement) => {
                let bytes = self.message_max / ANNOUNCEMENT_SHARE - Announcement::FIXED_BYTES;
                let most = SAMPLES_MAX.min(bytes / SampleId::BYTES);
                let (start, len) = (self.announced, announcement.samples.len());
                let end = len.min(start + most);
                let is_last = end == len;
                let part = Announcement {
                    data_set: self.data_set,
                    generation: announcement.generation,
                    is_restart: announcement.is_restart && start == 0,
                    is_epoch_end: announcement.is_epoch_end && is_last,
                    is_end: announcement.is_end && is_last,
                    samples: announcement.samples[start..end].into(),
                };
                encode(&ConsumerMessage::Announce(part), &mut self.encoded)?;
                self.announced = if is_last { 0 } else { end };
                if !is_last {
                    self.commands.push_front(ClientCommand::Announce(announcement));
                }
            }
            ClientCommand::Request(batch) => {
                let request = BatchRequest {
                    batch: batch.number,
                    deadline: batch.deadline,
                    data_set: self.data_set,
                    samples: batch.samples[..].into(),
                };
                encode(&ConsumerMessage::Request(request), &mut self.encoded)?;
                self.sent = Sent::Request(batch.number);
                batches.insert(batch);
            }
            ClientCommand::Hits(accesses) => {
                encode(&ConsumerMessage::Hits(MemoryHits { accesses }), &mut self.encoded)?;
            }
            ClientCommand::Withdraw(batch) => {
                if batches.end(batch) {
                    encode(&end(batch), &mut self.encoded)?;
                }
            }
        }
        Ok(())
    }

    /// The most positions of a message with these fixed bytes.
    fn positions_max(&self, fixed: usize) -> usize {
        SAMPLES_MAX.min((self.message_max - fixed) / u32::BYTES)
    }
}

fn end(batch: u64) -> ConsumerMessage<'static> {
    ConsumerMessage::Release(BatchRelease { batch, positions: [][..].into() })
}

fn encode(message: &ConsumerMessage<'_>, into: &mut Vec<u8>) -> Result<(), NodeError> {
    message.encode_into(into).map_err(|fault| invalid(fault.to_string()))
}
