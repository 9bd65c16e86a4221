// SPDX-License-Identifier: Apache-2.0
//! The state machine of a job, without sockets, threads and clocks.

mod agreement;
mod driver;
mod losses;
mod random;
mod reconnection;
