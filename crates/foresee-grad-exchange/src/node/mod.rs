// SPDX-License-Identifier: Apache-2.0
//! Ranks of one node that exchange as one: their gradients are averaged in shared memory, and only the node's mean
//! crosses the network. So traffic does not grow with the ranks of a node.
//!
//! ```text
//! rank 4 ─ copy ─> its area ┐                                                 ┌─> copy ─> rank 4
//! rank 5 ─ copy ─> its area ┼─ NodeLeader: ((g4 + g5) + ...) / n, per packet  ├─> copy ─> rank 5
//! ...                       ┘  ──> ServerExchange ──> servers ──> results ────┘
//! ```
//!
//! The reference is nested: the mean over nodes, in their order, of the mean over each node's ranks, in theirs. Both are
//! true divisions and round once.
//!
//! Rounds keep the two rules of [`SlotPair`](foresee_grad_queue::SlotPair) on both levels: the leader ends a round when
//! all its ranks have, and a rank learns what a round used when the leader does. An area holds two rounds: a rank pushes
//! a tensor for round r + 2 only after it received that of r + 1, and then every node has received that of r.
//!
//! Flags and bytes are in shared memory (`segment`). Plans, goodbyes and heartbeats go over a control connection to the
//! leader, which listens on the loopback interface and requires the job's secret, as servers do.

mod fault;
mod leader;
mod member;
mod members;
mod segment;

pub use leader::NodeLeader;
pub use member::NodeMember;
