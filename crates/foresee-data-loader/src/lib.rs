// SPDX-License-Identifier: Apache-2.0
//! Follow the plan: fetch, stage, hand over a batch.
