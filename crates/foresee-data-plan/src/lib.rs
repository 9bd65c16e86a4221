// SPDX-License-Identifier: Apache-2.0
//! Who holds what, in which tier, fetched by when, dropped when.

#![deny(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "pure: time, files and randomness are arguments, and no result hangs on a hash table's order"
)]

pub mod dispatch;
