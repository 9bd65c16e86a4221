// SPDX-License-Identifier: Apache-2.0
//! Errors of a loader. A fault of one sample is in its batch, as a [`crate::Fault`]: the consumer decides whether it
//! ends the run.

use std::sync::Arc;

use foresee_units::{Bytes, SampleId};

/// An error of a loader.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoaderError {
    /// Invalid settings, all of them at once.
    #[error("{}", .faults.join("; "))]
    Config {
        /// One sentence each, with value and remedy.
        faults: Vec<String>,
    },
    /// The system has no more memory.
    #[error("no memory for a batch buffer of {wanted}: {why}; use smaller batches or less `ram`")]
    NoMemory {
        /// Size of the mapping.
        wanted: Bytes,
        /// The system's error.
        why: String,
    },
    /// The origin cannot be used.
    #[error(transparent)]
    Origin(#[from] foresee_data_tier::OriginError),
    /// The cache directory cannot be used.
    #[error(transparent)]
    Disk(#[from] foresee_data_tier::DiskError),
    /// The order cannot be drawn.
    #[error(transparent)]
    Order(#[from] foresee_data_order::OrderError),
    /// The memory tier cannot be created.
    #[error("the memory tier of {capacity} cannot be created: {why}; set a smaller `ram`")]
    Ram {
        /// Its capacity.
        capacity: Bytes,
        /// The system's error.
        why: String,
    },
    /// A sample has changed since it was indexed.
    #[error(
        "sample {sample} ({uri}) has {found}, the index says {indexed}; index the data set again (foresee index --update)"
    )]
    Changed {
        /// The sample.
        sample: SampleId,
        /// The URI of its object.
        uri: String,
        /// Bytes at the origin.
        found: Bytes,
        /// Bytes in the index.
        indexed: Bytes,
    },
    /// The run folder cannot be written.
    #[error("the run folder {path} cannot be written: {why}; choose another, or run without one")]
    RunFolder {
        /// The folder.
        path: String,
        /// The system's error.
        why: String,
    },
    /// A thread cannot be started.
    #[error("a thread for the loader cannot be started: {why}; raise the limit on processes (ulimit -u)")]
    Thread {
        /// The system's error.
        why: String,
    },
    /// `close` was called.
    #[error("the loader is closed; create a new one")]
    Closed,
    /// The time limit of the caller has passed.
    #[error(
        "no batch within {waited_ms} ms{what}; the batch is still being read: call again, or check the origin"
    )]
    Timeout {
        /// The limit of the caller.
        waited_ms: u64,
        /// The awaited read, if known, with a leading colon.
        what: String,
    },
    /// The driver has stopped; every caller gets the same error.
    #[error(transparent)]
    Stopped(Arc<LoaderError>),
    /// A defect of the loader.
    #[error(
        "the loader's driver has failed: {why}; this is a defect of foresee, please report it with the run folder"
    )]
    Broken {
        /// The panic's message.
        why: String,
    },
    /// This is a forked child process.
    #[error("a loader does not survive a fork: create it in the child, or start workers with num_workers")]
    Forked,
}
