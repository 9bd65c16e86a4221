// SPDX-License-Identifier: Apache-2.0
//! The deciders in virtual time, next to the policies of other systems.
//!
//! [`loading`] computes the time of any loading policy on any cluster, over all ranks, tiers and epochs.
//! [`simulate_step`] computes one training step whose gradients go to a server and back, packet by packet, by the
//! scheduler of the runtime under any of its policies.
//! [`simulate_jobs`] computes jobs that read the same data: which job reads the origin, which finds samples in the
//! cache, and how they delay each other.
//!
//! Orders, sizes, budgets and seeds are arguments; nothing is read from files.
//!
//! | file | contents |
//! |---|---|
//! | `sizes` | data sets by their sizes |
//! | `loading/` | loading policies in virtual time |
//! | `network/` | a step of training over a network |
//! | `jobs/` | jobs that share their data |
//! | `named` | enums whose values have names |

#![deny(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "pure: time, files and randomness are arguments, and no result hangs on a hash table's order"
)]

mod jobs;
pub mod loading;
mod network;
mod sizes;

pub use jobs::{
    Correction, Job, JobRun, JobState, JobsError, JobsReport, SharedData, Span, Storage, simulate_jobs,
};
pub use network::{Layer, LayerTimes, Network, StepTimes, simulate_step};
pub use sizes::SizeTable;
