// SPDX-License-Identifier: Apache-2.0
//! The thread of an attachment: it writes messages, copies answered samples, and notices the end of the host.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foresee_data_node::message::{BatchAnswer, BatchFailure, HostMessage, SampleLocation};
use foresee_data_node::ring::RingPair;
use foresee_data_node::{NodeConnection, NodeError, NodeRequest};

use super::batches::{ActiveBatch, Batches, invalid};
use super::copy::{CopyOutcome, SharedSamples};
use super::messages::Outgoing;
use super::shared::Shared;
use super::{CopyCounts, NodeEvent};

/// Maximum time between two checks whether the host lives, and of each wait.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Answers that are handled before messages are written again.
const ANSWERS_PER_TURN: usize = 16;

/// The state of the thread.
#[derive(Debug)]
pub(super) struct ClientThread {
    shared: Arc<Shared>,
    connection: Arc<NodeConnection>,
    rings: RingPair,
    samples: Arc<SharedSamples>,
    data_set: u32,
    batches: Batches,
    outgoing: Outgoing,
}

/// The samples of one answer.
#[derive(Debug, Default)]
struct CopiedSamples {
    positions: Vec<u32>,
    taken_back: Vec<u32>,
    by_source: CopyCounts,
}

impl ClientThread {
    pub(super) fn new(
        shared: Arc<Shared>,
        connection: Arc<NodeConnection>,
        rings: RingPair,
        samples: Arc<SharedSamples>,
        data_set: u32,
    ) -> Self {
        let outgoing = Outgoing::new(data_set, rings.writer.message_max());
        Self { shared, connection, rings, samples, data_set, batches: Batches::default(), outgoing }
    }

    /// Run until the driver closes the client, or the attachment ends, which is reported.
    pub(super) fn run(mut self) {
        let why = match catch_unwind(AssertUnwindSafe(|| self.run_turns())) {
            Ok(Ok(())) => {
                // The host also sees the end of the socket.
                let _ = self.connection.send(&NodeRequest::Detach, Duration::ZERO);
                return;
            }
            Ok(Err(why)) => why,
            Err(_) => NodeError::Io {
                doing: "copying samples of the node's cache",
                why: io::Error::other(
                    "the thread panicked; report this defect with the message of the panic",
                ),
            },
        };
        self.shared.end(why, self.batches.missing(), self.outgoing.commands);
    }

    fn run_turns(&mut self) -> Result<(), NodeError> {
        let mut checked = Instant::now();
        loop {
            let (progress, is_closed) = self.shared.take(&mut self.outgoing.commands);
            if is_closed {
                return Ok(());
            }
            if let Some(progress) = progress {
                self.outgoing.report(progress);
            }
            let writer = &mut self.rings.writer;
            let has_pushed = self.outgoing.push(|message| writer.try_push(message), &mut self.batches)?;
            let has_answers = self.handle_answers()?;
            if checked.elapsed() >= CHECK_INTERVAL {
                self.check_host()?;
                checked = Instant::now();
            }
            if !has_pushed && !has_answers {
                self.wait();
            }
        }
    }

    /// Wait for a command, a message, or space for a message that has none. A fault of the ring ends the wait too.
    fn wait(&mut self) {
        let RingPair { writer, reader, waiter } = &mut self.rings;
        let waiting = self.outgoing.waiting_bytes();
        let ready = || {
            let has_message = reader.has_message().unwrap_or(true);
            let has_space = waiting.is_some_and(|bytes| writer.has_space(bytes).unwrap_or(true));
            (has_message || has_space || self.shared.has_work()).then_some(())
        };
        waiter.wait(Some(CHECK_INTERVAL), ready);
    }

    fn check_host(&self) -> Result<(), NodeError> {
        match self.connection.receive(Duration::ZERO) {
            Err(NodeError::Late { .. }) => {}
            Err(why) => return Err(why),
            Ok(_) => return Err(invalid("it answers a message that was not sent".into())),
        }
        match self.connection.process() {
            Some(process) if !process.is_alive()? => Err(NodeError::PeerEnded),
            _ => Ok(()),
        }
    }

    /// Handle some messages of the host. Returns whether there were any.
    fn handle_answers(&mut self) -> Result<bool, NodeError> {
        let Self { shared, rings, samples, data_set, batches, outgoing, .. } = self;
        for handled in 0..ANSWERS_PER_TURN {
            let Some(bytes) = rings.reader.try_pop()? else { return Ok(handled > 0) };
            match HostMessage::decode(bytes).map_err(|fault| invalid(fault.to_string()))? {
                HostMessage::Answer(answer) => handle_answer(answer, samples, shared, batches, outgoing)?,
                HostMessage::Failure(failure) => handle_failure(failure, shared, batches, outgoing)?,
                HostMessage::EpochWanted(wanted) if wanted.data_set == *data_set => {
                    shared.report_epoch_wanted();
                }
                other => return Err(invalid(format!("it is unexpected: {other:?}"))),
            }
        }
        Ok(true)
    }
}

fn handle_answer(
    answer: BatchAnswer<'_>,
    samples: &SharedSamples,
    shared: &Shared,
    batches: &mut Batches,
    outgoing: &mut Outgoing,
) -> Result<(), NodeError> {
    let number = answer.batch;
    let Some(batch) = batches.answered(number)? else { return Ok(()) };
    let mut copied = CopiedSamples::default();
    let outcome = copied.copy(answer, samples, batch);
    let is_complete = batch.is_complete();
    if is_complete {
        batches.end(number);
        outgoing.end(number);
    } else {
        outgoing.release(number, &copied.positions);
        outgoing.repeat(number, &copied.taken_back);
    }
    let CopiedSamples { positions, by_source, .. } = copied;
    // Also after an invalid answer: these bytes are valid.
    if !positions.is_empty() {
        let event = NodeEvent::Copied { batch: number, positions: positions.into(), by_source };
        shared.report(number, [event], is_complete);
    }
    outcome
}

fn handle_failure(
    failure: BatchFailure<'_>,
    shared: &Shared,
    batches: &mut Batches,
    outgoing: &mut Outgoing,
) -> Result<(), NodeError> {
    let number = failure.batch;
    let Some(batch) = batches.answered(number)? else { return Ok(()) };
    let mut events = Vec::with_capacity(failure.samples.len());
    let mut outcome = Ok(());
    for sample in failure.samples {
        outcome = batch.check(sample.position);
        if outcome.is_err() {
            break;
        }
        batch.on_done(sample.position);
        events.push(NodeEvent::Failed { batch: number, position: sample.position });
    }
    let is_complete = batch.is_complete();
    if is_complete {
        batches.end(number);
        outgoing.end(number);
    }
    shared.report(number, events, is_complete);
    outcome
}

impl CopiedSamples {
    /// Copy the samples of an answer, until one of them is invalid or the batch is withdrawn.
    fn copy(
        &mut self,
        answer: BatchAnswer<'_>,
        samples: &SharedSamples,
        batch: &mut ActiveBatch,
    ) -> Result<(), NodeError> {
        for SampleLocation { position, location, source } in answer.samples {
            let (sample, span) = batch.place(position)?;
            match batch.memory.copy(samples, (sample, location), span)? {
                CopyOutcome::Copied => {
                    batch.on_done(position);
                    self.positions.push(position);
                    self.by_source.record(source, span.1 as u64);
                }
                CopyOutcome::TakenBack => {
                    batch.on_taken_back(position);
                    self.taken_back.push(position);
                }
                // The driver's command to end it follows.
                CopyOutcome::Withdrawn => break,
            }
        }
        Ok(())
    }
}
