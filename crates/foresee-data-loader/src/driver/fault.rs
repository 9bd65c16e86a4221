// SPDX-License-Identifier: Apache-2.0
//! Messages about samples that could not be read.

use foresee_units::{Nanos, ReadOutcome};

use crate::reads::Read;

/// The message of a fault; the Python side adds the sample's name and the remedy.
pub(super) fn fault_message(read: &Read, outcome: ReadOutcome, tries: u32, elapsed: Nanos) -> String {
    let what = what_happened(outcome);
    let said = read.message.as_deref().map(|said| format!(" ({said})")).unwrap_or_default();
    let times = if tries == 1 { "attempt" } else { "attempts" };
    format!("{what}{said}, {tries} {times} in {elapsed}")
}

const fn what_happened(outcome: ReadOutcome) -> &'static str {
    match outcome {
        ReadOutcome::Absent => "the origin has no such object",
        ReadOutcome::Changed => "the object has changed since it was indexed",
        ReadOutcome::Denied => "the origin refuses access",
        ReadOutcome::Corrupt => "the bytes do not match the index",
        ReadOutcome::Throttled { .. } => "the origin is throttling: it allows fewer requests",
        ReadOutcome::Retryable | ReadOutcome::Cancelled => "the origin gave no answer",
        ReadOutcome::Ok | ReadOutcome::Full | ReadOutcome::Failed => "the read failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_throttled_read_is_not_reported_as_one_without_an_answer() {
        let throttled = what_happened(ReadOutcome::Throttled { retry_after: None });
        assert!(throttled.contains("throttling"), "{throttled}");
        assert_ne!(throttled, what_happened(ReadOutcome::Retryable));
    }
}
