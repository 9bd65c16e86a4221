// SPDX-License-Identifier: Apache-2.0
//! Tensors to packets, packets by priority, packets to sums, sums back.
//!
//! ```text
//! rank:    tensor -> Collect (may it go?) -> Schedule (which packet next?) -> wire
//! server:  wire -> SlotPair (whose turn?) -> sum -> Schedule (which result next?) -> wire
//! rank:    wire -> Collect (what landed?) -> tensor
//! ```
//!
//! A tensor is cut into packets by the [`Plan`], which says what every number in a frame means. [`SlotPair`], [`Rounds`]
//! and [`Collect`] speak of the same few messages and keep the same two rules, so that two accumulators per packet are
//! enough and a lost connection or server changes no bit.
//!
//! Refuses to know a socket, a thread or a clock: bytes, times and connections are arguments.
//!
//! | file | what it decides |
//! |---|---|
//! | `plan`, `pattern` | tensors, their packets, and the server of each |
//! | `schedule` | which packet goes next over an interface |
//! | `link` | what the link delivers, which sets the window of the schedule |
//! | `policy`, `sizing` | what the schedule obeys; how large packets and windows are |
//! | `members` | who is alive |
//! | `slot_pair`, `slot`, `park` | whose contribution is added when, waits, or is refused |
//! | [`sum`] | how it is added |
//! | `rounds` | what a server knows of the ranks' rounds |
//! | `collect` | what a rank may push, use and end |
//! | `waits` | who waits for whom |

#![deny(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "pure: time, files and randomness are arguments"
)]

mod buffer;
mod collect;
mod error;
mod link;
mod members;
mod name;
mod park;
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
mod waits;

pub use buffer::Buffer;
pub use collect::{Arrival, Claim, Collect, CollectAction, Landed, SumHeader, Unwanted};
pub use error::QueueError;
pub use foresee_units::Dtype;
pub use link::{LinkMeter, LinkProgress};
pub use members::Members;
pub use name::{PacketId, Round, Sender, ServerId, TensorId};
pub use park::ParkBudget;
pub use pattern::Pattern;
pub use plan::{Difference, Field, Plan, PlanConfig, Shard, TensorSpec, Wire, classes};
pub use policy::{Answer, BYTEPS_PARTITION, Policy, PolicyError};
pub use rounds::{Heard, RoundAction, Rounds};
pub use schedule::{
    Class, Connection, Flow, Grant, Lane, Offer, Order, Rules, Schedule, ScheduleError, Scope, Ticket,
    Unsent, Window,
};
pub use sizing::{
    PACKET_BYTES_MAX, PACKET_BYTES_MIN, PACKET_BYTES_UNIT, PACKET_RATE, PACKET_TIME, WINDOW_BOUND,
    WINDOW_PACKETS, WINDOW_PACKETS_MIN, WINDOW_SLACK, packet_bytes, window_bytes,
};
pub use slot::Sum;
pub use slot_pair::{Admission, Discarded, JobView, Outcome, Progress, SlotPair, Verdict};
pub use sum::Op;
pub use tensor_set::TensorSet;
pub use waits::{Owed, Waits};
