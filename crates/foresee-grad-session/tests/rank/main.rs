// SPDX-License-Identifier: Apache-2.0
//! The state machine of one rank: what it sends, offers, dials and reports.

#![expect(clippy::unwrap_used, reason = "all of it is a test")]

mod agreement;
mod driver;
mod losses;
mod random;
mod reconnection;
mod refusals;
mod rounds;
