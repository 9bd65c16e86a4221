// SPDX-License-Identifier: Apache-2.0
//! What a data set consists of: layouts, byte ranges, tags, labels; bytes are arguments.
