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
use crate::bell::Waker;
use crate::error::WireError;
use crate::link::Link;
use crate::socket::timespec;
use crate::sys;
use crate::transport::Wait;

/// Tokens above the caller's, which have 32 bits.
const BELL: u64 = 1 << 32;
const TIMER: u64 = BELL + 1;
/// Events of one call to the system; those beyond come with the next.
const EVENTS: usize = 64;

/// Waits for many connections at once. One thread's at a time.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
    /// `epoll_wait` counts in milliseconds, which is four packets at 1 Gbit/s; its successor in nanoseconds is missing
    /// on older kernels.
    timer: OwnedFd,
    armed: bool,
    waker: Waker,
    links: BTreeMap<u32, Watched>,
}

#[derive(Debug)]
struct Watched {
    link: Link,
    writable: bool,
}

impl Poller {
    /// A poller that watches nothing.
    pub fn new() -> Result<Self, WireError> {
        let fault = |why: Errno| WireError::System { doing: "making a poller", why: why.into() };
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(fault)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
            .map_err(fault)?;
        let waker = Waker::new().map_err(|why| WireError::System { doing: "making a poller", why })?;
        epoll::add(&epoll, &waker, EventData::new_u64(BELL), EventFlags::IN).map_err(fault)?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN).map_err(fault)?;
        Ok(Self { epoll, timer, armed: false, waker, links: BTreeMap::new() })
    }

    /// What ends a wait from another thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Watches a connection. `acks`: its acknowledgments end a wait. False if they were asked for and the system has
    /// none: then a timer has to, see [`crate::drain_time`]. The kernel drops them while the receive buffer is full,
    /// so the timer stands behind them in any case.
    ///
    /// # Panics
    /// If `token` is taken: a defect of the caller.
    pub fn add(&mut self, token: u32, link: &Link, acks: bool) -> Result<bool, WireError> {
        assert!(!self.links.contains_key(&token), "token {token} is taken");
        epoll::add(&self.epoll, link.tcp(), EventData::new_u64(token.into()), EventFlags::empty())
            .map_err(fault)?;
        self.links.insert(token, Watched { link: link.clone(), writable: false });
        if !acks {
            return Ok(true);
        }
        // Asked for last: where nobody watches, nobody takes them.
        link.want_acks(true).inspect_err(|_| self.remove(token))
    }

    /// Watches a connection no longer; one that is not watched stays so.
    pub fn remove(&mut self, token: u32) {
        let Some(Watched { link, .. }) = self.links.remove(&token) else { return };
        // Of a broken connection either may fail, and then there is nothing to stop.
        let _ = epoll::delete(&self.epoll, link.tcp());
        let _ = link.want_acks(false);
        let _ = sys::drain_acks(link.tcp().as_fd());
    }

    /// Whether room in the connection's buffer ends a wait. Ask for it while it is blocked, and only then: a connection
    /// with room ends every wait at once.
    pub fn want_writable(&mut self, token: u32, wanted: bool) -> Result<(), WireError> {
        let Some(watched) = self.links.get_mut(&token) else { return Ok(()) };
        if watched.writable != wanted {
            watched.writable = wanted;
            let flags = if wanted { EventFlags::OUT } else { EventFlags::empty() };
            epoll::modify(&self.epoll, watched.link.tcp(), EventData::new_u64(token.into()), flags)
                .map_err(fault)?;
        }
        Ok(())
    }

    /// Waits until something happens, and puts it into `events`, which it empties first; whether the bell was rung.
    /// Nothing happened if it returns false and no event: then the time is up.
    pub fn wait(&mut self, wait: Wait, events: &mut Vec<Event>) -> Result<bool, WireError> {
        events.clear();
        loop {
            let at_once = self.arm(wait)?;
            let mut found = [const { std::mem::MaybeUninit::uninit() }; EVENTS];
            let time = at_once.then(|| timespec(Duration::ZERO));
            let (found, _) = match epoll::wait(&self.epoll, &mut found[..], time.as_ref()) {
                Ok(found) => found,
                Err(Errno::INTR) => continue,
                Err(why) => return Err(fault(why)),
            };
            let (mut woken, mut over) = (false, at_once);
            for event in found.iter() {
                let (flags, data) = (event.flags, event.data.u64());
                match u32::try_from(data) {
                    Ok(token) => self.look(token, flags, events),
                    Err(_) if data == BELL => woken |= self.waker.hear(),
                    Err(_) => {
                        self.disarm()?;
                        over = true;
                    }
                }
            }
            if woken || over || !events.is_empty() {
                return Ok(woken);
            }
        }
    }

    fn look(&mut self, token: u32, flags: EventFlags, events: &mut Vec<Event>) {
        let Some(Watched { link, .. }) = self.links.get(&token) else { return };
        let mut event =
            Event { token, writable: flags.contains(EventFlags::OUT), acked: false, broken: false };
        if flags.contains(EventFlags::ERR) {
            event.acked = sys::drain_acks(link.tcp().as_fd()).is_ok_and(|entries| entries > 0);
            event.broken = !event.acked;
        }
        event.broken |= flags.contains(EventFlags::HUP);
        if event.broken {
            // It would be reported for ever.
            self.remove(token);
        }
        if event.writable || event.acked || event.broken {
            events.push(event);
        }
    }

    /// Sets the timer; true if the time is up already.
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
        // Acknowledgments that nobody takes would fill the receive buffers of connections that live on.
        while let Some((&token, _)) = self.links.first_key_value() {
            self.remove(token);
        }
    }
}

fn fault(why: Errno) -> WireError {
    WireError::System { doing: "waiting for connections", why: why.into() }
}
