// SPDX-License-Identifier: Apache-2.0
//! Who holds what, in which tier, fetched by when, dropped when.
