// SPDX-License-Identifier: Apache-2.0
//! The protocol between ranks and servers, as state machines without threads, locks, sockets and clocks.
//!
//! ```text
//! driver ── handle_connected / message / closed / timeout (now) ──> state machine ── poll_action ──> driver
//! ```
//!
//! A state machine knows connections, plans and sums by tickets only: a [`Peer`] is one pair of connections of a rank,
//! and an [`EndTicket`] is the end of a round that the slots have not handled yet. Payload bytes and their locks stay
//! in `foresee-grad-exchange`, and a test can drive a state machine alone.
//!
//! | file | contents |
//! |---|---|
//! | `message` | messages between ranks and servers, and refusals |
//! | `server` | one job on one server: admission, plan agreement, reconnection, loss, resumption |
//! | `rank` | one rank: its servers, plan agreement, reconnection, resumption, membership |
//! | `proposals` | comparison of proposed plans |
//! | `members` | encoding of memberships |

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
    EndTicket, Installation, JobAction, JobSettings, MissingTicket, Peer, RankHello, Role, ServerJob,
};
