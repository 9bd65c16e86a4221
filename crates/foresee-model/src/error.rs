// SPDX-License-Identifier: Apache-2.0
//! Why a formula refuses its inputs.

use thiserror::Error;

/// Inputs that no formula of this crate accepts; nothing is clamped silently.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A rate of 0 would make every time infinite.
    #[error("{field} is 0; leave out what nobody measured, or measure it again")]
    ZeroRate {
        /// Which rate.
        field: &'static str,
    },
    /// A figure outside its range.
    #[error("{field} is {value}; it must be {rule}")]
    InvalidInput {
        /// Which figure.
        field: &'static str,
        /// As given.
        value: f64,
        /// What it has to be.
        rule: &'static str,
    },
    /// A text that is no figure.
    #[error("{field} is {text:?}; it must be {rule}")]
    InvalidText {
        /// Which figure.
        field: &'static str,
        /// As given.
        text: String,
        /// What it has to be.
        rule: &'static str,
    },
    /// A figure of one layer outside its range.
    #[error("layer {layer}: {field} is {value}; it must be {rule}")]
    InvalidLayer {
        /// Which layer, counted from 0 in order of first use.
        layer: usize,
        /// Which figure.
        field: &'static str,
        /// As given.
        value: f64,
        /// What it has to be.
        rule: &'static str,
    },
    /// A table without a row.
    #[error("{field} has no entries; give at least one measured point")]
    Empty {
        /// Which table.
        field: &'static str,
    },
}
