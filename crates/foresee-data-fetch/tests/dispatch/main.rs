// SPDX-License-Identifier: Apache-2.0
//! The fetch queue in virtual time: its throughput at modelled sources, and the effect of faults.

mod bench;
mod capacity;
mod consumers;
mod faults;
mod first_batch;
mod order;
mod properties;
mod ranks;
mod throttling;
