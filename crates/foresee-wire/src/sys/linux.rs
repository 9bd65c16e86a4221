// SPDX-License-Identifier: Apache-2.0
//! Linux: `SIOCOUTQ`, `TCP_INFO` and acknowledgment events.
//!
//! It uses `libc` because rustix does not cover these calls. `facts` and `poller` interpret the results.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr;

use foresee_units::Bytes;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags};

use crate::facts::{TCP_INFO_BYTES, TcpInfo};

/// Bytes in the send buffer: unsent, or sent and not acknowledged.
pub(crate) fn queued(fd: BorrowedFd<'_>) -> io::Result<Option<Bytes>> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: `SIOCOUTQ`, which equals `TIOCOUTQ`, writes one int, and `bytes` is one.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, ptr::from_mut(&mut bytes)) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Some(Bytes::new(u64::try_from(bytes).unwrap_or(0))))
}

/// The kernel's data about the connection.
pub(crate) fn tcp_info(fd: BorrowedFd<'_>) -> io::Result<Option<TcpInfo>> {
    let mut answer = [0_u8; TCP_INFO_BYTES];
    let mut len = libc::socklen_t::try_from(answer.len()).expect("256 bytes");
    // SAFETY: the kernel writes at most `len` bytes to `answer`, which has that size, and their number to `len`.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            answer.as_mut_ptr().cast(),
            ptr::from_mut(&mut len),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Some(TcpInfo::parse(&answer[..answer.len().min(len as usize)])))
}

/// Enable or disable acknowledgment events. Every sending call then adds an entry to the socket's error queue
/// once all its bytes are acknowledged, and epoll reports the queue as `EPOLLERR`. The entries carry no payload
/// (`OPT_TSONLY`).
///
/// Enable this only if the queue is drained. The kernel charges entries to the receive buffer and drops them when
/// that is full, so an acknowledgment may pass without one: every wait for them needs a timer.
pub(crate) fn want_acks(fd: BorrowedFd<'_>, wanted: bool) -> io::Result<bool> {
    let events = libc::SOF_TIMESTAMPING_TX_ACK
        | libc::SOF_TIMESTAMPING_SOFTWARE
        | libc::SOF_TIMESTAMPING_OPT_ID
        | libc::SOF_TIMESTAMPING_OPT_TSONLY;
    let flags: libc::c_uint = if wanted { events } else { 0 };
    let len = libc::socklen_t::try_from(size_of_val(&flags)).expect("4 bytes");
    // SAFETY: the kernel reads `len` bytes of `flags`, which has that size.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPING,
            ptr::from_ref(&flags).cast(),
            len,
        )
    };
    match io::Error::last_os_error() {
        _ if result == 0 => Ok(true),
        // Sandboxes that emulate a kernel lack the option.
        why if matches!(why.raw_os_error(), Some(libc::ENOPROTOOPT | libc::EINVAL | libc::EOPNOTSUPP)) => {
            Ok(false)
        }
        why => Err(why),
    }
}

/// Empty the error queue and return its number of entries. As long as one remains, epoll reports the socket
/// again.
pub(crate) fn drain_acks(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut entries = 0;
    loop {
        // The content of an entry (byte and time) is not needed, because the queue's length is read afterwards.
        let mut control = RecvAncillaryBuffer::default();
        match rustix::net::recvmsg(fd, &mut [], &mut control, RecvFlags::ERRQUEUE | RecvFlags::DONTWAIT) {
            Ok(_) => entries += 1,
            Err(Errno::AGAIN) => return Ok(entries),
            Err(Errno::INTR) => {}
            Err(why) => return Err(why.into()),
        }
    }
}

/// The largest send buffer that a process may request.
pub(crate) fn send_buffer_max() -> Bytes {
    limit("wmem_max")
}

/// Names of the congestion controls that a process may choose.
pub(crate) fn congestions() -> String {
    std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
        .map_or_else(|_| "those in tcp_allowed_congestion_control".into(), |names| names.trim().into())
}

fn limit(name: &str) -> Bytes {
    // The kernel's default, if the file cannot be read: network namespaces of old kernels do not show it.
    const DEFAULT: u64 = 212_992;
    let text = std::fs::read_to_string(format!("/proc/sys/net/core/{name}")).unwrap_or_default();
    Bytes::new(text.trim().parse().unwrap_or(DEFAULT))
}
