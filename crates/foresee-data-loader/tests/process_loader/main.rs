// SPDX-License-Identifier: Apache-2.0
//! The public loader at a real server, and in processes of its own.

mod cache;
mod life;
mod origin;
#[expect(dead_code, reason = "the tests of `loader` use the rest")]
#[path = "../loader/support.rs"]
mod support;
