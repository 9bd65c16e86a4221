// SPDX-License-Identifier: Apache-2.0
//! How fast this host's memory, disks, origin and links are: one short repeat of one measurement at a time.
//!
//! Bytes take the routes that training uses: the tiers' own reads, the origin's own client, frames of the wire. A
//! [`Repeat`] reports what was moved and how long it took; the caller chooses the number of repeats and threads, and
//! interprets the results. Separate from the loader, whose engine never reads in order to measure.
//!
//! | file | what it measures |
//! |---|---|
//! | `memory` | copies, checksums, the memory tier |
//! | `disk` | a nameless file in a folder: device and page cache apart |
//! | `origin` | samples of an index, at their origin |
//! | `network` | one direction of the links between rank 0 and the others |
//! | `race` | threads that begin together and end at one moment |

mod disk;
mod memory;
mod network;
mod origin;
mod race;

pub use disk::{DiskTrial, DiskWork};
pub use memory::{MemoryTrial, MemoryWork};
pub use network::{LinkRepeat, answer_links, measure_links};
pub use origin::{OriginTrial, OriginWork};

use std::path::PathBuf;

use foresee_data_tier::OriginError;
use foresee_units::{Bytes, Nanos};
use foresee_wire::WireError;

/// What one repeat moved, and how long it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// Bytes of all threads or readers together.
    pub bytes: Bytes,
    /// From the common start until the last one's end.
    pub took: Nanos,
    /// The median time of one operation.
    pub latency: Nanos,
    /// How many operations ended well.
    pub operations: u64,
}

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// The folder does not take a file, or the file fails.
    #[error("{}: {source} (while {doing}); name a folder that this user may write", .folder.display())]
    Folder {
        /// As given.
        folder: PathBuf,
        /// Which step.
        doing: &'static str,
        /// The kernel's reason.
        source: std::io::Error,
    },
    /// The disk has no room.
    #[error("{}: {room} free, at least {least} needed to measure; free some, or name another folder", .folder.display())]
    Full {
        /// As given.
        folder: PathBuf,
        /// What is free.
        room: Bytes,
        /// What is needed.
        least: Bytes,
    },
    /// The origin cannot be opened.
    #[error(transparent)]
    Origin(#[from] OriginError),
    /// A sample cannot be read.
    #[error("{uri}: {why}")]
    Sample {
        /// Its object.
        uri: String,
        /// The origin's words.
        why: String,
    },
    /// There is nothing to read.
    #[error("{uri}: all samples have 0 bytes; name a data set with something to read")]
    NoBytes {
        /// The data set.
        uri: String,
    },
    /// The link between ranks failed.
    #[error("network between ranks: {0}")]
    Wire(#[from] WireError),
    /// Not all ranks came.
    #[error(
        "network between ranks: {came} of {expected} ranks came to {address} within {within}; start `foresee calibrate` \
         on every rank, and let the port through the firewall"
    )]
    RanksMissing {
        /// Beside rank 0.
        came: u32,
        /// Beside rank 0.
        expected: u32,
        /// Where rank 0 waited.
        address: std::net::SocketAddr,
        /// For how long.
        within: Nanos,
    },
    /// Memory or threads are not to be had.
    #[error("this machine refuses {what}: {why}; free some, or raise its limit (ulimit -u, ulimit -v)")]
    Machine {
        /// What was refused.
        what: &'static str,
        /// The system's words.
        why: String,
    },
    /// The caller's flag was raised.
    #[error("the measurement was stopped")]
    Stopped,
}
