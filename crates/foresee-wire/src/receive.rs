// SPDX-License-Identifier: Apache-2.0
//! The receiving half of a connection: a header, then its payload into the caller's memory.
//!
//! Apart from sending, which another thread does. In two calls, because between them the caller decides where a
//! payload goes, whether it is wanted, and whether to leave it unread for now: the connection itself then holds the
//! peer back.
//!
//! Refuses to take memory for data, and to read more than one header ahead. A deadline that passes loses nothing:
//! what was read is kept, and the same call goes on.

use std::io::{ErrorKind, IoSliceMut};
use std::net::SocketAddr;
use std::sync::Arc;

use crate::control::Message;
use crate::error::{FrameFault, WireError};
use crate::frame::{HEADER_BYTES, Header};
use crate::link::Link;
use crate::transport::{Transport, Wait};

/// Bytes in which an unwanted payload is read.
const SINK: usize = 16 << 10;

/// Receives frames. One thread's at a time.
#[derive(Debug)]
pub struct FrameReceiver {
    transport: Arc<dyn Transport>,
    /// The next header, as far as it came.
    ahead: [u8; HEADER_BYTES],
    have: usize,
    /// The frame whose payload is being read, and how far.
    open: Option<(Header, usize)>,
    /// Payload of a message, as far as it came; empty between messages.
    body: Vec<u8>,
}

impl FrameReceiver {
    pub(crate) fn new(transport: Arc<dyn Transport>) -> Self {
        Self { transport, ahead: [0; HEADER_BYTES], have: 0, open: None, body: Vec::new() }
    }

    /// The connection as a whole.
    pub fn link(&self) -> Link {
        Link::new(Arc::clone(&self.transport))
    }

    /// The next frame's header, or the one of a frame whose payload is still unread; `None` if the peer ended the
    /// connection after a whole frame.
    ///
    /// # Errors
    /// [`WireError::Malformed`]: the connection is of no more use, for the next frame cannot be found.
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

    /// Reads the open frame's payload into `into`, which is as long as its header says, and checks its checksum if it
    /// has one.
    ///
    /// # Errors
    /// As [`FrameReceiver::header`]; after a late one, call again with the same bytes. [`WireError::Refused`] if
    /// `into` has another length, or no frame is open; nothing is read then.
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

    /// Reads the open frame's payload and forgets it. Its checksum is not looked at.
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

    /// Reads the open frame's payload as a message.
    ///
    /// Takes memory for it as it comes, at most what its kind may have.
    ///
    /// # Errors
    /// As [`FrameReceiver::payload`]; [`WireError::Malformed`] if it is none.
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

    /// The next message, header and all; `None` if the peer ended the connection after a whole one.
    ///
    /// # Errors
    /// As [`FrameReceiver::header`] and [`FrameReceiver::message`]; data frames are malformed here.
    pub fn next_message(&mut self, wait: Wait) -> Result<Option<Message>, WireError> {
        match self.header(wait)? {
            Some(_) => self.message(wait).map(Some),
            None => Ok(None),
        }
    }

    /// Reads to the end of a message, in steps: an announced length is no reason to take memory.
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

    /// The open frame, if its payload is `given` bytes long.
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

    /// Reads into `rest`, and, if it is the `last` of its payload, into the next header too: in a full stream a frame
    /// costs one call to the system.
    fn fill(&mut self, rest: &mut [u8], last: bool, wait: Wait) -> Result<usize, WireError> {
        let wanted = rest.len();
        let ahead = &mut self.ahead[..if last { HEADER_BYTES } else { 0 }];
        let mut both = [IoSliceMut::new(rest), IoSliceMut::new(ahead)];
        let got = match self.transport.receive(&mut both, Wait::Never, false) {
            Err(why) if why.kind() == ErrorKind::WouldBlock && wait != Wait::Never => {
                // Only for the payload: the next header may be long in coming.
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

    /// Bytes of memory for a message under way.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
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
