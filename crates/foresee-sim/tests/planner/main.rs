// SPDX-License-Identifier: Apache-2.0
//! Tests of the planner with the other policies: golden plans, hit rates, invariants, and guarantees.

mod golden;
mod hit_rates;
mod laws;
mod properties;
mod support;
