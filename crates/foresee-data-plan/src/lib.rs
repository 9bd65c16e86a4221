// SPDX-License-Identifier: Apache-2.0
//! The plan of a rank's tiers: which sample each tier holds, when it is fetched and when it is evicted.
//!
//! [`Planner`] processes this rank's announced accesses. For each it returns the source of the sample, the tier
//! that caches it, and the copies evicted for it. It is a pure function of the order, the sizes, the budgets and
//! the reports so far: no clock, file, thread or hash table. Two planners with equal inputs make one plan, which
//! [`Planner::plan_hash`] shows.
//!
//! [`NodePlanner`] plans the cache of a node, for several consumers whose accesses are merged by predicted time.
//! [`SampleCachePlanner`] plans a cache of samples whose sizes are unknown before they are read.
//! [`PlacementPlanner`] plans which node of a job holds which sample, and [`JobPlan`] follows that plan as one of the nodes.
//!
//! The planner moves no bytes. The copies held are those of the plan, minus the lost ones that the engine
//! reports.
//!
//! | file | content |
//! |---|---|
//! | `hierarchy` | tiers that share the samples, and tiers that cache on top of another |
//! | `planner` | the public interface: reports in, accesses out |
//! | `access_planner` | one access: source, caching, bypass |
//! | `access_planner/dry_run` | next-use or pin, by a dry run of both |
//! | `policy`, `sampling` | rules of eviction; the samples of a dry run |
//! | `next_use` | the announced window and its links |
//! | `victims` | the order in which copies leave a tier |
//! | `farthest` | the farthest next use, in a few word operations |
//! | [`hint`] | prefetch hints for the tables |
//! | `capacity` | capacities, and the cost of a sample in a tier |
//! | `read_group` | small samples that one large read of the origin includes |
//! | `node` | the plan of a node's cache, which several consumers share |
//! | `placement` | which node of a job holds which sample |
//! | `plan_hash` | the hash of a plan's decisions |
//! | `sample_cache` | the plan of a cache whose samples have unknown sizes |

#![deny(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "pure: time, files and randomness are arguments, and no result hangs on a hash table's order"
)]

mod access_planner;
mod capacity;
mod error;
mod farthest;
mod hierarchy;
pub mod hint;
mod next_use;
mod node;
mod placement;
mod plan_hash;
mod planner;
mod policy;
mod read_group;
mod sample_cache;
mod sampling;
mod victims;

pub use capacity::{SampleSizes, TierCapacity, TierIndex};
pub use error::PlanError;
pub use hierarchy::{HierarchyAccess, HierarchyPlanner, SlowestTier, TierSet};
pub use next_use::NextUse;
pub use node::{ConsumerId, EntryId, NodeAction, NodePlanError, NodePlanner, NodePlannerConfig, NodeTier};
pub use placement::{
    JobPlan, JobPlanAction, JobPlanConfig, JobShape, NextSource, PlacedSource, Placement, PlacementConfig,
    PlacementPlanner, WantedEpoch,
};
pub use planner::{Access, PlannedSource, Planner, PlannerConfig};
pub use policy::{Policy, PolicyChoice};
pub use read_group::{GROUPED_SIZE_MAX, ObjectRange, READ_BLOCK, read_together};
pub use sample_cache::{
    FetchGrouping, NeighbourGroups, ReaderId, SampleCacheConfig, SampleCachePlanner, SampleLookup,
};
