// SPDX-License-Identifier: Apache-2.0
//! The machine of a job, driven alone: no socket, thread or clock.

mod agreement;
mod driver;
mod losses;
mod random;
mod reconnection;
