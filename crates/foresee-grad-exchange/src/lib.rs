// SPDX-License-Identifier: Apache-2.0
//! The loops around the queue of gradients: a rank's [`Exchange`] and a [`Server`], in threads.
//!
//! ```text
//! rank    push ──> interface ──> PUSH ──> server: reader ──> slot ──> interface ──> SUM ──> rank: reader ──> landing
//!         Exchange  sender thread          a thread per rank     sender thread             a thread per server
//! ```
//!
//! Threads, clocks and memory are here. `foresee-grad-queue` decides which packet goes next, whose turn it is, what was
//! received and what a rank may do; `foresee-grad-session` has plans, connections and losses, `foresee-wire` the bytes.
//!
//! | file | what it owns |
//! |---|---|
//! | `interface` | one sending thread per network interface, shared by a rank and the server beside it |
//! | `control` | messages and signs of life |
//! | `rank` | calls of a rank, its readers, and what its machine asks for |
//! | `server` | jobs, slots, answers, and what a job's machine asks for |
//! | `machine` | ranks of one machine that exchange as one (Linux) |
//! | `gradient_exchange` | the contract of a rank's exchange, its own or that of its machine |
//! | `timer` | the wait of a thread that reports passed time |
//! | `translate` | frames of the wire from and to messages of the machines |
//! | `timeline` | what happened when, for whoever asks |
//! | `options`, `error` | what has to be told, and what is told back |

mod control;
mod error;
mod gradient_exchange;
mod interface;
#[cfg(target_os = "linux")]
mod machine;
mod options;
mod rank;
mod server;
mod timeline;
mod timer;
mod translate;

pub use error::{ExchangeError, Lost};
pub use gradient_exchange::GradientExchange;
pub use interface::{InterfaceStats, Interfaces};
#[cfg(target_os = "linux")]
pub use machine::{Hub, LocalRank};
#[cfg(target_os = "linux")]
pub use options::MachineOptions;
pub use options::{RankOptions, ServerOptions};
pub use rank::{Exchange, Gradient, RankStats, Received, Waited};
pub use server::{Server, ServerStats};
pub use timeline::{Event, EventKind};
