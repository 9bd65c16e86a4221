// SPDX-License-Identifier: Apache-2.0
//! The placement of samples over nodes: rules that hold for every run, the traffic of whole runs, and golden plans.

mod golden;
mod job;
mod job_plan;
mod rules;
mod traffic;
