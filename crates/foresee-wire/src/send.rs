// SPDX-License-Identifier: Apache-2.0
//! The sending half of a connection: header and payload in one system call, whole or in parts.
//!
//! Another thread receives. A half-written packet is a state of this half: only its rest may follow, and the
//! payload stays the caller's in between. This half neither queues frames nor copies payloads (TLS does, to
//! encrypt them); the caller chooses the next frame.

use std::io::{self, ErrorKind, IoSlice};
use std::sync::Arc;

use crate::control::Message;
use crate::error::{FrameFault, WireError};
use crate::frame::{HEADER_BYTES, Header};
use crate::link::Link;
use crate::transport::{Transport, Wait};

/// Maximum number of frames in one system call.
pub const BATCH_MAX: usize = 32;

/// Progress of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Sending {
    /// The system has accepted everything.
    Done,
    /// A frame is half written. Once the connection is writable, call [`FrameSender::resume`]; nothing else may
    /// go first.
    Half,
    /// The system accepts nothing now, and no frame was begun. Once the connection is writable, another frame may
    /// go first.
    Blocked,
}

/// The result of [`FrameSender::send_frames`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Sent {
    /// Number of frames from the front that were begun. If `state` is half, [`FrameSender::resume`] needs the
    /// payload of the last of them; the payloads of the others are no longer needed.
    pub begun: usize,
    /// Progress of the last one.
    pub state: Sending,
}

/// Sends frames. Used by one thread at a time.
#[derive(Debug)]
pub struct FrameSender {
    transport: Arc<dyn Transport>,
    half: Option<Half>,
}

/// A frame that is being sent.
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

    /// A handle of the connection as a whole.
    pub fn link(&self) -> Link {
        Link::new(Arc::clone(&self.transport))
    }

    /// Whether a frame is half written, so that no other may be sent.
    pub fn is_half_written(&self) -> bool {
        self.half.is_some()
    }

    /// Begin a frame, without waiting.
    ///
    /// # Errors
    /// `payload` does not have the length in `header`, another frame is half written, or the connection failed.
    pub fn send(&mut self, header: &Header, payload: &[u8]) -> Result<Sending, WireError> {
        self.begin(header, payload)?;
        self.push(payload, Wait::Never)
    }

    /// Begin several frames in one system call, without waiting: as many from the front as fit `limit` bytes with
    /// their headers, at least one and at most [`BATCH_MAX`].
    ///
    /// # Errors
    /// As [`FrameSender::send`]; an invalid frame is an error before any frame is sent.
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
                // The previous frame was the last one begun. Its retained bytes are flushed with it.
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

    /// Continue the half-written frame, without waiting; done at once if there is none. `payload`: the same bytes
    /// as at its beginning.
    pub fn resume(&mut self, payload: &[u8]) -> Result<Sending, WireError> {
        self.push(payload, Wait::Never)
    }

    /// Send a frame and wait until the system has accepted it.
    ///
    /// # Errors
    /// As [`FrameSender::send`]; [`WireError::Late`] at the end of the wait. [`FrameSender::is_half_written`]
    /// then shows whether the frame was begun.
    pub fn send_all(&mut self, header: &Header, payload: &[u8], wait: Wait) -> Result<(), WireError> {
        self.begin(header, payload)?;
        self.resume_all(payload, wait)
    }

    /// Continue the half-written frame and wait until the system has accepted it.
    pub fn resume_all(&mut self, payload: &[u8], wait: Wait) -> Result<(), WireError> {
        match self.push(payload, wait)? {
            Sending::Done => Ok(()),
            Sending::Half | Sending::Blocked => {
                Err(WireError::Late { peer: self.peer(), what: "take a frame" })
            }
        }
    }

    /// Send a message and wait until the system has accepted it.
    ///
    /// # Errors
    /// As [`FrameSender::send_all`]. After a late one the connection is unusable, because its half-written
    /// message is not retained.
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
