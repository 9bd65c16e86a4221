// SPDX-License-Identifier: Apache-2.0
//! The loader as its users see it, over real files and real sockets: one test program, one file per subject.
//!
//! Every wait has a deadline, and nothing sleeps to be in time: what a test needs to have happened it asks for.

mod cache;
mod life;
mod order;
mod origin;
mod support;
