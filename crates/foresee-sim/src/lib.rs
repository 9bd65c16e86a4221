// SPDX-License-Identifier: Apache-2.0
//! The deciders in virtual time, beside the baselines' policies.
//!
//! [`simulate`] walks the accesses of one rank and counts what a cache policy hits, reads from the origin
//! and evicts: the planner that the engine follows ([`PolicyKind::Planner`], the very crate), and the
//! rules of other loaders and of the textbook. Time does not pass here: a fetch is always early enough.
//!
//! [`loading`] lets time pass: what any loading policy costs on any machine, over all ranks, tiers and epochs.
//!
//! [`simulate_step`] does so for one step of training whose gradients go to a server and back, chosen packet by
//! packet by the scheduler that sends them in earnest, under any of its policies.
//!
//! [`simulate_jobs`] does so for jobs that read the same data: who reads the origin, who finds it in the cache, and
//! what they do to each other.
//!
//! Refuses to read files, and to draw without a seed: orders, sizes and budgets are arguments.
//!
//! | file | what it holds |
//! |---|---|
//! | `hits` | the walk and its report |
//! | `sizes` | data sets by their sizes |
//! | `policies/` | one rule, one file |
//! | `loading/` | loading policies in virtual time |
//! | `network/` | a step of training over a network |
//! | `jobs/` | jobs that share their data |

#![deny(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "pure: time, files and randomness are arguments, and no result hangs on a hash table's order"
)]

mod hits;
mod jobs;
pub mod loading;
mod network;
mod policies;
mod sizes;

pub use hits::{HitReport, simulate};
pub use jobs::{
    Correction, Job, JobRun, JobState, JobsError, JobsReport, SharedData, Span, Storage, simulate_jobs,
};
pub use network::{Layer, LayerTimes, Network, StepTimes, simulate_step};
pub use policies::{HitPolicy, Outcome, PolicyKind};
pub use sizes::SizeTable;
