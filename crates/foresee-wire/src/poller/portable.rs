// SPDX-License-Identifier: Apache-2.0
//! The poller over `poll(2)`, for systems without epoll: no acknowledgments, and a list walked at every wait.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::Event;
use crate::bell::Waker;
use crate::error::WireError;
use crate::link::Link;
use crate::socket::timespec;
use crate::transport::Wait;

/// Waits for many connections at once. One thread's at a time.
#[derive(Debug)]
pub struct Poller {
    waker: Waker,
    links: BTreeMap<u32, (Link, PollFlags)>,
}

impl Poller {
    /// A poller that watches nothing.
    pub fn new() -> Result<Self, WireError> {
        let waker = Waker::new().map_err(|why| WireError::System { doing: "making a poller", why })?;
        Ok(Self { waker, links: BTreeMap::new() })
    }

    /// What ends a wait from another thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Watches a connection. False if `acks` are asked for: there are none.
    ///
    /// # Panics
    /// If `token` is taken: a defect of the caller.
    #[expect(clippy::unnecessary_wraps, reason = "the poller over epoll may fail here")]
    pub fn add(&mut self, token: u32, link: &Link, acks: bool) -> Result<bool, WireError> {
        assert!(!self.links.contains_key(&token), "token {token} is taken");
        self.links.insert(token, (link.clone(), PollFlags::empty()));
        Ok(!acks)
    }

    /// Watches a connection no longer; one that is not watched stays so.
    pub fn remove(&mut self, token: u32) {
        self.links.remove(&token);
    }

    /// Whether room in the connection's buffer ends a wait. Ask for it while it is blocked, and only then: a connection
    /// with room ends every wait at once.
    #[expect(clippy::unnecessary_wraps, reason = "the poller over epoll may fail here")]
    pub fn want_writable(&mut self, token: u32, wanted: bool) -> Result<(), WireError> {
        if let Some((_, flags)) = self.links.get_mut(&token) {
            *flags = if wanted { PollFlags::OUT } else { PollFlags::empty() };
        }
        Ok(())
    }

    /// Waits until something happens, and puts it into `events`, which it empties first; whether the bell was rung.
    /// Nothing happened if it returns false and no event: then the time is up.
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
            let rung = !fds[0].revents().is_empty();
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
            let woken = rung && self.waker.hear();
            if woken || !events.is_empty() || left == Some(Duration::ZERO) {
                return Ok(woken);
            }
        }
    }
}
