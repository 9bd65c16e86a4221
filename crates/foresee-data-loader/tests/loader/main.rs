// SPDX-License-Identifier: Apache-2.0
//! The public loader over files in a temporary folder.

mod cache;
#[path = "../../../foresee-sim/tests/planner/support/hits/mod.rs"]
#[allow(dead_code, reason = "only the planner is compared with the loader")]
mod hits;
mod life;
mod order;
mod read_ahead;
mod support;
