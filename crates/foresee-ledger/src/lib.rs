// SPDX-License-Identifier: Apache-2.0
//! Every wait and every byte is an entry: who, for what, from where, how long.
