// SPDX-License-Identifier: Apache-2.0
//! Indexes as files: hostile bytes, golden files, torchvision's order, and errors of the builder.

mod damage;
mod golden;
mod imagefolder;
mod refusals;
