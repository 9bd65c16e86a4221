// SPDX-License-Identifier: Apache-2.0
//! Several ranks of one machine that exchange as one: their gradients are averaged in shared memory, and the machine's
//! mean alone crosses the network. So traffic does not grow with the ranks of a machine.
//!
//! ```text
//! rank 4 ─ copy ─> its area ┐                                             ┌─> copy ─> rank 4
//! rank 5 ─ copy ─> its area ┼─ Hub: ((g4 + g5) + ...) / n, when a packet  ├─> copy ─> rank 5
//! ...                       ┘  leaves ─> Exchange ─> servers ─> results ──┘
//! ```
//!
//! Whatever the machines agree on, the reference is nested: the mean over machines, in their order, of the mean over
//! each machine's ranks, in theirs. Both divide truly and round once.
//!
//! Rounds keep the two rules of [`SlotPair`](foresee_grad_queue::SlotPair) on both levels: the hub ends a round when all
//! its ranks have, and a rank hears what a round used when the hub does. An area has room for two rounds: a rank pushes
//! a tensor for round r + 2 only when that of r + 1 has landed, and then every machine holds that of r.
//!
//! Flags and bytes are in the shared memory; plans, ends and signs of life go over a control connection to the hub, which
//! listens on the loopback interface and wants the job's secret, as servers do.
//!
//! | file | what it owns |
//! |---|---|
//! | `segment` | the shared memory and its bells |
//! | `hub` | the exchange with the servers, in the process of the machine's first rank |
//! | `admit` | admission of ranks, and what they send |
//! | `seats` | the ranks that are connected |
//! | `local` | a rank's part |
//! | `fault` | how an error is passed on from process to process |

mod admit;
mod fault;
mod hub;
mod local;
mod seats;
mod segment;

pub use hub::Hub;
pub use local::LocalRank;
