// SPDX-License-Identifier: Apache-2.0
//! The rings of one consumer, served by a thread of its own: requests go to the host's driver, replies come from it.
//!
//! The thread waits for this consumer alone, so one that does not read its answers delays nobody else.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use foresee_data_node::NodeError;
use foresee_data_node::message::{
    BatchAnswer, BatchFailure, EpochWanted, HostMessage, ListElement as _, MessageError, SampleFailure,
    SampleLocation,
};
use foresee_data_node::ring::{RingError, RingPair, RingWaker};

use super::inbox::{HostEvent, Inbox};

/// Longest sleep of the thread: a consumer can spoil its wake word, and delays only its own answers then.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Messages that the driver has not handled yet; more stay in the ring.
const UNHANDLED_MAX: usize = 16;

/// A reply of the driver.
#[derive(Debug)]
pub(super) enum Reply {
    /// Samples of a batch that are ready.
    Answer { batch: u64, samples: Vec<SampleLocation> },
    /// Samples of a batch that cannot be read.
    Failure { batch: u64, samples: Vec<SampleFailure> },
    /// The next epoch is to be announced.
    EpochWanted { data_set: u32 },
}

/// The driver's end of a session. Dropping it ends the thread.
#[derive(Debug)]
pub(super) struct Session {
    outbox: Arc<Outbox>,
    waker: RingWaker,
}

#[derive(Debug, Default)]
struct Outbox {
    /// Bounded, because each reply answers samples of a request, whose number the driver bounds.
    replies: Mutex<VecDeque<Reply>>,
    /// Messages on their way to the driver.
    unhandled: AtomicUsize,
    is_closing: AtomicBool,
}

/// Why a session ends by itself.
#[derive(Debug, thiserror::Error)]
enum SessionFault {
    #[error(transparent)]
    Ring(#[from] RingError),
    #[error(transparent)]
    Message(#[from] MessageError),
}

impl Session {
    /// Serve the rings of consumer `number`.
    ///
    /// # Errors
    /// [`NodeError::Io`]: the system refuses a thread.
    pub(super) fn start(number: u32, rings: RingPair, inbox: Arc<Inbox>) -> Result<Self, NodeError> {
        let outbox = Arc::new(Outbox::default());
        let waker = rings.waiter.waker();
        let served = Arc::clone(&outbox);
        Builder::new()
            .name(format!("foresee-host-{number}"))
            .spawn(move || {
                if let Err(fault) = serve(number, rings, &served, &inbox) {
                    inbox.push(HostEvent::Broken { consumer: number, why: fault.to_string() });
                }
            })
            .map_err(|why| NodeError::Io { doing: "starting the thread of a consumer", why })?;
        Ok(Self { outbox, waker })
    }

    /// Send replies, in order.
    pub(super) fn send(&self, replies: impl Iterator<Item = Reply>) {
        let mut pending = self.outbox.replies();
        // The thread was woken for the pending ones, and takes these with them.
        let is_first = pending.is_empty();
        pending.extend(replies);
        drop(pending);
        if is_first {
            self.waker.wake();
        }
    }

    /// The driver has handled a message.
    pub(super) fn note_handled(&self) {
        if self.outbox.unhandled.fetch_sub(1, Ordering::AcqRel) == UNHANDLED_MAX {
            self.waker.wake();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.outbox.is_closing.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl Outbox {
    fn may_read(&self) -> bool {
        self.unhandled.load(Ordering::Acquire) < UNHANDLED_MAX
    }

    fn replies(&self) -> MutexGuard<'_, VecDeque<Reply>> {
        self.replies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the thread can do next.
enum Ready {
    Request,
    Reply,
    Closing,
}

fn serve(number: u32, rings: RingPair, outbox: &Outbox, inbox: &Inbox) -> Result<(), SessionFault> {
    let RingPair { mut writer, mut reader, waiter } = rings;
    let mut encoder = Encoder::new(writer.message_max());
    loop {
        let ready = waiter.wait(Some(SLEEP_MAX), || {
            if outbox.is_closing.load(Ordering::Acquire) {
                return Some(Ok(Ready::Closing));
            }
            if outbox.may_read() {
                match reader.has_message() {
                    Ok(true) => return Some(Ok(Ready::Request)),
                    Ok(false) => {}
                    Err(fault) => return Some(Err(fault)),
                }
            }
            let space = match encoder.message() {
                Some(message) => writer.has_space(message.len()),
                None => Ok(!outbox.replies().is_empty()),
            };
            space.map(|has| has.then_some(Ready::Reply)).transpose()
        });
        match ready.transpose()? {
            None => {}
            Some(Ready::Closing) => return Ok(()),
            Some(Ready::Request) => {
                while outbox.may_read()
                    && let Some(message) = reader.try_pop()?
                {
                    outbox.unhandled.fetch_add(1, Ordering::AcqRel);
                    inbox.push(HostEvent::Message { consumer: number, bytes: message.to_vec() });
                }
            }
            Some(Ready::Reply) => {
                while encoder.fill(&mut outbox.replies())? {
                    if !writer.try_push(encoder.message().unwrap_or_default())? {
                        break;
                    }
                    encoder.clear();
                }
            }
        }
    }
}

/// Encodes replies one after another, each as one message or several.
struct Encoder {
    message: Vec<u8>,
    answers_max: usize,
    failures_max: usize,
}

impl Encoder {
    /// `message_max`: the longest message, in bytes.
    fn new(message_max: usize) -> Self {
        let fitting = |fixed: usize, each: usize| (message_max.saturating_sub(fixed) / each).max(1);
        Self {
            message: Vec::new(),
            answers_max: fitting(BatchAnswer::FIXED_BYTES, SampleLocation::BYTES),
            failures_max: fitting(BatchFailure::FIXED_BYTES, SampleFailure::BYTES),
        }
    }

    /// The message that waits for space in the ring.
    fn message(&self) -> Option<&[u8]> {
        (!self.message.is_empty()).then_some(&self.message)
    }

    /// The message is in the ring.
    fn clear(&mut self) {
        self.message.clear();
    }

    /// Encode the next message unless there is one; `false` if no reply is left.
    fn fill(&mut self, replies: &mut VecDeque<Reply>) -> Result<bool, MessageError> {
        if !self.message.is_empty() {
            return Ok(true);
        }
        let Some(reply) = replies.front_mut() else { return Ok(false) };
        let is_rest = match reply {
            Reply::Answer { batch, samples } => {
                let part = samples.split_off(samples.len().saturating_sub(self.answers_max));
                let answer = BatchAnswer { batch: *batch, samples: part.as_slice().into() };
                HostMessage::Answer(answer).encode_into(&mut self.message)?;
                !samples.is_empty()
            }
            Reply::Failure { batch, samples } => {
                let part = samples.split_off(samples.len().saturating_sub(self.failures_max));
                let failure = BatchFailure { batch: *batch, samples: part.as_slice().into() };
                HostMessage::Failure(failure).encode_into(&mut self.message)?;
                !samples.is_empty()
            }
            &mut Reply::EpochWanted { data_set } => {
                HostMessage::EpochWanted(EpochWanted { data_set }).encode_into(&mut self.message)?;
                false
            }
        };
        if !is_rest {
            replies.pop_front();
        }
        Ok(true)
    }
}
