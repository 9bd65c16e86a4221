// SPDX-License-Identifier: Apache-2.0
//! One end of a socket that carries whole messages, with descriptors where they are expected.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use crate::error::NodeError;
use crate::fork::Descriptor;

/// Descriptors that one message carries at most: slab and control memory.
const DESCRIPTORS_MAX: usize = 2;

/// A connected or listening socket. Calls wait only as long as they are told to.
#[derive(Debug)]
pub(super) struct MessageSocket(Descriptor);

/// A received message.
#[derive(Debug)]
pub(super) struct Datagram {
    pub(super) bytes: Vec<u8>,
    /// Descriptors that came with it; closed unless taken.
    pub(super) descriptors: Vec<OwnedFd>,
}

impl MessageSocket {
    /// Create an unconnected socket.
    pub(super) fn create() -> Result<Self, NodeError> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let fd = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)
            .map_err(NodeError::io("creating a socket"))?;
        Self::new(fd)
    }

    pub(super) fn new(fd: OwnedFd) -> Result<Self, NodeError> {
        Descriptor::new(fd).map(Self)
    }

    /// # Errors
    /// [`NodeError::Forked`].
    pub(super) fn fd(&self) -> Result<BorrowedFd<'_>, NodeError> {
        self.0.get()
    }

    /// Send one message with descriptors, and wait up to `timeout` while the other end does not read.
    ///
    /// # Errors
    /// [`NodeError::Late`], [`NodeError::Ended`], [`NodeError::Forked`], [`NodeError::Io`].
    pub(super) fn send(
        &self,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> Result<(), NodeError> {
        let deadline = Deadline::after(timeout);
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() {
                let has_space = control.push(SendAncillaryMessage::ScmRights(descriptors));
                assert!(has_space, "at most {DESCRIPTORS_MAX} descriptors are sent");
            }
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::sendmsg(self.fd()?, &[IoSlice::new(bytes)], &mut control, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, deadline, "read a message")?,
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => return Err(NodeError::Ended),
                Err(why) => return Err(NodeError::io("sending a message")(why)),
            }
        }
    }

    /// Receive one message of at most `max` bytes, and wait up to `timeout` for it.
    ///
    /// Without `takes_descriptors`, a message with descriptors is invalid, and the kernel discards them.
    ///
    /// # Errors
    /// [`NodeError::Late`] with `what`; [`NodeError::Ended`]; [`NodeError::Malformed`] if it is longer, or carries more
    /// descriptors; [`NodeError::Forked`]; [`NodeError::Io`].
    pub(super) fn receive(
        &self,
        max: usize,
        takes_descriptors: bool,
        timeout: Duration,
        what: &'static str,
    ) -> Result<Datagram, NodeError> {
        let deadline = Deadline::after(timeout);
        let mut bytes = vec![0; max];
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let len = if takes_descriptors { space.len() } else { 0 };
            let mut control = RecvAncillaryBuffer::new(&mut space[..len]);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let slices = &mut [IoSliceMut::new(&mut bytes)];
            match rustix::net::recvmsg(self.fd()?, slices, &mut control, flags) {
                Ok(found) => {
                    let descriptors = control
                        .drain()
                        .filter_map(|message| match message {
                            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                            _ => None,
                        })
                        .flatten()
                        .collect();
                    if found.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
                        let why =
                            format!("it has more than {max} bytes, or descriptors that are not expected");
                        return Err(NodeError::Malformed { why });
                    }
                    if found.bytes == 0 {
                        return Err(NodeError::Ended);
                    }
                    bytes.truncate(found.bytes);
                    return Ok(Datagram { bytes, descriptors });
                }
                // The kernel reports once that the other end left a message unread; its own messages come afterwards.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::IN, deadline, what)?,
                Err(Errno::NOTCONN) => return Err(NodeError::Ended),
                Err(why) => return Err(NodeError::io("receiving a message")(why)),
            }
        }
    }

    fn wait(&self, flags: PollFlags, deadline: Deadline, what: &'static str) -> Result<(), NodeError> {
        let fd = self.fd()?;
        match rustix::event::poll(&mut [PollFd::new(&fd, flags)], deadline.left().as_ref()) {
            Ok(0) => Err(NodeError::Late { what }),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(why) => Err(NodeError::io("waiting for the other end")(why)),
        }
    }
}

impl AsFd for MessageSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.pollable()
    }
}

/// The end of a wait; none for durations that the clock cannot represent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    pub(super) fn after(timeout: Duration) -> Self {
        Self(Instant::now().checked_add(timeout))
    }

    /// The earlier of two.
    pub(super) fn or_earlier(self, other: Option<Instant>) -> Self {
        Self(self.0.into_iter().chain(other).min())
    }

    pub(super) fn is_over(self) -> bool {
        self.0.is_some_and(|at| at <= Instant::now())
    }

    /// The time that is left; `None` is unlimited.
    pub(super) fn left(self) -> Option<Timespec> {
        let left = self.0?.saturating_duration_since(Instant::now());
        // At most the largest value of the clock, from which it was computed.
        Some(Timespec::try_from(left).expect("a duration of the clock"))
    }
}
