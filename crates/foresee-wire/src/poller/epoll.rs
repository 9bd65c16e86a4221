// SPDX-License-Identifier: Apache-2.0
//! The poller over epoll, with acknowledgments and a timer of nanoseconds.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::Event;
use crate::error::WireError;
use crate::link::Link;
use crate::socket::timespec;
use crate::sys;
use crate::transport::Wait;
use crate::waker::Waker;

/// Tokens above the caller's range of 32 bits.
const WAKER: u64 = 1 << 32;
const TIMER: u64 = WAKER + 1;
/// Events per system call; further ones come with the next call.
const EVENTS: usize = 64;

/// Waits for many connections at once. Used by one thread at a time.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
    /// `epoll_wait` counts in milliseconds, each of which is four packets at 1 Gbit/s. `epoll_pwait2` counts in
    /// nanoseconds, but older kernels lack it.
    timer: OwnedFd,
    armed: bool,
    waker: Waker,
    links: BTreeMap<u32, RegisteredLink>,
}

#[derive(Debug)]
struct RegisteredLink {
    link: Link,
    writable: bool,
}

impl Poller {
    /// Create a poller without connections.
    pub fn new() -> Result<Self, WireError> {
        let fault = |why: Errno| WireError::System { doing: "making a poller", why: why.into() };
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(fault)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
            .map_err(fault)?;
        let waker = Waker::new().map_err(|why| WireError::System { doing: "making a poller", why })?;
        epoll::add(&epoll, &waker, EventData::new_u64(WAKER), EventFlags::IN).map_err(fault)?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN).map_err(fault)?;
        Ok(Self { epoll, timer, armed: false, waker, links: BTreeMap::new() })
    }

    /// A handle that ends a wait from another thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Add a connection. `acks`: its acknowledgments end a wait. Returns false if they were requested and the
    /// system has none: then a timer has to replace them, see [`crate::drain_time`]. The kernel drops
    /// acknowledgments while the receive buffer is full, so the timer is needed in any case.
    ///
    /// # Panics
    /// If `token` is in use: a defect of the caller.
    pub fn add(&mut self, token: u32, link: &Link, acks: bool) -> Result<bool, WireError> {
        assert!(!self.links.contains_key(&token), "token {token} is taken");
        epoll::add(&self.epoll, link.tcp(), EventData::new_u64(token.into()), EventFlags::empty())
            .map_err(fault)?;
        self.links.insert(token, RegisteredLink { link: link.clone(), writable: false });
        if !acks {
            return Ok(true);
        }
        // Enabled last: no other code empties the queue of a connection that is not watched.
        link.want_acks(true).inspect_err(|_| self.remove(token))
    }

    /// Remove a connection; without effect for an unknown one.
    pub fn remove(&mut self, token: u32) {
        let Some(RegisteredLink { link, .. }) = self.links.remove(&token) else { return };
        // On a broken connection either call may fail, and nothing remains to be stopped.
        let _ = epoll::delete(&self.epoll, link.tcp());
        let _ = link.want_acks(false);
        let _ = sys::drain_acks(link.tcp().as_fd());
    }

    /// Whether space in the connection's buffer ends a wait. Request this only while the connection is blocked: a
    /// connection with space ends every wait at once.
    pub fn want_writable(&mut self, token: u32, wanted: bool) -> Result<(), WireError> {
        let Some(registered) = self.links.get_mut(&token) else { return Ok(()) };
        if registered.writable != wanted {
            registered.writable = wanted;
            let flags = if wanted { EventFlags::OUT } else { EventFlags::empty() };
            epoll::modify(&self.epoll, registered.link.tcp(), EventData::new_u64(token.into()), flags)
                .map_err(fault)?;
        }
        Ok(())
    }

    /// Wait for events and store them in `events`, which is emptied first; return whether there was a wake-up. If
    /// it returns false and no event, the time is up.
    pub fn wait(&mut self, wait: Wait, events: &mut Vec<Event>) -> Result<bool, WireError> {
        events.clear();
        loop {
            let is_due = self.arm(wait)?;
            let mut found = [const { std::mem::MaybeUninit::uninit() }; EVENTS];
            let time = is_due.then(|| timespec(Duration::ZERO));
            let (found, _) = match epoll::wait(&self.epoll, &mut found[..], time.as_ref()) {
                Ok(found) => found,
                Err(Errno::INTR) => continue,
                Err(why) => return Err(fault(why)),
            };
            let (mut woken, mut timed_out) = (false, is_due);
            for event in found.iter() {
                let (flags, data) = (event.flags, event.data.u64());
                match u32::try_from(data) {
                    Ok(token) => self.handle_event(token, flags, events),
                    Err(_) if data == WAKER => woken |= self.waker.clear(),
                    Err(_) => {
                        self.disarm()?;
                        timed_out = true;
                    }
                }
            }
            if woken || timed_out || !events.is_empty() {
                return Ok(woken);
            }
        }
    }

    fn handle_event(&mut self, token: u32, flags: EventFlags, events: &mut Vec<Event>) {
        let Some(RegisteredLink { link, .. }) = self.links.get(&token) else { return };
        let mut event =
            Event { token, writable: flags.contains(EventFlags::OUT), acked: false, broken: false };
        if flags.contains(EventFlags::ERR) {
            event.acked = sys::drain_acks(link.tcp().as_fd()).is_ok_and(|entries| entries > 0);
            event.broken = !event.acked;
        }
        event.broken |= flags.contains(EventFlags::HUP);
        if event.broken {
            // Otherwise it would be reported forever.
            self.remove(token);
        }
        if event.writable || event.acked || event.broken {
            events.push(event);
        }
    }

    /// Set the timer; return true if the time is up already.
    fn arm(&mut self, wait: Wait) -> Result<bool, WireError> {
        match wait.left() {
            Some(Duration::ZERO) => Ok(true),
            Some(left) => {
                self.set_timer(left)?;
                self.armed = true;
                Ok(false)
            }
            None => {
                if self.armed {
                    self.disarm()?;
                }
                Ok(false)
            }
        }
    }

    fn disarm(&mut self) -> Result<(), WireError> {
        self.armed = false;
        self.set_timer(Duration::ZERO)
    }

    fn set_timer(&self, left: Duration) -> Result<(), WireError> {
        let once = Itimerspec { it_interval: timespec(Duration::ZERO), it_value: timespec(left) };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once).map_err(fault)?;
        Ok(())
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        // Acknowledgments that are not read would fill the receive buffers of connections that stay open.
        while let Some((&token, _)) = self.links.first_key_value() {
            self.remove(token);
        }
    }
}

fn fault(why: Errno) -> WireError {
    WireError::System { doing: "waiting for connections", why: why.into() }
}
