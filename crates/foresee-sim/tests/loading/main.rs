// SPDX-License-Identifier: Apache-2.0
//! Loading policies in virtual time: hand-made vectors, laws, published scenarios, windows, and what is refused.

#![expect(clippy::unwrap_used, reason = "a scenario that cannot be made fails its test")]

mod golden;
mod laws;
mod ledger;
mod policies;
mod refused;
mod room;
mod scenarios;
mod setups;
mod vectors;
mod windows;
