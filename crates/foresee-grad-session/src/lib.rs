// SPDX-License-Identifier: Apache-2.0
//! The protocol between ranks and servers, as machines that own no thread, lock, socket or clock.
//!
//! ```text
//! driver ── handle_connected / message / closed / timeout (now) ──> machine ── poll_action ──> driver
//! ```
//!
//! A machine knows connections, plans and sums by tickets alone: a [`Peer`] is one pair of connections of a rank, an
//! [`EndTicket`] stands for the end of a round until the slots know of it. So `foresee-grad-exchange` keeps its byte
//! path and the locks of it, and a test drives a machine alone.
//!
//! | file | contents |
//! |---|---|
//! | `message` | messages between ranks and servers, and refusals |
//! | `server` | one job on one server: admission, plan agreement, reconnection, loss, resumption |
//! | `rank` | one rank: its servers, plan agreement, reconnection, resumption, membership |
//! | `proposals` | comparison of proposed plans |
//! | `members` | memberships as bytes |

#![deny(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "pure: time, connections and payloads are arguments"
)]

pub mod members;
mod message;
pub mod proposals;
mod rank;
mod server;

pub use message::{
    Change, Changed, Closed, Known, LostRank, NewMembers, OPEN_ROUNDS_MAX, RankMessage, Refusal, RefusalCode,
    Resume, Resumed, ServerMessage, Used,
};
pub use rank::{DialFault, RankAction, RankFailure, RankSession, RankSettings, SumAdmission};
pub use server::{
    EndTicket, Installation, JobAction, JobSettings, OwedTicket, Peer, RankHello, Role, ServerJob,
};
