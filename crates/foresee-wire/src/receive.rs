// SPDX-License-Identifier: Apache-2.0
//! The receiving half of a connection: a header, then its payload into the caller's memory.
//!
//! Another thread sends. Header and payload are two calls, because the caller decides in between: where a payload
//! goes, whether it is wanted, and whether it stays unread for now. An unread connection slows the peer down.
//!
//! This half allocates no memory for data, and reads at most one header ahead. A deadline that passes loses
//! nothing: bytes read so far are retained, and the same call continues.

use std::io::{ErrorKind, IoSliceMut};
use std::net::SocketAddr;
use std::sync::Arc;

use crate::control::Message;
use crate::error::{FrameFault, WireError};
use crate::frame::{HEADER_BYTES, Header};
use crate::link::Link;
use crate::transport::{Transport, Wait};

/// Step in which an unwanted payload is read.
const SINK: usize = 16 << 10;

/// Receives frames. Used by one thread at a time.
#[derive(Debug)]
pub struct FrameReceiver {
    transport: Arc<dyn Transport>,
    /// The bytes of the next header that were received.
    ahead: [u8; HEADER_BYTES],
    have: usize,
    /// The frame whose payload is being read, and the bytes read so far.
    open: Option<(Header, usize)>,
    /// The bytes of a message that were received; empty between messages.
    body: Vec<u8>,
}

impl FrameReceiver {
    pub(crate) fn new(transport: Arc<dyn Transport>) -> Self {
        Self { transport, ahead: [0; HEADER_BYTES], have: 0, open: None, body: Vec::new() }
    }

    /// A handle of the connection as a whole.
    pub fn link(&self) -> Link {
        Link::new(Arc::clone(&self.transport))
    }

    /// Return the next frame's header, or that of a frame whose payload is unread; `None` if the peer ended the
    /// connection after a complete frame.
    ///
    /// # Errors
    /// [`WireError::Malformed`]: the connection is unusable, because the next frame cannot be found.
    /// [`WireError::Late`]: call again. [`WireError::Closed`]: this side has ended it. [`WireError::Cut`].
    pub fn header(&mut self, wait: Wait) -> Result<Option<Header>, WireError> {
        if let Some((header, _)) = self.open {
            return Ok(Some(header));
        }
        while self.have < HEADER_BYTES {
            let rest = &mut self.ahead[self.have..];
            match self.transport.receive(&mut [IoSliceMut::new(rest)], wait, true) {
                Ok(0) if self.have == 0 && !self.transport.tcp().is_closed() => return Ok(None),
                Ok(0) => return Err(self.ended("header", HEADER_BYTES - self.have)),
                Ok(count) => self.have += count,
                Err(why) => return Err(self.fault(why, "send a frame")),
            }
        }
        let header =
            Header::decode(&self.ahead).map_err(|fault| WireError::Malformed { peer: self.peer(), fault })?;
        self.have = 0;
        self.open = Some((header, 0));
        Ok(Some(header))
    }

    /// Read the current frame's payload into `into`, which has the length in its header, and verify its checksum
    /// if there is one.
    ///
    /// # Errors
    /// As [`FrameReceiver::header`]; after a late one, call again with the same bytes. [`WireError::Refused`] if
    /// `into` has another length, or there is no current frame; nothing is read then.
    pub fn payload(&mut self, into: &mut [u8], wait: Wait) -> Result<(), WireError> {
        let (header, mut done) = self.opened(into.len())?;
        while done < into.len() {
            let count = self.fill(&mut into[done..], true, wait)?;
            done += count;
            self.open = Some((header, done));
        }
        self.open = None;
        header.verify(into).map_err(|fault| WireError::Malformed { peer: self.peer(), fault })
    }

    /// Read and discard the current frame's payload, without verifying its checksum.
    pub fn discard(&mut self, wait: Wait) -> Result<(), WireError> {
        let Some((header, mut done)) = self.open else { return Ok(()) };
        let mut sink = [0; SINK];
        while done < header.length as usize {
            let left = header.length as usize - done;
            done += self.fill(&mut sink[..left.min(SINK)], left <= SINK, wait)?;
            self.open = Some((header, done));
        }
        self.open = None;
        Ok(())
    }

    /// Read the current frame's payload as a message.
    ///
    /// Memory grows with the bytes received, up to the bound of its kind.
    ///
    /// # Errors
    /// As [`FrameReceiver::payload`]; [`WireError::Malformed`] if it is not a message.
    pub fn message(&mut self, wait: Wait) -> Result<Message, WireError> {
        let peer = self.peer();
        let malformed = |fault| WireError::Malformed { peer, fault };
        if let Some((Header { kind, .. }, _)) = self.open
            && kind.is_data()
        {
            return Err(malformed(FrameFault::Unexpected { kind, expected: "a control message" }));
        }
        let length = self.open.map_or(0, |(header, _)| header.length as usize);
        let mut body = std::mem::take(&mut self.body);
        let outcome = self.grow(&mut body, length, wait);
        self.body = body;
        let header = outcome?;
        let message = Message::decode(&header, &self.body).map_err(malformed);
        self.body = Vec::new();
        message
    }

    /// Read the next message with its header; `None` if the peer ended the connection after a complete one.
    ///
    /// # Errors
    /// As [`FrameReceiver::header`] and [`FrameReceiver::message`]; data frames are malformed here.
    pub fn next_message(&mut self, wait: Wait) -> Result<Option<Message>, WireError> {
        match self.header(wait)? {
            Some(_) => self.message(wait).map(Some),
            None => Ok(None),
        }
    }

    /// Read to the end of a message in steps: an announced length does not justify an allocation.
    fn grow(&mut self, body: &mut Vec<u8>, length: usize, wait: Wait) -> Result<Header, WireError> {
        let (header, mut done) = self.opened(length)?;
        while done < length {
            body.resize(length.min(done + SINK), 0);
            let last = body.len() == length;
            done += self.fill(&mut body[done..], last, wait)?;
            self.open = Some((header, done));
        }
        self.open = None;
        Ok(header)
    }

    /// The current frame, if its payload is `given` bytes long.
    fn opened(&self, given: usize) -> Result<(Header, usize), WireError> {
        let peer = self.peer();
        let Some((header, done)) = self.open else {
            let fault = FrameFault::Unexpected { kind: crate::Kind::Push, expected: "a call of `header`" };
            return Err(WireError::Refused { peer, fault });
        };
        if header.length as usize != given {
            let fault = FrameFault::Length { kind: header.kind, length: header.length as usize, given };
            return Err(WireError::Refused { peer, fault });
        }
        Ok((header, done))
    }

    /// Read into `rest` and, if it is the `last` part of its payload, into the next header too: in a busy stream
    /// a frame costs one system call.
    fn fill(&mut self, rest: &mut [u8], last: bool, wait: Wait) -> Result<usize, WireError> {
        let wanted = rest.len();
        let ahead = &mut self.ahead[..if last { HEADER_BYTES } else { 0 }];
        let mut both = [IoSliceMut::new(rest), IoSliceMut::new(ahead)];
        let got = match self.transport.receive(&mut both, Wait::Never, false) {
            Err(why) if why.kind() == ErrorKind::WouldBlock && wait != Wait::Never => {
                // Wait only for the payload: the next header may come much later.
                self.transport.receive(&mut both[..1], wait, true)
            }
            got => got,
        };
        match got {
            Ok(0) => Err(self.ended("payload", wanted)),
            Ok(count) => {
                self.have = count.saturating_sub(wanted);
                Ok(count.min(wanted))
            }
            Err(why) => Err(self.fault(why, "send the rest of a payload")),
        }
    }

    /// Memory of a message that is being read.
    #[cfg(test)]
    pub(crate) fn retained(&self) -> usize {
        self.body.capacity()
    }

    fn peer(&self) -> SocketAddr {
        self.transport.tcp().peer()
    }

    fn ended(&self, part: &'static str, missing: usize) -> WireError {
        let peer = self.peer();
        if self.transport.tcp().is_closed() {
            return WireError::Closed { peer };
        }
        WireError::Cut { peer, part, missing }
    }

    fn fault(&self, why: std::io::Error, what: &'static str) -> WireError {
        let peer = self.peer();
        match why.kind() {
            _ if self.transport.tcp().is_closed() => WireError::Closed { peer },
            ErrorKind::WouldBlock | ErrorKind::TimedOut => WireError::Late { peer, what },
            _ => WireError::Io { peer, doing: "receiving from", why },
        }
    }
}
