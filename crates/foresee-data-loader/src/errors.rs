// SPDX-License-Identifier: Apache-2.0
//! What can go wrong with a loader as a whole. What goes wrong with one sample travels in its batch, as a
//! [`crate::Fault`]: the consumer decides whether that ends the run.

use std::sync::Arc;

use foresee_units::{Bytes, SampleId};

/// A loader that cannot be made, started or driven on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoaderError {
    /// Settings that contradict themselves or the machine; all of them at once.
    #[error("{}", .faults.join("; "))]
    Config {
        /// One sentence each, with value and remedy.
        faults: Vec<String>,
    },
    /// The system gives no more memory.
    #[error("no memory for a batch buffer of {wanted}: {why}; use smaller batches or less `ram`")]
    NoMemory {
        /// Size of the mapping.
        wanted: Bytes,
        /// The system's words.
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
    /// The memory tier cannot be made.
    #[error("the memory tier of {capacity} cannot be made: {why}; set a smaller `ram`")]
    Ram {
        /// Its capacity.
        capacity: Bytes,
        /// The system's words.
        why: String,
    },
    /// A sample is not as it was when it was indexed.
    #[error(
        "sample {sample} ({uri}) has {found}, the index says {indexed}; index the data set again (foresee index --update)"
    )]
    Changed {
        /// Which one.
        sample: SampleId,
        /// Its object.
        uri: String,
        /// Bytes that the origin gave.
        found: Bytes,
        /// Bytes that it had.
        indexed: Bytes,
    },
    /// The run folder cannot be written.
    #[error("the run folder {path} cannot be written: {why}; choose another, or run without one")]
    RunFolder {
        /// The folder.
        path: String,
        /// The system's words.
        why: String,
    },
    /// A thread cannot be started.
    #[error("a thread for the loader cannot be started: {why}; raise the limit on processes (ulimit -u)")]
    Thread {
        /// The system's words.
        why: String,
    },
    /// `close` was called.
    #[error("the loader is closed; make a new one")]
    Closed,
    /// The time the caller gave has passed.
    #[error(
        "no batch within {waited_ms} ms{what}; the batch is still coming: call again, or look at the origin"
    )]
    Timeout {
        /// What the caller gave.
        waited_ms: u64,
        /// What the driver waits for, if known, with a leading colon.
        what: String,
    },
    /// The driver had to stop; the same for everyone who asks.
    #[error(transparent)]
    Stopped(Arc<LoaderError>),
    /// A defect of the loader itself.
    #[error(
        "the loader's driver has failed: {why}; this is a defect of foresee, please report it with the run folder"
    )]
    Broken {
        /// The panic's message.
        why: String,
    },
    /// The process was forked and this is the child.
    #[error("a loader does not survive a fork: make it in the child, or start workers with num_workers")]
    Forked,
}
