// SPDX-License-Identifier: Apache-2.0
//! A batch as it is handed out, and what is wrong with single samples of it.

use std::ptr::NonNull;
use std::sync::Arc;

use foresee_ledger::Cause;
use foresee_units::{Epoch, Nanos, ReadOutcome, SampleId, Step};

use crate::buffer::Buffer;

/// A sample of a batch that could not be read; its bytes are zero.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Place in the batch.
    pub place: usize,
    /// How its last read ended.
    pub outcome: ReadOutcome,
    /// What happened, after how many attempts. Which sample it was and what to do is for whoever shows it.
    pub message: String,
}

impl Fault {
    /// The kind of fault as users know it: an attribute of Python's `SampleFault`.
    pub const fn kind(&self) -> &'static str {
        match self.outcome {
            ReadOutcome::Absent => "missing",
            ReadOutcome::Changed => "changed",
            ReadOutcome::Denied => "denied",
            ReadOutcome::Corrupt => "corrupt",
            ReadOutcome::Throttled { .. } => "throttled",
            // Tried until patience ended.
            ReadOutcome::Retryable | ReadOutcome::Cancelled => "timeout",
            ReadOutcome::Ok | ReadOutcome::Full | ReadOutcome::Failed => "failed",
        }
    }

    /// Whether asking again later would find the same: only such samples may be replaced or skipped.
    pub const fn is_permanent(&self) -> bool {
        matches!(self.outcome, ReadOutcome::Absent | ReadOutcome::Changed | ReadOutcome::Corrupt)
    }
}

/// One step's samples of this rank, in order.
///
/// Owns its memory: it goes back to the loader when the batch, and whatever else holds [`Batch::memory`], is gone.
#[derive(Debug)]
pub struct Batch {
    /// The epoch it belongs to.
    pub epoch: Epoch,
    /// Counted from where the epoch began or was resumed.
    pub step: Step,
    /// Place of its first sample in this rank's epoch, counted like `step`.
    pub start: u64,
    /// Whether the epoch ends after it.
    pub last: bool,
    /// The samples.
    pub ids: Vec<SampleId>,
    /// Labels, one per sample; -1 where there is none.
    pub labels: Vec<i64>,
    /// Sample `i` is bytes `offsets[i]..offsets[i + 1]`.
    pub offsets: Vec<u64>,
    /// What could not be read.
    pub faults: Vec<Fault>,
    /// If it was waited for: why, and since when each cause, on the loader's clock.
    pub turns: Vec<(Cause, Nanos)>,
    pub(crate) buffer: Arc<Buffer>,
}

impl Batch {
    /// Start and length of the samples' bytes, one after another. Valid as long as the keeper is held.
    pub fn memory(&self) -> (NonNull<u8>, usize, Arc<dyn std::any::Any + Send + Sync>) {
        (self.buffer.start(), self.len_bytes(), Arc::clone(&self.buffer) as _)
    }

    fn len_bytes(&self) -> usize {
        let end = self.offsets.last().copied().unwrap_or(0);
        usize::try_from(end).unwrap_or(usize::MAX)
    }

    /// The samples' bytes.
    pub fn bytes(&self) -> &[u8] {
        let (start, len, _keeper) = self.memory();
        // SAFETY: filled before the batch was handed over, kept by `self`, and no tier touches it any more.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_throttled_sample_has_its_own_kind_and_may_not_be_replaced() {
        let fault = |outcome| Fault { place: 0, outcome, message: String::new() };
        let throttled = fault(ReadOutcome::Throttled { retry_after: None });
        assert_eq!((throttled.kind(), throttled.is_permanent()), ("throttled", false));
        assert_eq!(fault(ReadOutcome::Retryable).kind(), "timeout");
    }
}
