// SPDX-License-Identifier: Apache-2.0
//! A cache of samples of unknown sizes with a planner, consumers and readers, in virtual time, with faults: a run
//! follows from one seed.
//!
//! The world executes the planner's answers and decides nothing. Each is compared with contents that follow from the
//! answers alone.

mod cases;
mod setup;
mod world;
