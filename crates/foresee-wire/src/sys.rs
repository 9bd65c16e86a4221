// SPDX-License-Identifier: Apache-2.0
//! Questions to the system that only some systems answer.
//!
//! The one place with code per system and with `unsafe`; everything above it works with an answer of "does not tell".

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

pub(crate) use system::{congestions, queued, receive_buffer_max, send_buffer_max, tcp_info};
