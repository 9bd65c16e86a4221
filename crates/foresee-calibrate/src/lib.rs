// SPDX-License-Identifier: Apache-2.0
//! Measurements of this host's memory, disks, origin and links: one short repeat at a time.
//!
//! Bytes take the paths of training: the tiers' own reads, the origin's own client, frames of the wire. A
//! [`Repeat`] reports bytes and time; the caller chooses the number of repeats and threads, and interprets the
//! results. The crate is separate from the loader, whose engine never reads in order to measure.
//!
//! | file | measurement |
//! |---|---|
//! | `memory` | copies, checksums, the memory tier |
//! | `disk` | an unnamed file in a folder: device and page cache separately |
//! | `origin` | samples of an index at their origin |
//! | `network` | one direction of the links between rank 0 and the others |
//! | `race` | threads that start and end together |

mod disk;
mod memory;
mod network;
mod origin;
mod race;

pub use disk::{DiskProbe, DiskWork};
pub use memory::{MemoryProbe, MemoryWork};
pub use network::{LinkRepeat, answer_links, measure_links};
pub use origin::{OriginProbe, OriginWork};

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use foresee_data_tier::OriginError;
use foresee_units::{Bytes, Nanos};
use foresee_wire::WireError;

/// The bytes and times of one repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// Bytes of all threads or readers together.
    pub bytes: Bytes,
    /// Time from the common start to the end of the last thread.
    pub took: Nanos,
    /// The median time of one operation.
    pub latency: Nanos,
    /// The number of successful operations.
    pub operations: u64,
}

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages show the fields by their names")]
#[non_exhaustive]
pub enum CalibrateError {
    /// The folder does not accept a file, or the file fails.
    #[error("{}: {source} (while {doing}); name a folder that this user may write", .folder.display())]
    Folder { folder: PathBuf, doing: &'static str, source: std::io::Error },
    /// The disk is too full.
    #[error("{}: {free_bytes} free, at least {required} needed to measure; free some, or name another folder", .folder.display())]
    Full {
        folder: PathBuf,
        free_bytes: Bytes,
        /// The required space.
        required: Bytes,
    },
    /// The origin cannot be opened.
    #[error(transparent)]
    Origin(#[from] OriginError),
    /// A sample cannot be read.
    #[error("{uri}: {why}")]
    Sample { uri: String, why: String },
    /// All samples are empty.
    #[error("{uri}: all samples have 0 bytes; name a data set with something to read")]
    NoBytes { uri: String },
    /// The link between ranks failed.
    #[error("network between ranks: {0}")]
    Wire(#[from] WireError),
    /// Some ranks did not connect.
    #[error(
        "network between ranks: {connected} of {expected} ranks connected to {address} within {within}; start `foresee calibrate` \
         on every rank, and let the port through the firewall"
    )]
    RanksMissing {
        /// The number without rank 0.
        connected: u32,
        /// The expected number without rank 0.
        expected: u32,
        address: std::net::SocketAddr,
        /// How long it waited.
        within: Nanos,
    },
    /// The system refuses memory or threads.
    #[error("this host refuses {what}: {why}; free some, or raise its limit (ulimit -u, ulimit -v)")]
    Refused { what: &'static str, why: String },
    /// The caller's flag was raised.
    #[error("the measurement was stopped")]
    Stopped,
}

/// An error if the caller has raised its flag.
fn check_flag(stop: &AtomicBool) -> Result<(), CalibrateError> {
    if stop.load(Ordering::Relaxed) { Err(CalibrateError::Stopped) } else { Ok(()) }
}

fn refused(what: &'static str, why: &dyn std::fmt::Display) -> CalibrateError {
    CalibrateError::Refused { what, why: why.to_string() }
}
