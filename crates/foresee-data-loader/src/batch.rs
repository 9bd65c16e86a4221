// SPDX-License-Identifier: Apache-2.0
//! A delivered batch, and the faults of its samples.

use std::ptr::NonNull;
use std::sync::Arc;

use foresee_ledger::Cause;
use foresee_units::{Epoch, Nanos, ReadOutcome, SampleId, Step};

use crate::buffer::Buffer;

/// A sample of a batch that could not be read; its bytes are zero.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Index in the batch.
    pub index: usize,
    /// The outcome of its last read.
    pub outcome: ReadOutcome,
    /// The cause and the number of attempts. The Python side adds the sample's name and the remedy.
    pub message: String,
}

impl Fault {
    /// The kind of fault for users: an attribute of Python's `SampleFault`.
    pub const fn kind(&self) -> &'static str {
        describe(self.outcome).0
    }

    /// Whether a later read would fail in the same way: only such samples may be replaced or skipped.
    pub const fn is_permanent(&self) -> bool {
        matches!(self.outcome, ReadOutcome::Absent | ReadOutcome::Changed | ReadOutcome::Corrupt)
    }
}

/// The message of a fault; `detail` is that of the last failed attempt.
pub(crate) fn fault_message(
    outcome: ReadOutcome,
    detail: Option<&str>,
    tries: u32,
    elapsed: Nanos,
) -> String {
    let (_, cause) = describe(outcome);
    let detail = detail.map(|detail| format!(" ({detail})")).unwrap_or_default();
    let attempts = if tries == 1 { "attempt" } else { "attempts" };
    format!("{cause}{detail}, {tries} {attempts} in {elapsed}")
}

/// The kind of a fault, and its cause in a message.
const fn describe(outcome: ReadOutcome) -> (&'static str, &'static str) {
    match outcome {
        ReadOutcome::Absent => ("missing", "the origin has no such object"),
        ReadOutcome::Changed => ("changed", "the object has changed since it was indexed"),
        ReadOutcome::Denied => ("denied", "the origin refuses access"),
        ReadOutcome::Corrupt => ("corrupt", "the bytes do not match the index"),
        ReadOutcome::Throttled { .. } => ("throttled", "the origin is throttling: it allows fewer requests"),
        ReadOutcome::Retryable | ReadOutcome::Cancelled => ("timeout", "the origin gave no answer"),
        ReadOutcome::Ok | ReadOutcome::Full | ReadOutcome::Failed => ("failed", "the read failed"),
    }
}

/// One step's samples of this rank, in order.
///
/// It owns its memory, which returns to the loader when the batch and all other owners of [`Batch::memory`] are gone.
#[derive(Debug)]
pub struct Batch {
    /// The epoch.
    pub epoch: Epoch,
    /// The step, counted from where the epoch began or was resumed.
    pub step: Step,
    /// Position of its first sample in this rank's epoch, counted like `step`.
    pub start: u64,
    /// Whether the epoch ends after it.
    pub last: bool,
    /// The samples.
    pub ids: Vec<SampleId>,
    /// Labels, one per sample; -1 for a sample without one.
    pub labels: Vec<i64>,
    /// Sample `i` is bytes `offsets[i]..offsets[i + 1]`.
    pub offsets: Vec<u64>,
    /// The samples that could not be read.
    pub faults: Vec<Fault>,
    /// The causes of the wait for it, each with its start on the loader's clock; empty without a wait.
    pub stages: Vec<(Cause, Nanos)>,
    pub(crate) buffer: Arc<Buffer>,
}

impl Batch {
    /// Start and length of the samples' bytes, which are contiguous, and their owner. Valid while the owner lives.
    pub fn memory(&self) -> (NonNull<u8>, usize, Arc<dyn std::any::Any + Send + Sync>) {
        let len = usize::try_from(self.offsets.last().copied().unwrap_or(0)).unwrap_or(usize::MAX);
        (self.buffer.start(), len, Arc::clone(&self.buffer) as _)
    }

    /// The samples' bytes.
    pub fn bytes(&self) -> &[u8] {
        let (start, len, _owner) = self.memory();
        // SAFETY: filled before the batch was delivered, owned by `self`, and no longer written by any tier.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_throttled_sample_has_its_own_kind_and_message_and_may_not_be_replaced() {
        let throttled = ReadOutcome::Throttled { retry_after: None };
        let fault = |outcome| Fault { index: 0, outcome, message: String::new() };
        assert_eq!((fault(throttled).kind(), fault(throttled).is_permanent()), ("throttled", false));
        assert_eq!(fault(ReadOutcome::Retryable).kind(), "timeout");
        let message = |outcome| fault_message(outcome, None, 1, Nanos::ZERO);
        assert!(message(throttled).contains("throttling"));
        assert_ne!(message(throttled), message(ReadOutcome::Retryable));
    }
}
