// SPDX-License-Identifier: Apache-2.0
//! Whole exchanges among ranks and servers, in random order and under losses: what always holds.
//!
//! `cluster` drives the crate's machines as threads and sockets would, one event at a time, and knows what every
//! result has to be. `rules` breaks the two rules on purpose, with ranks of its own, to show that it would notice.

#![expect(clippy::unwrap_used, reason = "all of it is a test")]

mod cluster;
mod node;
mod rules;
