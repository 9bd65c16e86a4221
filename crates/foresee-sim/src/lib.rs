// SPDX-License-Identifier: Apache-2.0
//! The deciders in virtual time, beside the baselines' policies.
