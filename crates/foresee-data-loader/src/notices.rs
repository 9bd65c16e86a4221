// SPDX-License-Identifier: Apache-2.0
//! What a loader has to tell its user once, beside errors and statistics.

use std::sync::{Mutex, PoisonError};

/// Texts that the user has not seen.
#[derive(Debug, Default)]
pub(crate) struct Notices(Mutex<Vec<String>>);

impl Notices {
    pub(crate) fn add(&self, text: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }

    /// Take all texts, in order.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
