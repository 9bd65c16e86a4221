// SPDX-License-Identifier: Apache-2.0
//! The ledger: an entry for every wait and every transfer of a run.
//!
//! It contains the [`Entry`], the sums over entries that always exist ([`Totals`]), and the writer of the table
//! ([`LedgerWriter`], Arrow IPC stream). Simulated and real runs use the same three, so that a prediction and a
//! run are comparable. Times and writers are arguments; no clock is read and no file is opened here.

#![deny(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "pure: time, files and randomness are arguments"
)]

mod entry;
mod histogram;
mod node_cache;
mod table;
mod totals;
mod waits;

pub use entry::{Cause, Entry, Op, Subject};
pub use histogram::Histogram;
pub use node_cache::{NodeCache, NodeCacheRole};
pub use table::{LedgerError, LedgerWriter, schema};
pub use totals::{Tally, Totals};
pub use waits::divide_wait;
