// SPDX-License-Identifier: Apache-2.0
//! Faults of samples: which kind the end of a read is, and its message.

use foresee_data_fetch::Fault as Cause;
use foresee_units::Nanos;

use crate::batch::FaultKind;
use crate::reads::Read;

/// The message of a fault; the Python side adds the sample's name and the remedy.
pub(super) fn fault_message(read: &Read, kind: FaultKind, tries: u32, elapsed: Nanos) -> String {
    let what = match kind {
        FaultKind::Missing => "the origin has no such object",
        FaultKind::Changed => "the object has changed since it was indexed",
        FaultKind::Denied => "the origin refuses access",
        FaultKind::Corrupt => "the bytes do not match the index",
        FaultKind::Throttled => "the origin is throttling: it allows fewer requests",
        FaultKind::Timeout => "the origin gave no answer",
        FaultKind::Failed => "the read failed",
    };
    let said = read.message.as_deref().map(|said| format!(" ({said})")).unwrap_or_default();
    let times = if tries == 1 { "attempt" } else { "attempts" };
    format!("{what}{said}, {tries} {times} in {elapsed}")
}

/// The kind of fault that a read ended with.
pub(super) const fn kind_of(cause: Cause) -> FaultKind {
    match cause {
        Cause::Absent => FaultKind::Missing,
        Cause::Changed => FaultKind::Changed,
        Cause::Denied => FaultKind::Denied,
        Cause::Corrupt => FaultKind::Corrupt,
        Cause::Throttled => FaultKind::Throttled,
        Cause::Timeout | Cause::Broken | Cause::Interrupted => FaultKind::Timeout,
        Cause::Fatal => FaultKind::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttling_is_told_apart_from_silence() {
        assert_eq!(kind_of(Cause::Throttled), FaultKind::Throttled);
        assert_eq!(kind_of(Cause::Timeout), FaultKind::Timeout);
        assert_eq!((FaultKind::Throttled.word(), FaultKind::Throttled.permanent()), ("throttled", false));
    }
}
