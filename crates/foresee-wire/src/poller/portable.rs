// SPDX-License-Identifier: Apache-2.0
//! The poller over `poll(2)`, for systems without epoll: no acknowledgments, and a linear scan at every wait.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::Event;
use crate::error::WireError;
use crate::link::Link;
use crate::socket::timespec;
use crate::transport::Wait;
use crate::waker::Waker;

/// Waits for many connections at once. Used by one thread at a time.
#[derive(Debug)]
pub struct Poller {
    waker: Waker,
    links: BTreeMap<u32, (Link, PollFlags)>,
}

impl Poller {
    /// Create a poller without connections.
    pub fn new() -> Result<Self, WireError> {
        let waker = Waker::new().map_err(|why| WireError::System { doing: "making a poller", why })?;
        Ok(Self { waker, links: BTreeMap::new() })
    }

    /// A handle that ends a wait from another thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Add a connection. Returns false if `acks` are requested, because there are none.
    ///
    /// # Panics
    /// If `token` is in use: a defect of the caller.
    #[expect(clippy::unnecessary_wraps, reason = "the poller over epoll may fail here")]
    pub fn add(&mut self, token: u32, link: &Link, acks: bool) -> Result<bool, WireError> {
        assert!(!self.links.contains_key(&token), "token {token} is taken");
        self.links.insert(token, (link.clone(), PollFlags::empty()));
        Ok(!acks)
    }

    /// Remove a connection; without effect for an unknown one.
    pub fn remove(&mut self, token: u32) {
        self.links.remove(&token);
    }

    /// Whether space in the connection's buffer ends a wait. Request this only while the connection is blocked: a
    /// connection with space ends every wait at once.
    #[expect(clippy::unnecessary_wraps, reason = "the poller over epoll may fail here")]
    pub fn want_writable(&mut self, token: u32, wanted: bool) -> Result<(), WireError> {
        if let Some((_, flags)) = self.links.get_mut(&token) {
            *flags = if wanted { PollFlags::OUT } else { PollFlags::empty() };
        }
        Ok(())
    }

    /// Wait for events and store them in `events`, which is emptied first; return whether there was a wake-up. If
    /// it returns false and no event, the time is up.
    pub fn wait(&mut self, wait: Wait, events: &mut Vec<Event>) -> Result<bool, WireError> {
        events.clear();
        loop {
            let left = wait.left();
            let mut fds = vec![PollFd::new(&self.waker, PollFlags::IN)];
            fds.extend(self.links.values().map(|(link, flags)| PollFd::new(link.tcp(), *flags)));
            match poll(&mut fds, left.map(timespec).as_ref()) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(why) => {
                    return Err(WireError::System { doing: "waiting for connections", why: why.into() });
                }
            }
            let signalled = !fds[0].revents().is_empty();
            for (fd, &token) in fds[1..].iter().zip(self.links.keys()) {
                let found = fd.revents();
                let broken = found.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL);
                let writable = found.contains(PollFlags::OUT);
                if broken || writable {
                    events.push(Event { token, writable, acked: false, broken });
                }
            }
            for event in events.iter().filter(|event| event.broken) {
                self.links.remove(&event.token);
            }
            let woken = signalled && self.waker.clear();
            if woken || !events.is_empty() || left == Some(Duration::ZERO) {
                return Ok(woken);
            }
        }
    }
}
