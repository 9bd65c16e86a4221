// SPDX-License-Identifier: Apache-2.0
//! Which sample each rank needs at every step, for ever.
