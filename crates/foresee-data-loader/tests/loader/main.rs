// SPDX-License-Identifier: Apache-2.0
//! The loader as its users see it, over files below a temporary folder: one test program, one file per subject.

mod cache;
mod life;
mod order;
mod support;
