// SPDX-License-Identifier: Apache-2.0
//! A throttled, counting origin over HTTP, S3 and as a mount, and hosts on shaped links, for demo, tests and
//! benchmarks.
//!
//! One process stands between a loader and its data, so that two loaders use the same slow origin, and their
//! traffic is counted independently of them. It serves a folder or buckets in memory, or is a proxy for a real S3
//! server. Buckets are also served in the forms of Google Cloud Storage and Azure, and those in memory as repositories of
//! a fake of the Hugging Face hub.
//!
//! It is a testbed: **signatures are not checked** unless it is a proxy, one process holds every limit, and no
//! part of it is in the wheel. A folder is read-only, and buckets in memory accept `PUT`. Other methods only reach a
//! server through the proxy.
//!
//! ```text
//! accept -> admit (requests/s, latency) -> fault? -> folder | memory | forward -> body (bytes/s, counted) -> client
//!           rate_limit                     faults    folder   memory   forward    body
//! ```

mod body;
mod control;
mod counters;
mod faults;
mod folder;
mod forward;
pub mod hosts;
mod hugging_face;
mod listing;
mod memory;
mod memory_server;
mod mount;
mod options;
mod rate_limit;
mod server;
mod sleep;
mod stamp;

pub use faults::{Fault, FaultRule};
pub use memory_server::MemoryServer;
pub use options::{Limits, Mode, Options, UsageError};
pub use server::Testbed;
