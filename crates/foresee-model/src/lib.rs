// SPDX-License-Identifier: Apache-2.0
//! Closed forms: what a link, a tier, a step should cost.
