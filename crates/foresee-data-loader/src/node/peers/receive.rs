// SPDX-License-Identifier: Apache-2.0
//! Receives from one node: messages, and samples into the memory of their reads.
//!
//! A part of a sample is received completely before it is copied to the memory of its read. So a read can be withdrawn at any
//! time, and a slow node never holds memory of the cache.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use foresee_data_fetch::peers::PeerMessage;
use foresee_data_tier::Dest;
use foresee_units::{Bytes, SampleId};
use foresee_wire::{Fault, FaultCode, FrameReceiver, Kind, Message, SAMPLE_BYTES_MAX, WireError};

use super::patience;
use super::translate::from_wire;
use crate::node::now;

/// What a node has sent.
#[derive(Debug)]
pub(super) enum Received {
    Message(PeerMessage),
    /// Bytes of a sample that is not complete, or not wanted.
    Bytes(Bytes),
    /// A sample is complete, in the memory of its read; with the bytes of its last part.
    Sample(SampleId, Bytes),
}

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReceiveError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("it has ended: {0}")]
    Ended(String),
    #[error("it reports: {0}")]
    Reported(Fault),
    #[error("it sent {kind}, which is not for nodes")]
    Unexpected { kind: Kind },
    #[error("it sent part {part} of sample {sample} with {bytes} bytes, of which {missing} are missing")]
    Part { sample: SampleId, part: u32, bytes: usize, missing: usize },
}

/// The memory of reads from one node.
#[derive(Debug, Default)]
pub(super) struct Expected(Mutex<BTreeMap<SampleId, ExpectedSample>>);

#[derive(Debug)]
struct ExpectedSample {
    dest: Dest,
    received: usize,
}

impl Expected {
    /// Receive a sample into this memory, which is at least one byte. Without effect if it is expected already.
    pub(super) fn add(&self, sample: SampleId, dest: Dest) {
        self.lock().entry(sample).or_insert(ExpectedSample { dest, received: 0 });
    }

    /// Do not receive a sample. Its memory is not used any more.
    pub(super) fn remove(&self, sample: SampleId) {
        self.lock().remove(&sample);
    }

    /// Copy a part of a sample; returns whether the sample is complete. A part that is not the next one is of an earlier
    /// request.
    fn copy(&self, sample: SampleId, part: u32, bytes: &[u8]) -> Result<bool, ReceiveError> {
        let mut all = self.lock();
        let Some(ExpectedSample { dest, received }) = all.get_mut(&sample) else { return Ok(false) };
        if *received as u64 != u64::from(part) * u64::from(SAMPLE_BYTES_MAX) {
            return Ok(false);
        }
        let missing = dest.len() - *received;
        let wanted = missing.min(SAMPLE_BYTES_MAX as usize);
        if bytes.len() != wanted {
            return Err(ReceiveError::Part { sample, part, bytes: bytes.len(), missing });
        }
        dest.as_mut_slice()[*received..][..wanted].copy_from_slice(bytes);
        *received += wanted;
        let is_complete = *received == dest.len();
        if is_complete {
            all.remove(&sample);
        }
        Ok(is_complete)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<SampleId, ExpectedSample>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receive until the connection ends.
pub(super) fn receive(
    receiver: &mut FrameReceiver,
    expected: &Expected,
    report: impl Fn(Received),
) -> ReceiveError {
    let mut part = Vec::new();
    loop {
        match receive_frame(receiver, expected, &mut part) {
            Ok(received) => report(received),
            Err(error) => return error,
        }
    }
}

fn receive_frame(
    receiver: &mut FrameReceiver,
    expected: &Expected,
    part: &mut Vec<u8>,
) -> Result<Received, ReceiveError> {
    let ended = || ReceiveError::Ended("without a reason".into());
    let header = receiver.header(patience())?.ok_or_else(ended)?;
    if header.kind == Kind::Sample {
        part.resize(header.length as usize, 0);
        receiver.payload(part, patience())?;
        let (sample, bytes) = (SampleId(header.sample_number()), Bytes::new(u64::from(header.length)));
        let is_complete = expected.copy(sample, header.round, part)?;
        return Ok(if is_complete { Received::Sample(sample, bytes) } else { Received::Bytes(bytes) });
    }
    if header.kind.is_data() {
        return Err(ReceiveError::Unexpected { kind: header.kind });
    }
    match receiver.message(patience())? {
        Message::Samples(message) => Ok(Received::Message(from_wire(message, now()))),
        Message::Bye(bye) => Err(ReceiveError::Ended(bye.reason)),
        Message::Error(fault) => Err(ReceiveError::Reported(fault)),
        other => Err(ReceiveError::Unexpected { kind: other.kind() }),
    }
}

impl ReceiveError {
    /// What the other node is told.
    pub(super) fn fault(&self) -> Option<Fault> {
        match self {
            Self::Unexpected { .. } | Self::Part { .. } | Self::Wire(WireError::Malformed { .. }) => {
                Some(Fault::new(FaultCode::Protocol, self.to_string()))
            }
            Self::Wire(_) | Self::Ended(_) | Self::Reported(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: SampleId = SampleId(4);
    const PART: usize = SAMPLE_BYTES_MAX as usize;

    #[test]
    fn a_sample_is_complete_with_its_last_part() {
        let expected = Expected::default();
        let (dest, scratch) = Dest::from_vec(vec![0; PART + 3]);
        expected.add(SAMPLE, dest);
        assert!(!expected.copy(SampleId(5), 0, &[1]).expect("not wanted"));
        assert!(!expected.copy(SAMPLE, 1, &[9; 3]).expect("of an earlier request"));
        assert!(!expected.copy(SAMPLE, 0, &vec![1; PART]).expect("the first part"));
        assert!(expected.copy(SAMPLE, 1, &[2; 3]).expect("the last part"));
        assert!(!expected.copy(SAMPLE, 0, &[3; 3]).expect("not wanted any more"));
        let bytes = scratch.into_bytes().expect("it is not used any more");
        assert_eq!((bytes[PART - 1], &bytes[PART..]), (1, &[2; 3][..]));
    }

    #[test]
    fn memory_is_not_used_after_a_read_was_withdrawn() {
        let expected = Expected::default();
        let (dest, scratch) = Dest::from_vec(vec![0; 3]);
        expected.add(SAMPLE, dest);
        expected.remove(SAMPLE);
        assert!(!expected.copy(SAMPLE, 0, &[1; 3]).expect("not wanted any more"));
        assert_eq!(scratch.into_bytes().expect("it is not used any more"), [0; 3]);
    }

    #[test]
    fn a_part_of_another_length_is_refused() {
        let expected = Expected::default();
        let (dest, _scratch) = Dest::from_vec(vec![0; 3]);
        expected.add(SAMPLE, dest);
        for bytes in [&[][..], &[1; 2], &[1; 4]] {
            let error = expected.copy(SAMPLE, 0, bytes).expect_err("another length");
            assert!(error.to_string().contains("part 0 of sample 4"), "{error}");
            assert!(error.fault().is_some());
        }
    }
}
