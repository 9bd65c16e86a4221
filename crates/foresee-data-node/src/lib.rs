// SPDX-License-Identifier: Apache-2.0
//! What the host of a node's cache and its consumers share: memory, rings and sockets. Linux only.
#![cfg(target_os = "linux")]

pub mod message;
pub mod ring;
