// SPDX-License-Identifier: Apache-2.0
//! The loader as its users see it, over a real server, and in processes that it has to itself.

mod cache;
mod life;
mod origin;
#[expect(dead_code, reason = "the tests of `loader` use the rest")]
#[path = "../loader/support.rs"]
mod support;
