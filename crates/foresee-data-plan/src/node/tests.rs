// SPDX-License-Identifier: Apache-2.0
//! Rules of the planner of a node.
