// SPDX-License-Identifier: Apache-2.0
//! Errors of the formulas of this crate.

use thiserror::Error;

/// Invalid input of a formula; nothing is clamped silently.
#[derive(Clone, Debug, PartialEq, Error)]
#[expect(missing_docs, reason = "the messages show the fields by their names")]
#[non_exhaustive]
pub enum ModelError {
    /// A rate of 0 would make every time infinite.
    #[error("{field} is 0; omit a rate that was not measured, or measure it again")]
    ZeroRate { field: &'static str },
    /// A value outside its range.
    #[error("{field} is {value}; it must be {rule}")]
    InvalidInput {
        field: &'static str,
        value: f64,
        /// The allowed range.
        rule: &'static str,
    },
    /// A text that is not a valid value.
    #[error("{field} is {text:?}; it must be {rule}")]
    InvalidText {
        field: &'static str,
        text: String,
        /// The allowed form.
        rule: &'static str,
    },
    /// A value of one layer outside its range.
    #[error("layer {layer}: {field} is {value}; it must be {rule}")]
    InvalidLayer {
        /// Index of the layer, from 0 in order of first use.
        layer: usize,
        field: &'static str,
        value: f64,
        /// The allowed range.
        rule: &'static str,
    },
    /// A table without a row.
    #[error("{field} has no entries; give at least one measured point")]
    Empty { field: &'static str },
}
