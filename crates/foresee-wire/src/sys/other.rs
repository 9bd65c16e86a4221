// SPDX-License-Identifier: Apache-2.0
//! Systems that do not report a connection's queue.
//!
//! There the socket's send buffer of 32 to 64 KB is the window, see [`crate::Link::limit_send_buffer`]. A packet
//! of 30 KB waits behind that much at most.

use std::io;
use std::os::fd::BorrowedFd;

use foresee_units::Bytes;

use crate::facts::TcpInfo;

pub(crate) fn queued(_fd: BorrowedFd<'_>) -> io::Result<Option<Bytes>> {
    Ok(None)
}

pub(crate) fn tcp_info(_fd: BorrowedFd<'_>) -> io::Result<Option<TcpInfo>> {
    Ok(None)
}

pub(crate) fn send_buffer_max() -> Bytes {
    Bytes::new(64 << 10)
}

pub(crate) fn congestions() -> String {
    "none: this system has one for all".into()
}
