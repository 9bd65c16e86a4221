// SPDX-License-Identifier: Apache-2.0
//! The fetch queue in virtual time: what it gets out of modelled sources, and what faults do to it.

mod bench;
mod capacity;
mod faults;
mod order;
mod properties;
mod ranks;
