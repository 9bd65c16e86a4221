// SPDX-License-Identifier: Apache-2.0
//! The cache of a node, as a consumer uses it.

#[cfg_attr(not(test), expect(dead_code, reason = "the driver does not use the cache of a node yet"))]
mod client;
