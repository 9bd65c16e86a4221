// SPDX-License-Identifier: Apache-2.0
//! Long waits: Ctrl-C ends them, and the log reports them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::errors;

/// The interval between two checks of Python's signals.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// The interval between two log lines about a wait.
pub(crate) const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// Run `work` in a thread, since only the thread that Python called handles signals, and call `on_tick` after each tick.
///
/// # Errors
/// An exception of a signal handler or of `on_tick`. Then the flag that `work` has is set; the thread ends by itself,
/// and its result is dropped.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    name: &str,
    work: impl FnOnce(&AtomicBool) -> T + Send + 'static,
    mut on_tick: impl FnMut(Python<'_>) -> PyResult<()> + Send,
) -> PyResult<T> {
    let cancel = Arc::new(AtomicBool::new(false));
    let (sender, receiver) = sync_channel(1);
    let flag = Arc::clone(&cancel);
    // After an exception there is no receiver.
    Builder::new().name(name.to_owned()).spawn(move || drop(sender.send(work(&flag))))?;
    py.detach(move || {
        loop {
            match receiver.recv_timeout(TICK) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Timeout) => Python::attach(|py| {
                    py.check_signals()
                        .and_then(|()| on_tick(py))
                        .inspect_err(|_| cancel.store(true, Ordering::Relaxed))
                })?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(errors::defect(&format!("the thread {name} has panicked")));
                }
            }
        }
    })
}

/// Log of a long wait for gradients.
pub(crate) struct WaitLog {
    start: Instant,
    last: Instant,
}

impl WaitLog {
    pub(crate) fn new() -> Self {
        let start = Instant::now();
        Self { start, last: start }
    }

    /// Time since the start of the wait.
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Log what is awaited, if the interval has passed.
    pub(crate) fn tick(&mut self, py: Python<'_>, awaited: impl FnOnce() -> String + Send) -> PyResult<()> {
        if self.last.elapsed() < LOG_INTERVAL {
            return Ok(());
        }
        self.last = Instant::now();
        let awaited = py.detach(awaited);
        warn(py, format!("{} s without gradients: waiting for {awaited}", self.elapsed().as_secs()))
    }
}

/// Log a warning.
pub(crate) fn warn(py: Python<'_>, text: String) -> PyResult<()> {
    let log = py.import("logging")?.call_method1("getLogger", ("foresee",))?;
    // As an argument, since the text may contain a percent sign.
    log.call_method1("warning", ("%s", text))?;
    Ok(())
}
