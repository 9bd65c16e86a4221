// SPDX-License-Identifier: Apache-2.0
//! Simulated jobs: nodes that follow one placement and exchange samples over links that fail. The planner of each node's
//! cache and its exchange are those of a real run; ranks, links, disks and the origin exist in virtual time only.

#![expect(clippy::unwrap_used, reason = "numbers of small jobs fit")]

mod cases;
mod links;
mod node;
mod setup;
mod world;
