// SPDX-License-Identifier: Apache-2.0
//! Loading under any policy in virtual time: ranks, tiers, an origin and a network.
//!
//! A [`Run`] simulates one [`Policy`] on one [`Scenario`], step by step, and reports times and bytes. Published
//! loaders follow the rules of their papers; the runtime's planners, of a rank and of a node's cache, are the
//! runtime's crate itself. By default a shared source is shared. With `Compat::Paper` the published formulas hold, in
//! which every staging thread has a rank's whole share of the origin.
//!
//! Small files are bound by opens per second and not by bytes. The origin accepts `Cluster::origin_requests` per
//! second of all ranks together, which `foresee calibrate` measures. Without this value only bytes and latency
//! bound them.
//!
//! Source: nopfs-clairvoyant-prefetching, sections 4 to 6, completed from Boehringer's thesis (ETH 2020); window
//! policies: deli-cloud-storage, section IV. A run uses no files, clocks, threads or unseeded randomness. Runs
//! share nothing, so a caller may run several in parallel.
//!
//! | file | content |
//! |---|---|
//! | `scenario`, `data` | inputs of a simulation, and their validation |
//! | `policy` | the policies by name |
//! | `run` | a run, stepped by its caller; the clock and the barrier |
//! | `report` | its results |
//! | `log` | optional entries of the ledger |
//! | `order`, `draw` | which rank reads which sample at which step |
//! | `rates` | seconds per byte, by source: where the two readings of the model differ |
//! | `pipeline` | a rank's threads, buffer and sources |
//! | `consume` | consumption of batches and its waits |
//! | `prefetch`, `contention` | ranks that prefetch, one after the other or in order of time |
//! | `serial` | ranks without overlap |
//! | `origin` | a common origin, at which requests take turns |
//! | `policies/` | which rank holds which sample, one family per file |
//! | `count` | histograms of reads per sample: counted in an order, or drawn |
//!
//! Times are seconds in 64-bit floating point instead of whole nanoseconds: a small sample takes picoseconds out
//! of memory, and rounding millions of such times up would dominate a run. Equal scenarios give equal reports.
//!
//! Memory: 4 bytes per sample for an epoch's list, 4 more if sizes differ, and what each policy documents.

mod consume;
mod contention;
mod count;
mod data;
mod draw;
mod log;
mod order;
mod origin;
mod pipeline;
mod policies;
mod policy;
mod prefetch;
mod rates;
mod report;
mod run;
mod scenario;
mod serial;

pub use count::{ReadCount, count_reads, draw_reads};
pub use data::DataSet;
pub use log::Sink;
pub use order::AccessOrder;
pub use policy::{Policy, UnknownPolicy};
pub use report::{EpochReport, Place, Reads, Report};
pub use run::{Progress, Run, RunError, Unsupported};
pub use scenario::{
    Bucket, Cluster, Fault, HandOver, Options, OriginReaders, Scenario, ScenarioError, Tier, Training,
    WriteCost,
};
