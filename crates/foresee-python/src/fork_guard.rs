// SPDX-License-Identifier: Apache-2.0
//! Values that only the process that made them may use or drop.
//!
//! A forked child has a copy of its parent's memory, but not its threads. Dropping the copy would join threads that do
//! not exist, and shut down sockets that the parent uses.

use pyo3::prelude::*;

use crate::errors::of_fork;

/// A value of this process. In a child it is inaccessible and never dropped.
pub(crate) struct ForkGuard<T> {
    value: Option<T>,
    process: u32,
}

impl<T> ForkGuard<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Some(value), process: std::process::id() }
    }

    /// The value; an error in a child.
    pub(crate) fn get(&self) -> PyResult<&T> {
        self.get_in_owner().ok_or_else(of_fork)
    }

    /// The value; `None` in a child.
    pub(crate) fn get_in_owner(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| self.process == std::process::id())
    }
}

impl<T> Drop for ForkGuard<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            std::mem::forget(self.value.take());
        }
    }
}
