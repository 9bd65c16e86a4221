// SPDX-License-Identifier: Apache-2.0
//! System calls that only some systems support.
//!
//! Only this module has code per system and `unsafe`; its callers handle a missing answer.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
use linux as system;
#[cfg(target_os = "linux")]
pub(crate) use linux::{drain_acks, want_acks};

#[cfg(not(target_os = "linux"))]
mod other;
#[cfg(not(target_os = "linux"))]
use other as system;

pub(crate) use system::{congestions, queued, send_buffer_max, tcp_info};
