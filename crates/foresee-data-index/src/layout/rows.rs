// SPDX-License-Identifier: Apache-2.0
//! Rows: objects with many samples of one size, one after the other.
//!
//! It is separate from the layouts with rows (`npy`, `bin`). The position of a row is computed and not stored, so
//! an index of a billion rows is as small as the list of its files. An object that ends inside a row is an error:
//! the row size is wrong, or the file is truncated.

use crate::error::IndexError;

/// The rows of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowLayout {
    /// Start of its first row.
    pub(crate) start: u64,
    /// The number of rows; 0 is valid.
    pub(crate) rows: u64,
}

/// The rows of an object of `size` bytes that consists of rows only; `row_bytes` must not be 0.
pub(crate) fn whole_rows(
    size: u64,
    row_bytes: u64,
    uri: impl FnOnce() -> String,
) -> Result<RowLayout, IndexError> {
    match size % row_bytes {
        0 => Ok(RowLayout { start: 0, rows: size / row_bytes }),
        rest => Err(IndexError::Remainder { uri: uri(), size, row_bytes, rest }),
    }
}
