// SPDX-License-Identifier: Apache-2.0
//! A node with a planner, consumers, a disk and an origin, in virtual time, with faults: a run follows from one seed.
//!
//! The node executes the planner's actions and decides nothing. Every action and the state after every event are
//! compared with contents that follow from the actions alone.

mod cases;
mod checks;
mod consumer;
mod replay;
mod setup;
mod world;
