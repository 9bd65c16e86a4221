// SPDX-License-Identifier: Apache-2.0
//! Sends to one node: messages and samples, in the order in which they were queued.

use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};

use foresee_data_fetch::peers::PeerMessage;
use foresee_data_tier::Payload;
use foresee_units::SampleId;
use foresee_wire::{
    BATCH_MAX, Bye, Fault, FrameFault, FrameSender, Header, Message, SAMPLE_BYTES_MAX, Sending, Sent,
    WireError,
};

use super::patience;
use super::translate::to_wire;
use crate::node::now;

/// Something to send.
#[derive(Debug)]
enum Outgoing {
    Message(PeerMessage),
    /// With the caller's number.
    Sample(u64, SampleId, Payload),
    /// The last one: an orderly end, or a fault of the other node.
    End(Result<String, Fault>),
}

/// The queue of one connection. What is in it is bounded by the exchange: few messages per sample, and bytes in flight.
#[derive(Clone, Debug)]
pub(super) struct SendQueue(Sender<Outgoing>);

/// The other end of the queue.
#[derive(Debug)]
pub(super) struct Outbox(Receiver<Outgoing>);

/// Create a queue.
pub(super) fn queue() -> (SendQueue, Outbox) {
    let (sender, receiver) = channel();
    (SendQueue(sender), Outbox(receiver))
}

impl SendQueue {
    pub(super) fn message(&self, message: PeerMessage) {
        self.push(Outgoing::Message(message));
    }

    /// Send a sample, whose bytes must not change before this number is reported as sent, or the connection as ended.
    pub(super) fn sample(&self, number: u64, sample: SampleId, payload: Payload) {
        self.push(Outgoing::Sample(number, sample, payload));
    }

    /// End the connection.
    pub(super) fn end(&self, reason: Result<String, Fault>) {
        self.push(Outgoing::End(reason));
    }

    fn push(&self, outgoing: Outgoing) {
        // Without a receiver the connection has ended, which is reported.
        let _ = self.0.send(outgoing);
    }
}

/// A frame to be sent.
#[derive(Debug)]
struct Frame {
    header: Header,
    bytes: FrameBytes,
    /// The number of the sample of which it is the last part.
    ends: Option<u64>,
}

#[derive(Debug)]
enum FrameBytes {
    Message(Vec<u8>),
    Part(Payload, Range<usize>),
}

impl Outbox {
    /// Send until the connection or the queue ends. `sent` is told the number of each sample whose bytes are no longer needed.
    pub(super) fn run(self, sender: &mut FrameSender, sent: impl Fn(u64)) -> Result<(), WireError> {
        let mut frames = Vec::new();
        while let Ok(first) = self.0.recv() {
            // One system call for all that is queued: most samples are small.
            let mut next = Some(first);
            let mut is_last = false;
            while let Some(outgoing) = next {
                is_last |= matches!(outgoing, Outgoing::End(_));
                let peer = sender.link().peer();
                outgoing.add_to(&mut frames).map_err(|fault| WireError::Refused { peer, fault })?;
                next = if is_last || frames.len() >= BATCH_MAX { None } else { self.0.try_recv().ok() };
            }
            send_frames(sender, &frames)?;
            for frame in frames.drain(..) {
                let ends = frame.ends;
                drop(frame);
                ends.into_iter().for_each(&sent);
            }
            if is_last {
                return Ok(());
            }
        }
        Ok(())
    }
}

impl Outgoing {
    /// Add the frames of it.
    fn add_to(self, frames: &mut Vec<Frame>) -> Result<(), FrameFault> {
        let messages = match self {
            Self::Sample(number, sample, payload) => {
                add_sample(number, sample, &payload, frames);
                return Ok(());
            }
            Self::Message(message) => to_wire(&message, now()).into_iter().map(Message::Samples).collect(),
            Self::End(Ok(reason)) => vec![Message::Bye(Bye { reason })],
            Self::End(Err(fault)) => vec![Message::Error(fault)],
        };
        for message in messages {
            let (header, body) = message.encode(0)?;
            frames.push(Frame { header, bytes: FrameBytes::Message(body), ends: None });
        }
        Ok(())
    }
}

impl FrameBytes {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Message(body) => body,
            Self::Part(payload, range) => &payload.as_slice()[range.clone()],
        }
    }
}

/// Add the parts of a sample.
fn add_sample(number: u64, sample: SampleId, payload: &Payload, frames: &mut Vec<Frame>) {
    let len = payload.as_slice().len();
    let starts = (0..len).step_by(SAMPLE_BYTES_MAX as usize);
    for (part, start) in (0_u32..).zip(starts) {
        let range = start..len.min(start + SAMPLE_BYTES_MAX as usize);
        let bytes = &payload.as_slice()[range.clone()];
        let length = u32::try_from(bytes.len()).expect("at most a part");
        let header = Header::sample(sample.0, part, length).sealed(bytes);
        let ends = (range.end == len).then_some(number);
        frames.push(Frame { header, bytes: FrameBytes::Part(payload.clone(), range), ends });
    }
}

fn send_frames(sender: &mut FrameSender, mut frames: &[Frame]) -> Result<(), WireError> {
    while let [first, ..] = frames {
        let batch: Vec<_> =
            frames.iter().take(BATCH_MAX).map(|frame| (frame.header, frame.bytes.as_slice())).collect();
        let Sent { begun, state } = sender.send_frames(&batch, SAMPLE_BYTES_MAX as usize)?;
        let done = match state {
            Sending::Done => begun,
            Sending::Half => {
                sender.resume_all(batch[begun - 1].1, patience())?;
                begun
            }
            Sending::Blocked => {
                sender.send_all(&first.header, first.bytes.as_slice(), patience())?;
                1
            }
        };
        frames = &frames[done..];
    }
    Ok(())
}
