// SPDX-License-Identifier: Apache-2.0
//! Descriptors that a forked child gives up.
//!
//! A child that inherits a socket would hide the end of its parent from the other side, so a `pthread_atfork` handler
//! closes all registered descriptors in the child. A fork between the creation and the registration of a descriptor
//! leaves it open there; the parent's pidfd then still reports its end.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use crate::error::NodeError;

/// Descriptors of one process: three for each of a thousand consumers, and those of the host itself.
const DESCRIPTORS_MAX: usize = 4096;
const FREE: RawFd = -1;

/// Descriptors to close. The handler may only use async-signal-safe functions, hence no list with a lock.
static TABLE: [AtomicI32; DESCRIPTORS_MAX] = [const { AtomicI32::new(FREE) }; DESCRIPTORS_MAX];
/// Forks that lie between the program's start and this process.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process that created a resource. Another process has another identity, also if it is a forked child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Creator(u32);

impl Creator {
    /// This process, whose later children are registered as such.
    ///
    /// # Errors
    /// The system has not enough memory for the handler.
    pub(crate) fn this_process() -> Result<Self, NodeError> {
        static HANDLER: OnceLock<i32> = OnceLock::new();
        // SAFETY: the handler is a function of this library and async-signal-safe.
        let code = *HANDLER.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(close_in_child)) });
        if code != 0 {
            let why = io::Error::from_raw_os_error(code);
            return Err(NodeError::Io { doing: "registering the handler of forked children", why });
        }
        Ok(Self(FORKS.load(Ordering::Relaxed)))
    }

    /// Whether this process is still the creator.
    pub(crate) fn is_current(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

extern "C" fn close_in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    for place in &TABLE {
        let fd = place.swap(FREE, Ordering::Relaxed);
        if fd != FREE {
            // SAFETY: the descriptor was open in the parent, and its owner here no longer uses or closes it.
            unsafe { libc::close(fd) };
        }
    }
}

/// A descriptor that is closed in forked children, where its owner has no access to it.
#[derive(Debug)]
pub(crate) struct Descriptor {
    fd: ManuallyDrop<OwnedFd>,
    place: usize,
    creator: Creator,
}

impl Descriptor {
    /// Register `fd`.
    ///
    /// # Errors
    /// The table is full; `fd` is closed then.
    pub(crate) fn new(fd: OwnedFd) -> Result<Self, NodeError> {
        let creator = Creator::this_process()?;
        let raw = fd.as_raw_fd();
        let is_stored = |place: &AtomicI32| {
            place.load(Ordering::Relaxed) == FREE
                && place.compare_exchange(FREE, raw, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let place =
            TABLE.iter().position(is_stored).ok_or(NodeError::TooManyDescriptors { max: DESCRIPTORS_MAX })?;
        Ok(Self { fd: ManuallyDrop::new(fd), place, creator })
    }

    /// The descriptor.
    ///
    /// # Errors
    /// [`NodeError::Forked`]: this process is a child that was forked later.
    pub(crate) fn get(&self) -> Result<BorrowedFd<'_>, NodeError> {
        if self.creator.is_current() { Ok(self.fd.as_fd()) } else { Err(NodeError::Forked) }
    }

    /// The descriptor for a caller who waits for it; in a forked child it has been closed.
    pub(crate) fn pollable(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if self.creator.is_current() {
            TABLE[self.place].store(FREE, Ordering::Relaxed);
            // SAFETY: dropped once, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}
