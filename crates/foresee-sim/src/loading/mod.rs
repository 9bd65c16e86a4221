// SPDX-License-Identifier: Apache-2.0
//! What loading costs under any policy: ranks, tiers, an origin, a network, in virtual time.
//!
//! A [`Run`] plays one [`Policy`] on one [`Scenario`], step by step, and reports where time and bytes went. The
//! published loaders are played by the rules of their papers, the runtime's planner by the very crate that runs.
//! Physical by default: a source that is shared is shared. With `Compat::Paper` the published formulas hold, by which
//! every staging thread draws a rank's whole share of the origin.
//!
//! Small files are bound by opens per second and not by bytes: an origin takes `Cluster::origin_requests` per second of
//! all ranks together, which `foresee calibrate` measures. Without that figure only bytes and latency bound them.
//!
//! Source: nopfs-clairvoyant-prefetching, sections 4 to 6, with what our text of it lost from Boehringer's thesis (ETH
//! 2020); window policies: deli-cloud-storage, section IV. Refuses to read files and clocks, to draw without a seed,
//! and to start threads: runs share nothing, so a caller plays several at once.
//!
//! | file | what it holds |
//! |---|---|
//! | `scenario`, `data` | what a simulation is given, and what may be wrong with it |
//! | `policy` | the policies by name |
//! | `run` | a run, stepped by its caller; the clock and the barrier |
//! | `report` | what it came to |
//! | `log` | the same as entries of the ledger, where they are wanted |
//! | `order`, `draw` | who reads what when |
//! | `rates` | seconds per byte, by source: where the two readings of the model differ |
//! | `lane` | a rank's threads, its room, its busy sources |
//! | `consume` | when a batch is taken, and how long for it is waited |
//! | `prefetch`, `contend`, `series` | ranks that prefetch, one after the other or in the order of time; ranks that do one thing after the other |
//! | `origin` | an origin in common, at which requests take turns |
//! | `policies/` | who holds what, a family to a file |
//! | `count` | how often a rank reads samples: counted in an order, or drawn |
//!
//! Times are seconds in 64 bits of floating point, not whole nanoseconds: a small sample takes picoseconds out of memory,
//! and rounded up millions of times that would be what a run takes. Equal scenarios give equal reports.
//!
//! Memory: 4 bytes per sample for an epoch's list, 4 where sizes differ; then what a policy says of itself.

mod consume;
mod contend;
mod count;
mod data;
mod draw;
mod lane;
mod log;
mod order;
mod origin;
mod policies;
mod policy;
mod prefetch;
mod rates;
mod report;
mod run;
mod scenario;
mod series;

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
