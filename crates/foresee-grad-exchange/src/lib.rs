// SPDX-License-Identifier: Apache-2.0
//! Drivers of gradient exchange: a rank's [`GradientExchange`] and a [`Server`], in threads.
//!
//! ```text
//! rank    push ──> interface ──> PUSH ──> server: reader ──> slot ──> interface ──> SUM ──> rank: reader ──> buffer
//!                  sender thread          a thread per rank           sender thread         a thread per server
//! ```
//!
//! This crate owns threads, clocks and memory. `foresee-grad-queue` schedules and counts packets, `foresee-grad-session`
//! decides about plans, connections and losses, and `foresee-wire` moves bytes.
//!
//! | file | contents |
//! |---|---|
//! | `gradient_exchange` | the contract of one rank's exchange |
//! | `rank` | [`ServerExchange`]: a rank that exchanges with servers |
//! | `node` | ranks of one node that exchange as one (Linux) |
//! | `server` | jobs, slots and answers |
//! | `interface` | one sending thread per network interface, shared by a rank and its colocated server |
//! | `control` | messages and heartbeats |
//! | `translate` | wire frames from and to session messages |

mod control;
mod error;
mod gradient_exchange;
mod interface;
#[cfg(target_os = "linux")]
mod node;
mod options;
mod rank;
mod server;
mod sync;
mod timeline;
mod translate;

pub use error::{ExchangeError, LostPeer};
pub use gradient_exchange::{GradientExchange, RankStats, WaitOutcome};
pub use interface::{InterfaceStats, Interfaces};
#[cfg(target_os = "linux")]
pub use node::{NodeLeader, NodeMember};
#[cfg(target_os = "linux")]
pub use options::NodeOptions;
pub use options::{RankOptions, ServerOptions};
pub use rank::{Gradient, ReceiveBuffer, ServerExchange};
pub use server::{Server, ServerStats};
pub use timeline::{Event, EventKind};
