// SPDX-License-Identifier: Apache-2.0
//! Tests of the origin behind HTTP, and the fake server that they share with the tests of its listing.

pub(crate) mod fake;
mod store;
