// SPDX-License-Identifier: Apache-2.0
//! Sends to one node: messages and samples, in the order in which they were queued.

use std::sync::mpsc::{Receiver, Sender, channel};

use foresee_data_fetch::peers::PeerMessage;
use foresee_data_tier::Payload;
use foresee_units::SampleId;
use foresee_wire::{Bye, Fault, FrameSender, Header, Message, SAMPLE_BYTES_MAX, WireError};

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

impl Outbox {
    /// Send until the connection or the queue ends. `sent` is told the number of each sample whose bytes are no longer needed.
    pub(super) fn run(self, sender: &mut FrameSender, sent: impl Fn(u64)) -> Result<(), WireError> {
        while let Ok(outgoing) = self.0.recv() {
            match outgoing {
                Outgoing::Message(message) => {
                    for message in to_wire(&message, now()) {
                        sender.send_message(&Message::Samples(message), 0, patience())?;
                    }
                }
                Outgoing::Sample(number, sample, payload) => {
                    send_sample(sender, sample, &payload)?;
                    drop(payload);
                    sent(number);
                }
                Outgoing::End(reason) => {
                    let message = match reason {
                        Ok(reason) => Message::Bye(Bye { reason }),
                        Err(fault) => Message::Error(fault),
                    };
                    return sender.send_message(&message, 0, patience());
                }
            }
        }
        Ok(())
    }
}

fn send_sample(sender: &mut FrameSender, sample: SampleId, payload: &Payload) -> Result<(), WireError> {
    for (part, bytes) in (0_u32..).zip(payload.as_slice().chunks(SAMPLE_BYTES_MAX as usize)) {
        let length = u32::try_from(bytes.len()).expect("at most a part");
        let header = Header::sample(sample.0, part, length).sealed(bytes);
        sender.send_all(&header, bytes, patience())?;
    }
    Ok(())
}
