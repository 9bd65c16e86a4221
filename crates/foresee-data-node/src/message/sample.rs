// SPDX-License-Identifier: Apache-2.0
//! The elements of the lists: a sample's number, its position in a batch, its location in the slab, and its failure.

use foresee_units::{Nanos, ReadOutcome, SampleId, Source};

use super::SAMPLES_MAX;
use super::error::InvalidField;
use super::fields::Fields;
use super::list::ListElement;
use crate::memory::SlabLocation;

/// Where a sample of a batch is in the slab.
///
/// The host keeps it there until the position or the batch is released, and may withdraw it from a consumer that stands
/// still. [`LocationView::copy`](crate::LocationView::copy) detects that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleLocation {
    /// Position in the batch, 0 to [`SAMPLES_MAX`] - 1.
    pub position: u32,
    /// Its word in the table of the data set.
    pub location: SlabLocation,
    /// The source from which the host read it: [`Source::Ram`], [`Source::Disk`], [`Source::Peer`] or
    /// [`Source::Origin`].
    pub source: Source,
}

/// A sample that the host could not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleFailure {
    /// Position in the batch, 0 to [`SAMPLES_MAX`] - 1.
    pub position: u32,
    /// The failure; any outcome but [`ReadOutcome::Ok`].
    pub outcome: ReadOutcome,
}

impl ListElement for SampleId {
    const BYTES: usize = 8;

    fn encode(self, into: &mut [u8]) -> Result<(), InvalidField> {
        into.copy_from_slice(&self.0.to_le_bytes());
        Ok(())
    }

    fn decode(bytes: &[u8]) -> Result<Self, InvalidField> {
        Ok(Self(Fields(bytes).u64()))
    }
}

/// A position in a batch, 0 to [`SAMPLES_MAX`] - 1.
impl ListElement for u32 {
    const BYTES: usize = 4;

    fn encode(self, into: &mut [u8]) -> Result<(), InvalidField> {
        into.copy_from_slice(&check_position(self)?.to_le_bytes());
        Ok(())
    }

    fn decode(bytes: &[u8]) -> Result<Self, InvalidField> {
        check_position(Fields(bytes).u32())
    }
}

impl ListElement for SampleLocation {
    const BYTES: usize = 13;

    fn encode(self, into: &mut [u8]) -> Result<(), InvalidField> {
        into[..4].copy_from_slice(&check_position(self.position)?.to_le_bytes());
        into[4..12].copy_from_slice(&self.location.bits().to_le_bytes());
        into[12] = source_code(self.source)?;
        Ok(())
    }

    fn decode(bytes: &[u8]) -> Result<Self, InvalidField> {
        let mut fields = Fields(bytes);
        let position = check_position(fields.u32())?;
        let location = SlabLocation::from_bits(fields.u64());
        Ok(Self { position, location, source: source(fields.u8())? })
    }
}

impl ListElement for SampleFailure {
    const BYTES: usize = 13;

    fn encode(self, into: &mut [u8]) -> Result<(), InvalidField> {
        let (code, pause) = outcome_code(self.outcome)?;
        into[..4].copy_from_slice(&check_position(self.position)?.to_le_bytes());
        into[4] = code;
        into[5..].copy_from_slice(&pause.get().to_le_bytes());
        Ok(())
    }

    fn decode(bytes: &[u8]) -> Result<Self, InvalidField> {
        let mut fields = Fields(bytes);
        let position = check_position(fields.u32())?;
        let outcome = outcome(fields.u8(), Nanos::new(fields.u64()))?;
        Ok(Self { position, outcome })
    }
}

fn check_position(found: u32) -> Result<u32, InvalidField> {
    if found as usize >= SAMPLES_MAX {
        return Err(InvalidField { field: "position", found: found.into(), rule: "0 to 65535" });
    }
    Ok(found)
}

fn source_code(source: Source) -> Result<u8, InvalidField> {
    match source {
        Source::Ram => Ok(1),
        Source::Disk => Ok(2),
        Source::Peer => Ok(3),
        Source::Origin => Ok(4),
        Source::None | Source::Staging | Source::Server => Err(no_source(source as u64)),
    }
}

fn source(code: u8) -> Result<Source, InvalidField> {
    match code {
        1 => Ok(Source::Ram),
        2 => Ok(Source::Disk),
        3 => Ok(Source::Peer),
        4 => Ok(Source::Origin),
        _ => Err(no_source(code.into())),
    }
}

fn no_source(found: u64) -> InvalidField {
    InvalidField { field: "source", found, rule: "1 (ram) to 4 (origin)" }
}

/// The code of a failure and the pause that the origin requested.
fn outcome_code(outcome: ReadOutcome) -> Result<(u8, Nanos), InvalidField> {
    let code = match outcome {
        ReadOutcome::Ok => return Err(no_outcome(0)),
        ReadOutcome::Absent => 1,
        ReadOutcome::Corrupt => 2,
        ReadOutcome::Changed => 3,
        ReadOutcome::Denied => 4,
        ReadOutcome::Throttled { retry_after: None } => 5,
        ReadOutcome::Throttled { retry_after: Some(pause) } => return Ok((6, pause)),
        ReadOutcome::Retryable => 7,
        ReadOutcome::Full => 8,
        ReadOutcome::Cancelled => 9,
        ReadOutcome::Failed => 10,
    };
    Ok((code, Nanos::ZERO))
}

fn outcome(code: u8, pause: Nanos) -> Result<ReadOutcome, InvalidField> {
    let outcome = match code {
        1 => ReadOutcome::Absent,
        2 => ReadOutcome::Corrupt,
        3 => ReadOutcome::Changed,
        4 => ReadOutcome::Denied,
        5 => ReadOutcome::Throttled { retry_after: None },
        6 => return Ok(ReadOutcome::Throttled { retry_after: Some(pause) }),
        7 => ReadOutcome::Retryable,
        8 => ReadOutcome::Full,
        9 => ReadOutcome::Cancelled,
        10 => ReadOutcome::Failed,
        _ => return Err(no_outcome(code)),
    };
    if pause != Nanos::ZERO {
        return Err(InvalidField { field: "pause", found: pause.get(), rule: "0, except with code 6" });
    }
    Ok(outcome)
}

fn no_outcome(code: u8) -> InvalidField {
    InvalidField { field: "failure code", found: code.into(), rule: "1 (absent) to 10 (failed)" }
}
