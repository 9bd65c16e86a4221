// SPDX-License-Identifier: Apache-2.0
//! How samples are read that a node does not have: the fetch queue of a slow source, and the exchange between the nodes of a
//! job ([`peers`]).
//!
//! A plan determines which samples are wanted at which time. [`Dispatch`] determines how to read them from a
//! source with unknown capacity, whose answers may be late, missing or throttled. It is pure: it moves no bytes
//! and reads no clock.
//!
//! | file | contents |
//! |---|---|
//! | `request` | the grammar: requests, actions, ends |
//! | `dispatch` | the queue: which request starts next, when one is retried, hedged or failed |
//! | `config` | settings and statistics |
//! | `limit`, `round`, `min_latency` | the search for the concurrency limit |
//! | `start_rate`, `answer_rate` | the rate of starts at a source that has throttled |
//! | `coalesce` | which neighbours are read with a request |
//! | `retry` | pauses between attempts |
//! | `latency`, `rate_meter` | measured latencies and delivery rate |
//! | `consumer_rate` | when the consumer wants a batch |
//! | [`peers`] | samples between the nodes of a job |
//! | `queue`, `state` | waiting requests, and the state of each request, span and attempt |

#![deny(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "pure: time, files and randomness are arguments, and no result hangs on a hash table's order"
)]

mod answer_rate;
mod coalesce;
mod config;
mod consumer_rate;
mod dispatch;
mod float;
mod latency;
mod limit;
mod min_latency;
pub mod peers;
mod queue;
mod rate_meter;
mod request;
mod retry;
mod round;
mod start_rate;
mod state;

pub use config::{
    CoalesceConfig, DispatchConfig, DispatchStats, LatencyRow, LimitConfig, Repeats, RetryConfig,
};
pub use consumer_rate::ConsumerRate;
pub use dispatch::Dispatch;
pub use request::{Action, AttemptId, Class, End, Part, Request};
