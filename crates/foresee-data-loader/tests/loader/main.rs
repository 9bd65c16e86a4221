// SPDX-License-Identifier: Apache-2.0
//! The loader as its users see it, over files below a temporary folder: one test program, one file per subject.

mod cache;
#[path = "../../../foresee-sim/tests/support/hits/mod.rs"]
#[allow(dead_code, reason = "only the planner is compared with the loader")]
mod hits;
mod life;
mod order;
mod support;
