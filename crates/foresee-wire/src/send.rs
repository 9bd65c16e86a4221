// SPDX-License-Identifier: Apache-2.0
//! The sending half of a connection: header and payload in one call to the system, whole or in parts.
//!
//! Apart from receiving, which another thread does. A packet that the socket takes only half of is a state of this
//! half: the connection belongs to it until the rest has gone, and the payload stays the caller's in between.
//!
//! Refuses to queue a frame, to copy a payload (TLS does, to encrypt it) and to choose what goes next.

use std::io::{self, ErrorKind, IoSlice};
use std::sync::Arc;

use crate::control::Message;
use crate::error::{FrameFault, WireError};
use crate::frame::{HEADER_BYTES, Header};
use crate::link::Link;
use crate::transport::{Transport, Wait};

/// Frames that one call to the system takes at most.
pub const BATCH_MAX: usize = 32;

/// How far a call got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Sending {
    /// Everything was given to the system.
    Done,
    /// A frame is half written. Once the connection is writable, [`FrameSender::resume`]; nothing else may go first.
    Half,
    /// The system takes nothing now, and no frame was begun: once the connection is writable, another may go first.
    Blocked,
}

/// What [`FrameSender::send_frames`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Sent {
    /// Frames from the front that were begun. If `state` is half, the payload of the last of them is the one that
    /// [`FrameSender::resume`] wants; the others need theirs no longer.
    pub begun: usize,
    /// Whether the last one is whole.
    pub state: Sending,
}

/// Sends frames. One thread's at a time.
#[derive(Debug)]
pub struct FrameSender {
    transport: Arc<dyn Transport>,
    half: Option<Half>,
}

/// A frame on its way.
#[derive(Debug)]
struct Half {
    header: [u8; HEADER_BYTES],
    /// Bytes of its payload.
    length: usize,
    /// Bytes of header and payload that the stream accepted.
    accepted: usize,
}

impl FrameSender {
    pub(crate) fn new(transport: Arc<dyn Transport>) -> Self {
        Self { transport, half: None }
    }

    /// The connection as a whole.
    pub fn link(&self) -> Link {
        Link::new(Arc::clone(&self.transport))
    }

    /// Whether a frame is half written, so that nothing else may be sent.
    pub fn is_half_written(&self) -> bool {
        self.half.is_some()
    }

    /// Begins a frame, without waiting.
    ///
    /// # Errors
    /// `payload` is not as long as `header` says, another frame is half written, or the connection failed.
    pub fn send(&mut self, header: &Header, payload: &[u8]) -> Result<Sending, WireError> {
        self.begin(header, payload)?;
        self.push(payload, Wait::Never)
    }

    /// Begins several frames, without waiting, in one call to the system: as many from the front as fit `limit` bytes
    /// with their headers, at least one and at most [`BATCH_MAX`].
    ///
    /// # Errors
    /// As [`FrameSender::send`]; a frame that cannot be sent is refused before any is.
    pub fn send_frames(&mut self, frames: &[(Header, &[u8])], limit: usize) -> Result<Sent, WireError> {
        if self.half.is_some() {
            return Err(WireError::HalfWritten { peer: self.peer() });
        }
        let mut headers = [[0; HEADER_BYTES]; BATCH_MAX];
        let (mut count, mut bytes) = (0, 0);
        for (header, payload) in frames.iter().take(BATCH_MAX) {
            bytes += HEADER_BYTES + payload.len();
            if count > 0 && bytes > limit {
                break;
            }
            headers[count] = self.encode(header, payload)?;
            count += 1;
        }
        let frames = &frames[..count];
        if frames.is_empty() {
            return Ok(Sent { begun: 0, state: Sending::Done });
        }
        let mut slices = [IoSlice::new(&[]); 2 * BATCH_MAX];
        for (pair, (header, (_, payload))) in slices.chunks_exact_mut(2).zip(headers.iter().zip(frames)) {
            pair[0] = IoSlice::new(header);
            pair[1] = IoSlice::new(payload);
        }
        let mut accepted = match self.transport.send(&slices[..2 * count], Wait::Never) {
            Ok(accepted) => accepted,
            Err(why) if why.kind() == ErrorKind::WouldBlock => {
                return Ok(Sent { begun: 0, state: Sending::Blocked });
            }
            Err(why) => return Err(self.fault(why)),
        };
        for (at, (header, (_, payload))) in headers.iter().zip(frames).enumerate() {
            let whole = HEADER_BYTES + payload.len();
            if accepted >= whole && at + 1 < count {
                accepted -= whole;
                continue;
            }
            if accepted == 0 && at > 0 {
                // The one before was the last that was begun. What it holds back is flushed with it.
                let (_, before) = frames[at - 1];
                let accepted = HEADER_BYTES + before.len();
                self.half = Some(Half { header: headers[at - 1], length: before.len(), accepted });
                return Ok(Sent { begun: at, state: self.push(before, Wait::Never)? });
            }
            self.half = Some(Half { header: *header, length: payload.len(), accepted });
            return Ok(Sent { begun: at + 1, state: self.push(payload, Wait::Never)? });
        }
        unreachable!("the last frame leaves the loop")
    }

    /// Goes on with the frame that is half written, without waiting; done at once if there is none. `payload`: the
    /// same bytes as when it was begun.
    pub fn resume(&mut self, payload: &[u8]) -> Result<Sending, WireError> {
        self.push(payload, Wait::Never)
    }

    /// Sends a frame and waits until the system has it.
    ///
    /// # Errors
    /// As [`FrameSender::send`]; [`WireError::Late`] at the end of the wait. [`FrameSender::is_half_written`] tells
    /// then whether the frame was begun.
    pub fn send_all(&mut self, header: &Header, payload: &[u8], wait: Wait) -> Result<(), WireError> {
        self.begin(header, payload)?;
        self.resume_all(payload, wait)
    }

    /// Goes on with the frame that is half written and waits until the system has it.
    pub fn resume_all(&mut self, payload: &[u8], wait: Wait) -> Result<(), WireError> {
        match self.push(payload, wait)? {
            Sending::Done => Ok(()),
            Sending::Half | Sending::Blocked => {
                Err(WireError::Late { peer: self.peer(), what: "take a frame" })
            }
        }
    }

    /// Sends a message and waits until the system has it.
    ///
    /// # Errors
    /// As [`FrameSender::send_all`]. After a late one the connection is of no more use: its half-written message is
    /// not kept.
    pub fn send_message(&mut self, message: &Message, generation: u32, wait: Wait) -> Result<(), WireError> {
        let refused = |fault| WireError::Refused { peer: self.peer(), fault };
        let (header, body) = message.encode(generation).map_err(refused)?;
        self.send_all(&header, &body, wait)
    }

    fn begin(&mut self, header: &Header, payload: &[u8]) -> Result<(), WireError> {
        if self.half.is_some() {
            return Err(WireError::HalfWritten { peer: self.peer() });
        }
        self.half = Some(Half { header: self.encode(header, payload)?, length: payload.len(), accepted: 0 });
        Ok(())
    }

    fn encode(&self, header: &Header, payload: &[u8]) -> Result<[u8; HEADER_BYTES], WireError> {
        let refused = |fault| WireError::Refused { peer: self.peer(), fault };
        if header.length as usize != payload.len() {
            let (kind, length) = (header.kind, header.length as usize);
            return Err(refused(FrameFault::Length { kind, length, given: payload.len() }));
        }
        header.encode().map_err(refused)
    }

    fn push(&mut self, payload: &[u8], wait: Wait) -> Result<Sending, WireError> {
        let peer = self.peer();
        let Some(half) = &mut self.half else { return Ok(Sending::Done) };
        if payload.len() != half.length {
            let kind = Header::decode(&half.header).map_or(crate::Kind::Push, |header| header.kind);
            let fault = FrameFault::Length { kind, length: half.length, given: payload.len() };
            return Err(WireError::Refused { peer, fault });
        }
        let end = HEADER_BYTES + half.length;
        let outcome = loop {
            if half.accepted == end {
                break self.transport.flush(wait);
            }
            let header = &half.header[half.accepted.min(HEADER_BYTES)..];
            let rest = &payload[half.accepted.saturating_sub(HEADER_BYTES)..];
            match self.transport.send(&[IoSlice::new(header), IoSlice::new(rest)], wait) {
                Ok(count) => half.accepted += count,
                Err(why) => break Err(why),
            }
        };
        match outcome {
            Ok(()) => {
                self.half = None;
                Ok(Sending::Done)
            }
            Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if half.accepted > 0 {
                    return Ok(Sending::Half);
                }
                self.half = None;
                Ok(Sending::Blocked)
            }
            Err(why) => Err(self.fault(why)),
        }
    }

    fn peer(&self) -> std::net::SocketAddr {
        self.transport.tcp().peer()
    }

    fn fault(&self, why: io::Error) -> WireError {
        let peer = self.peer();
        if self.transport.tcp().is_closed() {
            return WireError::Closed { peer };
        }
        WireError::Io { peer, doing: "sending to", why }
    }
}
