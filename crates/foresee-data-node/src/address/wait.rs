// SPDX-License-Identifier: Apache-2.0
//! Waits for a host that is about to start, as the ranks of a job do for the host among them.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::inotify;
use rustix::io::Errno;

use super::{Access, NodeAddress, SocketDirectory};
use crate::error::NodeError;

/// Bytes for events of a directory, whose names have at most 255 bytes.
const EVENT_BYTES: usize = 4096;

impl NodeAddress {
    /// Wait up to `timeout` until there is a file at the path of the socket. The directory is created if it is missing.
    ///
    /// # Errors
    /// [`NodeError::NoHost`] after the timeout; [`NodeError::Directory`], [`NodeError::Io`].
    pub fn wait_for_host(&self, timeout: Duration) -> Result<(), NodeError> {
        let uid = rustix::process::geteuid().as_raw();
        let access = if self.is_explicit() { Access::Protected } else { Access::Private };
        SocketDirectory::create(self.directory(), uid, access)?;
        let failed = NodeError::io::<Errno>("waiting for the host of the node's cache");
        let watch =
            inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).map_err(&failed)?;
        let changes = inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO;
        inotify::add_watch(&watch, self.directory(), changes).map_err(&failed)?;
        let deadline = Instant::now().checked_add(timeout);
        while self.path().symlink_metadata().is_err() {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(NodeError::NoHost { path: self.path().to_owned() });
            }
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match rustix::event::poll(&mut [PollFd::new(&watch, PollFlags::IN)], left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(why) => return Err(failed(why)),
            }
            let mut space = [MaybeUninit::uninit(); EVENT_BYTES];
            // The events only say that something has changed.
            let _ = rustix::io::read(&watch, &mut space);
        }
        Ok(())
    }
}
