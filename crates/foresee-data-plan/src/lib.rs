// SPDX-License-Identifier: Apache-2.0
//! The plan of a rank's tiers: which sample each tier holds, when it is fetched and when it is evicted.
//!
//! [`Planner`] processes this rank's announced accesses. For each it returns the source of the sample, the tier
//! that caches it, and the copies evicted for it. It is a pure function of the order, the sizes, the budgets and
//! the reports so far: no clock, file, thread or hash table. Two planners with equal inputs make one plan, which
//! [`Planner::plan_hash`] shows.
//!
//! The planner moves no bytes. The copies held are those of the plan, minus the lost ones that the engine
//! reports.
//!
//! | file | content |
//! |---|---|
//! | `stack` | tiers that share the samples, and tiers that cache on top of another |
//! | `planner` | the public interface: reports in, accesses out |
//! | `walk` | one access: source, caching, bypass |
//! | `policy`, `sampling` | rules of eviction; the samples of a trial |
//! | `choice` | next-use or pin, by a trial of both |
//! | `next_use` | the announced window and its links |
//! | `victims` | the order in which copies leave a tier |
//! | `farthest` | the farthest next use, in a few word operations |
//! | [`hint`] | prefetch hints for the tables |
//! | `room` | capacities, and the cost of a sample in a tier |

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
