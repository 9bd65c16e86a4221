// SPDX-License-Identifier: Apache-2.0
//! Rows: objects that hold many samples of one size, one behind the other.
//!
//! Apart from the layouts that have them (`npy`, `bin`): where a row lies is arithmetic and is not stored, so
//! an index of a billion rows is as small as the list of its files.
//!
//! Refuses an object that ends inside a row: a remainder is a wrong row size or a file cut short.

use crate::error::IndexError;

/// How one object is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Where its first row begins.
    pub(crate) start: u64,
    /// How many rows it has; 0 is legal.
    pub(crate) rows: u64,
}

/// Cuts an object of `size` bytes that is rows from its first byte to its last; `row_bytes` is not 0.
pub(crate) fn cut_whole(size: u64, row_bytes: u64, uri: impl FnOnce() -> String) -> Result<Cut, IndexError> {
    match size % row_bytes {
        0 => Ok(Cut { start: 0, rows: size / row_bytes }),
        rest => Err(IndexError::Remainder { uri: uri(), size, row_bytes, rest }),
    }
}
