// SPDX-License-Identifier: Apache-2.0
//! A connected TCP socket: send, receive, end.
//!
//! `socket` creates and tunes it. The socket blocks; `MSG_DONTWAIT` is set per call. The reader of a non-blocking
//! socket would have to poll, and `poll(2)` reports every acknowledgment event of the sender as an error
//! repeatedly, so the reader would spin. Writing to a closed connection is an error and not `SIGPIPE`.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};

use crate::transport::{Transport, Wait};

/// The system's own bound on the slices of one call is 1024.
const SLICES_MAX: usize = 1024;

#[derive(Debug)]
pub(crate) struct Tcp {
    fd: OwnedFd,
    peer: SocketAddr,
    local: SocketAddr,
    closed: AtomicBool,
    /// The socket's timeouts for receiving and sending, in nanoseconds; 0 is none. They are cached, so that a
    /// reader without a deadline needs one system call instead of two.
    timeouts: [AtomicU64; 2],
}

impl Tcp {
    /// Wrap a connected, blocking socket.
    pub(crate) fn new(fd: OwnedFd, peer: SocketAddr, local: SocketAddr) -> Self {
        Self {
            fd,
            peer,
            local,
            closed: AtomicBool::new(false),
            timeouts: [AtomicU64::new(0), AtomicU64::new(0)],
        }
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Whether this side closed it.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn shutdown(&self) {
        self.closed.store(true, Ordering::Release);
        // It may have ended already.
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Both);
    }

    /// End the sending direction: the peer reads the end after all sent bytes.
    pub(crate) fn finish(&self) {
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Write);
    }

    /// Read the next byte without consuming it; `None` at the end.
    pub(crate) fn peek(&self, wait: Wait) -> io::Result<Option<u8>> {
        let mut byte = [0];
        let count = self.receive_with(&mut [IoSliceMut::new(&mut byte)], wait, RecvFlags::PEEK)?;
        Ok((count > 0).then_some(byte[0]))
    }

    fn receive_with(&self, slices: &mut [IoSliceMut<'_>], wait: Wait, flags: RecvFlags) -> io::Result<usize> {
        self.repeat(Timeout::Recv, wait, |at_once| {
            let flags = if at_once { (flags - RecvFlags::WAITALL) | RecvFlags::DONTWAIT } else { flags };
            rustix::net::recvmsg(&self.fd, slices, &mut RecvAncillaryBuffer::default(), flags)
                .map(|got| got.bytes)
        })
    }

    /// Repeat `call`, with or without waiting, until it succeeds or the time is up.
    fn repeat(
        &self,
        which: Timeout,
        wait: Wait,
        mut call: impl FnMut(bool) -> Result<usize, Errno>,
    ) -> io::Result<usize> {
        let mut at_once = wait != Wait::Forever;
        loop {
            match call(at_once) {
                Ok(count) => return Ok(count),
                Err(Errno::INTR) => {}
                // The same number on some systems, two numbers on others.
                Err(fault) if fault == Errno::AGAIN || fault == Errno::WOULDBLOCK => {
                    let left = wait.left();
                    if wait == Wait::Never {
                        return Err(io::ErrorKind::WouldBlock.into());
                    }
                    if left == Some(Duration::ZERO) {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    self.set_timeout(which, left)?;
                    at_once = false;
                }
                Err(fault) => return Err(fault.into()),
            }
        }
    }

    fn set_timeout(&self, which: Timeout, time: Option<Duration>) -> io::Result<()> {
        // Zero would mean "none", and the kernel's timeout has a resolution of milliseconds.
        let time = time.map(|time| time.clamp(Duration::from_millis(1), Duration::from_secs(86_400)));
        let nanos = time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let retained = &self.timeouts[usize::from(which == Timeout::Send)];
        if retained.load(Ordering::Relaxed) != nanos {
            set_socket_timeout(&self.fd, which, time)?;
            retained.store(nanos, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl AsFd for Tcp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Transport for Tcp {
    fn send(&self, slices: &[IoSlice<'_>], wait: Wait) -> io::Result<usize> {
        let slices = &slices[..slices.len().min(SLICES_MAX)];
        self.repeat(Timeout::Send, wait, |at_once| {
            let flags = if at_once { SendFlags::DONTWAIT } else { SendFlags::empty() };
            #[cfg(not(target_vendor = "apple"))]
            let flags = flags | SendFlags::NOSIGNAL;
            rustix::net::sendmsg(&self.fd, slices, &mut SendAncillaryBuffer::default(), flags)
        })
    }

    fn flush(&self, _wait: Wait) -> io::Result<()> {
        Ok(())
    }

    fn receive(&self, slices: &mut [IoSliceMut<'_>], wait: Wait, whole: bool) -> io::Result<usize> {
        let flags = if whole { RecvFlags::WAITALL } else { RecvFlags::empty() };
        let count = self.receive_with(slices, wait, flags)?;
        // If this end answers, the system delays the acknowledgment up to 40 ms to send it with an answer, and
        // the sender of a small packet takes this for a busy receiver. The option applies to the pending
        // acknowledgment only; a failure costs that time.
        #[cfg(target_os = "linux")]
        let _ = rustix::net::sockopt::set_tcp_quickack(&self.fd, true);
        Ok(count)
    }

    fn held(&self) -> usize {
        0
    }

    fn binding(&self) -> Option<[u8; 32]> {
        None
    }

    fn tcp(&self) -> &Tcp {
        self
    }
}
