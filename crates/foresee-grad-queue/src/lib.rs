// SPDX-License-Identifier: Apache-2.0
//! Gradient exchange without I/O: packets of tensors, their order on the network, and their sums.
//!
//! ```text
//! rank:    tensor -> Collector (may it go?) -> Schedule (which packet next?) -> wire
//! server:  wire -> SlotPair (whose turn?) -> sum -> Schedule (which result next?) -> wire
//! rank:    wire -> Collector (what is received?) -> tensor
//! ```
//!
//! The [`Plan`] cuts tensors into packets and gives every number in a frame its meaning. [`SlotPair`], [`Rounds`]
//! and [`Collector`] share the same messages and the same two rules. Therefore two accumulators per packet suffice,
//! and a lost connection or server changes no bit of a sum.
//!
//! The crate uses no socket, thread or clock: bytes, times and connections are arguments.
//!
//! | file | content |
//! |---|---|
//! | `plan`, `pattern` | tensors, their packets, and the server of each |
//! | `schedule` | the order of packets over an interface |
//! | `link` | the delivery rate of a link, which sets the window of the schedule |
//! | `policy`, `sizing` | rules of the schedule; sizes of packets and windows |
//! | `members` | the live ranks |
//! | `slot_pair`, `slot`, `early_buffer` | which contribution is added, waits, or is discarded |
//! | [`sum`] | the arithmetic of sums |
//! | `rounds` | round progress of all ranks, on a server |
//! | `collect` | round progress of one rank |
//! | `missing` | missing contributions, for diagnostics |

#![deny(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "pure: time, files and randomness are arguments"
)]

mod bits;
mod buffer;
mod collect;
mod early_buffer;
mod error;
mod link;
mod members;
mod missing;
mod name;
mod pattern;
mod plan;
mod policy;
mod rounds;
mod schedule;
mod sizing;
mod slot;
mod slot_pair;
pub mod sum;
mod tensor_set;

pub use buffer::Buffer;
pub use collect::{Arrival, Claim, Collector, CollectorAction, Completion, SumHeader};
pub use early_buffer::EarlyBudget;
pub use error::QueueError;
pub use foresee_units::Dtype;
pub use link::{LinkMeter, LinkProgress};
pub use members::Members;
pub use missing::MissingContributions;
pub use name::{PacketId, Round, Sender, ServerId, TensorId};
pub use pattern::Pattern;
pub use plan::{Difference, Field, Plan, PlanConfig, Shard, TensorSpec, Wire, classes};
pub use policy::{Answer, BYTEPS_PARTITION, Policy, PolicyError};
pub use rounds::{Receipt, RoundAction, Rounds};
pub use schedule::{
    Class, Connection, Flow, Grant, Offer, Order, PacketStream, Rules, Schedule, ScheduleError, Scope,
    Ticket, Unsent, Window,
};
pub use sizing::{
    PACKET_BYTES_MAX, PACKET_BYTES_MIN, PACKET_BYTES_UNIT, PACKET_RATE, PACKET_TIME, WINDOW_BOUND,
    WINDOW_PACKETS, WINDOW_PACKETS_MIN, WINDOW_SLACK, packet_bytes, window_bytes,
};
pub use slot::Sum;
pub use slot_pair::{Admission, DiscardReason, JobView, Outcome, Progress, SlotPair, Verdict};
pub use sum::Op;
pub use tensor_set::TensorSet;
