// SPDX-License-Identifier: Apache-2.0
//! What belongs to the process that made it.
//!
//! A forked child has the memory of its parent's threads and sockets, and not the threads. Were the memory dropped there,
//! threads would be waited for that do not exist, and sockets shut down that the parent uses.

use pyo3::prelude::*;

use crate::errors::of_fork;

/// Of this process; in a child it is nobody's, and stays until the child ends.
pub(crate) struct Own<T> {
    value: Option<T>,
    process: u32,
}

impl<T> Own<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Some(value), process: std::process::id() }
    }

    /// The value; an error in a child.
    pub(crate) fn get(&self) -> PyResult<&T> {
        self.here().ok_or_else(of_fork)
    }

    /// The value, if it is this process's.
    pub(crate) fn here(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| self.process == std::process::id())
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            std::mem::forget(self.value.take());
        }
    }
}
