// SPDX-License-Identifier: Apache-2.0
//! Who holds what, in which tier, fetched by when, dropped when.
//!
//! [`Planner`] walks this rank's announced accesses and says of each where the sample comes from, whether
//! a tier keeps it, and which copies leave for it. It is a pure function of the order, the sizes, the
//! budgets and the facts so far: no clock, no file, no thread, no hash table, so two planners with equal
//! inputs make one plan, which [`Planner::plan_hash`] shows.
//!
//! Refuses to move a byte, and to guess: what is held is what was planned, minus the holes that the
//! engine reports.
//!
//! | file | what it decides |
//! |---|---|
//! | `stack` | which tiers share the samples out, which hold them on top of another |
//! | `planner` | the face of one of either: facts in, accesses out |
//! | `walk` | one access: source, keeping, bypass |
//! | `policy`, `sampling` | the rules that may make room; which samples a trial of them follows |
//! | `choice` | next-use or pin, by simulating both |
//! | `next_use` | the announced window and its links |
//! | `victims` | in which order copies leave a tier |
//! | `farthest` | the farthest next use, in a few word operations |
//! | [`hint`] | what the tables will be asked for |
//! | `room` | what a sample costs in a tier |

#![deny(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "pure: time, files and randomness are arguments, and no result hangs on a hash table's order"
)]

mod choice;
mod error;
mod farthest;
pub mod hint;
mod next_use;
mod planner;
mod policy;
mod room;
mod sampling;
mod stack;
mod victims;
mod walk;

pub use error::PlanError;
pub use next_use::NextUse;
pub use planner::{Access, PlannedSource, Planner, PlannerConfig};
pub use policy::{Policy, PolicyChoice};
pub use room::{SampleSizes, TierIndex, TierRoom};
pub use stack::{PlannerStack, SlowestTier, StackAccess, TierSet};
