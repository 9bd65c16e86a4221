// SPDX-License-Identifier: Apache-2.0
//! Every wait and every byte is an entry: who, for what, from where, how long.
//!
//! Owns the [`Entry`], the sums over entries that are always kept ([`Totals`]) and the table they are written
//! to ([`LedgerWriter`], Arrow IPC stream). Simulated and real runs use the same three, so that a prediction
//! and a run lie side by side. Refuses to look at a clock or to open a file: times and writers are arguments.

#![deny(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "pure: time, files and randomness are arguments"
)]

mod entry;
mod histogram;
mod table;
mod totals;
mod waits;

pub use entry::{Cause, Entry, Op, Subject};
pub use histogram::Histogram;
pub use table::{LedgerError, LedgerWriter, schema};
pub use totals::{Tally, Totals};
pub use waits::divide;
