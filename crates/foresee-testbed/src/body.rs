// SPDX-License-Identifier: Apache-2.0
//! The body of an answer: throttled, counted, and broken by faults.
//!
//! Every answer passes through here, with bytes from memory, a file or the server behind the proxy, so limits,
//! counts and faults are always the same.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::task::JoinHandle;

use crate::counters::Flight;
use crate::faults::Fault;
use crate::server::Origin;
use crate::sleep::sleep;

/// Maximum of bytes per reservation: 3 ms at 20 MB/s, so that connections share a limit in small pieces.
pub(crate) const PIECE_BYTES: usize = 64 << 10;

/// The source of a body's bytes.
#[derive(Debug)]
pub(crate) enum Source {
    Memory(Bytes),
    File(FileRange),
    Upstream(Incoming),
}

/// A range of a file, read piece by piece on the threads for blocking work.
#[derive(Debug)]
pub(crate) struct FileRange {
    file: Arc<File>,
    at: u64,
    end: u64,
    reading: Option<JoinHandle<io::Result<Bytes>>>,
}

/// Why a body ends early; the client sees its connection close.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("cannot read the file")]
    File(#[from] io::Error),
    #[error("the server behind the proxy broke off")]
    Upstream(#[from] hyper::Error),
    #[error("cut short by a fault")]
    Fault,
}

/// A body that is being sent.
pub(crate) struct Outgoing {
    source: Source,
    /// Length of the body, if known.
    length: Option<u64>,
    sent: u64,
    fault: Option<Fault>,
    /// Whether the bytes before a [`Fault::ShortBody`] were flushed.
    is_flushed: bool,
    /// Bytes from the source that are not reserved.
    unreserved: Bytes,
    /// Bytes to send as soon as `pause` is over.
    reserved: Bytes,
    pause: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    metering: Option<Metering>,
}

/// The limits and counters of a body.
#[derive(Debug)]
pub(crate) struct Metering {
    pub(crate) origin: Arc<Origin>,
    pub(crate) of_object: bool,
    /// Held until the body was sent or abandoned.
    pub(crate) _flight: Flight,
}

impl Outgoing {
    /// `fault`: [`Fault::Stall`] and [`Fault::ShortBody`] happen at half of the body; others do not concern a
    /// body. Without `metering` the body is neither limited nor counted.
    pub(crate) fn new(
        source: Source,
        length: Option<u64>,
        fault: Option<Fault>,
        metering: Option<Metering>,
    ) -> Self {
        let (unreserved, reserved) = (Bytes::new(), Bytes::new());
        Self {
            source,
            length,
            sent: 0,
            fault,
            is_flushed: false,
            unreserved,
            reserved,
            pause: None,
            metering,
        }
    }

    /// The position of the fault, in bytes sent.
    fn fault_at(&self) -> Option<u64> {
        self.fault.as_ref().map(|_| self.length.unwrap_or(0) / 2)
    }

    fn pause(&mut self, time: Duration) {
        self.pause = Some(Box::pin(sleep(time)));
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let this = self.get_mut();
        loop {
            if let Some(pause) = &mut this.pause {
                ready!(pause.as_mut().poll(cx));
                this.pause = None;
            }
            if !this.reserved.is_empty() {
                let piece = std::mem::take(&mut this.reserved);
                this.sent += piece.len() as u64;
                if let Some(metering) = &this.metering {
                    metering.origin.counters.sent(piece.len() as u64, metering.of_object);
                }
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            if this.fault_at().is_some_and(|at| this.sent >= at) {
                match this.fault {
                    Some(Fault::Stall { ms: Some(ms) }) => {
                        this.fault = None;
                        this.pause(Duration::from_millis(ms));
                        continue;
                    }
                    // No event wakes this body again; the connection ends when the client gives up.
                    Some(Fault::Stall { ms: None }) => return Poll::Pending,
                    // The connection writes its buffer while it waits for the body; an error drops the buffer.
                    Some(Fault::ShortBody) if !this.is_flushed => {
                        this.is_flushed = true;
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    _ => return Poll::Ready(Some(Err(Broken::Fault))),
                }
            }
            if this.unreserved.is_empty() {
                match ready!(this.source.poll_next(cx)) {
                    None => return Poll::Ready(None),
                    Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                    Some(Ok(bytes)) => this.unreserved = bytes,
                }
            }
            let until_fault = this.fault_at().map_or(u64::MAX, |at| at - this.sent);
            let piece = PIECE_BYTES
                .min(this.unreserved.len())
                .min(usize::try_from(until_fault).unwrap_or(usize::MAX));
            this.reserved = this.unreserved.split_to(piece);
            if let Some(wait) =
                this.metering.as_ref().and_then(|metering| metering.origin.reserve_bytes(piece as u64))
            {
                this.pause(wait);
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.length == Some(self.sent)
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::default, |length| SizeHint::with_exact(length - self.sent))
    }
}

impl Source {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Broken>>> {
        match self {
            Self::Memory(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Memory(bytes) => Poll::Ready(Some(Ok(std::mem::take(bytes)))),
            Self::File(range) => range.poll_next(cx).map(|next| next.map(|read| read.map_err(Broken::from))),
            Self::Upstream(body) => loop {
                match ready!(Pin::new(&mut *body).poll_frame(cx)) {
                    None => return Poll::Ready(None),
                    Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                    Some(Ok(frame)) => {
                        // Trailers are not forwarded: S3 sends none.
                        if let Ok(bytes) = frame.into_data()
                            && !bytes.is_empty()
                        {
                            return Poll::Ready(Some(Ok(bytes)));
                        }
                    }
                }
            },
        }
    }
}

impl FileRange {
    /// The bytes from `at` up to `end` of `file`.
    pub(crate) fn new(file: File, at: u64, end: u64) -> Self {
        Self { file: Arc::new(file), at, end, reading: None }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.reading.is_none() {
            let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
            if left == 0 {
                return Poll::Ready(None);
            }
            let (file, at, length) = (Arc::clone(&self.file), self.at, left.min(PIECE_BYTES));
            self.reading = Some(tokio::task::spawn_blocking(move || read_at(&file, at, length)));
        }
        let Some(reading) = &mut self.reading else { return Poll::Ready(None) };
        let read =
            ready!(Pin::new(reading).poll(cx)).unwrap_or_else(|stopped| Err(io::Error::other(stopped)));
        self.reading = None;
        if let Ok(bytes) = &read {
            self.at += bytes.len() as u64;
        }
        Poll::Ready(Some(read))
    }
}

/// Read exactly `length` bytes from `at`; a truncated file is an error.
pub(crate) fn read_at(file: &File, at: u64, length: usize) -> io::Result<Bytes> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes.into())
}
