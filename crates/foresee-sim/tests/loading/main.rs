// SPDX-License-Identifier: Apache-2.0
//! Tests of loading policies in virtual time: manual vectors, invariants, published scenarios, windows, and
//! errors.

#![expect(clippy::unwrap_used, reason = "a scenario that cannot be made fails its test")]

mod golden;
mod laws;
mod ledger;
mod policies;
mod refused;
mod scenarios;
mod setups;
mod staging_buffer;
mod vectors;
mod windows;
