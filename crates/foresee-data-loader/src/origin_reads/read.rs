// SPDX-License-Identifier: Apache-2.0
//! Inputs and outputs of the reads of an origin.

use std::sync::Arc;

use foresee_data_fetch::Request;
use foresee_data_tier::{Dest, SampleKey, Tier};
use foresee_units::{Nanos, ReadOutcome};

use crate::errors::LoaderError;

/// Memory of one read, of exactly the length of the read. It is owned by the read until the read has ended.
pub(crate) trait ReadMemory {
    /// Map the memory, unless it is mapped already. Required before [`ReadMemory::dest`].
    fn ensure_mapped(&self) -> Result<(), LoaderError>;

    /// The memory as the destination of an attempt.
    ///
    /// # Safety
    /// Nothing else may access the memory while the `Dest` lives.
    unsafe fn dest(&self) -> Dest;
}

/// One read of a range of an object.
#[derive(Debug)]
pub(crate) struct OriginRead<M> {
    /// The origin, which may differ between the reads of one queue.
    pub(crate) origin: Arc<dyn Tier>,
    /// The sample at `request.start`.
    pub(crate) key: SampleKey,
    /// Its range, urgency and number (`request.ticket`). A number is never used again. Objects with equal numbers have
    /// the same origin.
    pub(crate) request: Request,
    /// The memory to fill.
    pub(crate) memory: M,
}

/// The end of one read, which returns its memory.
#[derive(Debug)]
pub(crate) struct OriginEnd<M> {
    /// The number of the read.
    pub(crate) number: u64,
    /// No attempt writes to it any more.
    pub(crate) memory: M,
    pub(crate) result: OriginResult,
}

/// The result of a read.
#[derive(Debug)]
pub(crate) enum OriginResult {
    /// The memory has the bytes.
    Complete,
    /// The origin cannot serve it.
    Failed(ReadFailure),
    /// Its memory could not be mapped.
    NoMemory(LoaderError),
    /// It was withdrawn.
    Withdrawn,
}

/// The failure of a read after its last attempt.
#[derive(Debug)]
pub(crate) struct ReadFailure {
    /// The outcome of the last attempt.
    pub(crate) outcome: ReadOutcome,
    /// Number of attempts, without hedges.
    pub(crate) tries: u32,
    /// Time since the request.
    pub(crate) elapsed: Nanos,
    /// The message of the last failed attempt.
    pub(crate) message: Option<Box<str>>,
}

/// The state of a read that has not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadStatus<'a> {
    /// Whether an attempt is in flight.
    pub(crate) is_in_flight: bool,
    /// Whether an attempt has failed.
    pub(crate) has_failed: bool,
    /// The message of the last failed attempt.
    pub(crate) message: Option<&'a str>,
}
