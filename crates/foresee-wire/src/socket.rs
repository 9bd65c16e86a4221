// SPDX-License-Identifier: Apache-2.0
//! Creation of sockets: dial, bind, and the options of every connection.
//!
//! `tcp` uses the sockets. Options and reasons:
//!
//! | option | value | why |
//! |---|---|---|
//! | `TCP_NODELAY` | on | a packet is sent when it is written; its order was decided before |
//! | `TCP_QUICKACK` | after each read, by `tcp` | otherwise a small packet's end is acknowledged up to 40 ms late |
//! | `TCP_CORK` | never | it holds a packet's tail back for up to 200 ms |
//! | `SO_KEEPALIVE` | off | heartbeats on the control connection take seconds instead of hours |
//! | `SO_RCVBUF` | not set | a fixed size switches the system's tuning off, see [`LinkOptions::receive_buffer`] |
//! | `TCP_USER_TIMEOUT` | timeout | control connections only, see [`set_user_timeout`] |
//!
//! Names are not resolved here: an address is an argument.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use foresee_units::{Bytes, Nanos};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, ipproto, sockopt};

use crate::error::WireError;
use crate::hello::Role;
use crate::sys;
use crate::tcp::Tcp;
use crate::transport::Wait;

/// Connections that wait to be accepted; all ranks may connect at once.
const BACKLOG: i32 = 1024;

/// Options of connections.
#[derive(Clone, Debug, Default)]
pub struct LinkOptions {
    /// Local address to dial from, which selects the interface; `None`: the system's choice.
    pub local: Option<IpAddr>,
    /// Receive buffer in bytes, limited by the system's maximum; Linux doubles it for its own bookkeeping.
    /// `None`, the default: the system's own tuning, up to megabytes at a slow reader. A fixed 512 KiB bounds
    /// them, but readers that share few cores with compute then announced 13 to 19 full buffers per training
    /// step, with four ranks on two cores, and each of them stops a sender until the reader has run.
    pub receive_buffer: Option<Bytes>,
    /// Name of the congestion control; `None`: the system's default. Benchmarks set it, because the default
    /// differs.
    pub congestion: Option<String>,
}

/// Connects to `peer`.
pub(crate) fn dial(peer: SocketAddr, options: &LinkOptions, wait: Wait) -> Result<Tcp, WireError> {
    let fd = open(peer)?;
    set_buffers(&fd, options);
    if let Some(ip) = options.local {
        let local = SocketAddr::new(ip, 0);
        rustix::net::bind(&fd, &local)
            .map_err(|why| WireError::Address { address: local, why: why.into() })?;
    }
    connect(&fd, peer, wait)?;
    let tcp = connected(fd, Some(peer))?;
    if tcp.local() == peer {
        // Both ends chose one local port and connected to themselves, which TCP allows.
        return Err(WireError::ConnectionRefused { peer });
    }
    tune(&tcp, options)?;
    Ok(tcp)
}

/// Listen at `address`; the system chooses port 0.
pub(crate) fn listen(address: SocketAddr, options: &LinkOptions) -> Result<OwnedFd, WireError> {
    let fd = open(address)?;
    let fault = |why: Errno| match why {
        Errno::ADDRINUSE => WireError::PortInUse { address },
        why => WireError::Address { address, why: why.into() },
    };
    // A restarted server can bind its port although old connections linger.
    sockopt::set_socket_reuseaddr(&fd, true).map_err(fault)?;
    // Accepted sockets inherit it; setting it on them would be too late.
    set_buffers(&fd, options);
    rustix::net::bind(&fd, &address).map_err(fault)?;
    rustix::net::listen(&fd, BACKLOG).map_err(fault)?;
    rustix::io::ioctl_fionbio(&fd, true).map_err(fault)?;
    Ok(fd)
}

/// Accept the next connection of a listening socket; `None` if there is none.
pub(crate) fn accept(listener: &OwnedFd, options: &LinkOptions) -> Result<Option<Tcp>, WireError> {
    let fd = match accepted(listener) {
        Ok(fd) => fd,
        // A dialler that disconnected before it was accepted is not a failure.
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => return Ok(None),
        Err(why) => return Err(WireError::System { doing: "accepting a connection", why: why.into() }),
    };
    match connected(fd, None) {
        Ok(tcp) => tune(&tcp, options).map(|()| Some(tcp)),
        Err(_) => Ok(None),
    }
}

/// End a connection whose bytes are not acknowledged for `timeout`.
///
/// For control connections only. The kernel also ends a connection whose peer has acknowledged everything but has
/// not *read* for the timeout (measured on 6.18: `ETIMEDOUT` 1.8 s after the window closed, at 1.5 s). On a data
/// connection such a peer is slow and not dead: a server leaves a packet unread until the previous ranks have
/// pushed theirs. [`crate::Silence::handle_info`] watches data connections instead.
pub(crate) fn set_user_timeout(tcp: &Tcp, role: Role, timeout: Nanos) {
    let millis = match role {
        Role::Control => u32::try_from(timeout.get().div_ceil(1_000_000)).unwrap_or(u32::MAX),
        Role::Data => 0,
    };
    // A backstop: without it, the heartbeat detects the same.
    #[cfg(target_os = "linux")]
    let _ = sockopt::set_tcp_user_timeout(tcp, millis);
    #[cfg(not(target_os = "linux"))]
    let _ = (tcp, millis);
}

fn open(address: SocketAddr) -> Result<OwnedFd, WireError> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fault = |why: Errno| WireError::System { doing: "opening a socket", why: why.into() };
    // Not inherited by child processes: a fork at the wrong moment would keep a connection open.
    #[cfg(not(target_vendor = "apple"))]
    let fd = {
        let flags = rustix::net::SocketFlags::CLOEXEC;
        rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP)).map_err(fault)?
    };
    #[cfg(target_vendor = "apple")]
    let fd = {
        let fd = rustix::net::socket(family, SocketType::STREAM, Some(ipproto::TCP)).map_err(fault)?;
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC).map_err(fault)?;
        sockopt::set_socket_nosigpipe(&fd, true).map_err(fault)?;
        fd
    };
    Ok(fd)
}

#[cfg(not(target_vendor = "apple"))]
fn accepted(listener: &OwnedFd) -> Result<OwnedFd, Errno> {
    rustix::net::accept_with(listener, rustix::net::SocketFlags::CLOEXEC)
}

#[cfg(target_vendor = "apple")]
fn accepted(listener: &OwnedFd) -> Result<OwnedFd, Errno> {
    let fd = rustix::net::accept(listener)?;
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
    sockopt::set_socket_nosigpipe(&fd, true)?;
    // Inherited from the listening socket on those systems.
    rustix::io::ioctl_fionbio(&fd, false)?;
    Ok(fd)
}

fn connect(fd: &OwnedFd, peer: SocketAddr, wait: Wait) -> Result<(), WireError> {
    let fault = |why: Errno| match why {
        Errno::CONNREFUSED => WireError::ConnectionRefused { peer },
        why => WireError::Io { peer, doing: "dialling", why: why.into() },
    };
    rustix::io::ioctl_fionbio(fd, true).map_err(fault)?;
    match rustix::net::connect(fd, &peer) {
        Ok(()) => {}
        Err(Errno::INPROGRESS | Errno::INTR) => {
            if !ready(fd, PollFlags::OUT, wait).map_err(fault)? {
                return Err(WireError::Late { peer, what: "answer the dial" });
            }
            sockopt::socket_error(fd).map_err(fault)?.map_err(fault)?;
        }
        Err(why) => return Err(fault(why)),
    }
    rustix::io::ioctl_fionbio(fd, false).map_err(fault)
}

/// Wait until `fd` is ready; false if it is not in time.
fn ready(fd: impl AsFd, what: PollFlags, wait: Wait) -> Result<bool, Errno> {
    loop {
        let time = wait.left().map(timespec);
        match poll(&mut [PollFd::new(&fd, what)], time.as_ref()) {
            Ok(0) if wait.left() == Some(Duration::ZERO) => return Ok(false),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(why) => return Err(why),
        }
    }
}

pub(crate) fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// `peer`: the dialled address; `None`: read it from the socket.
fn connected(fd: OwnedFd, peer: Option<SocketAddr>) -> Result<Tcp, WireError> {
    let gone = || io::Error::from(io::ErrorKind::NotConnected);
    let fault = |why: io::Error| WireError::System { doing: "asking for a connection's addresses", why };
    let local = rustix::net::getsockname(&fd).map_err(|why| fault(why.into()))?;
    let local = SocketAddr::try_from(local).map_err(|_| fault(gone()))?;
    let peer = match peer {
        Some(peer) => peer,
        None => rustix::net::getpeername(&fd)
            .map_err(|why| fault(why.into()))?
            .and_then(|peer| SocketAddr::try_from(peer).ok())
            .ok_or_else(|| fault(gone()))?,
    };
    Ok(Tcp::new(fd, peer, local))
}

fn set_buffers(fd: &OwnedFd, options: &LinkOptions) {
    if let Some(size) = options.receive_buffer {
        // Before connecting, because it bounds the window scale. An error is ignored, because the connection
        // works with another size.
        let size = usize::try_from(size.get()).unwrap_or(usize::MAX);
        let _ = sockopt::set_socket_recv_buffer_size(fd, size);
    }
}

fn tune(tcp: &Tcp, options: &LinkOptions) -> Result<(), WireError> {
    let peer = tcp.peer();
    let fault = |why: Errno| WireError::Io { peer, doing: "setting up the connection to", why: why.into() };
    sockopt::set_tcp_nodelay(tcp, true).map_err(fault)?;
    sockopt::set_socket_keepalive(tcp, false).map_err(fault)?;
    if let Some(name) = &options.congestion {
        pin_congestion(tcp, name)?;
    }
    Ok(())
}

#[cfg(target_os = "linux")]
fn pin_congestion(tcp: &Tcp, name: &str) -> Result<(), WireError> {
    sockopt::set_tcp_congestion(tcp, name).map_err(|why| WireError::Congestion {
        name: name.to_owned(),
        why: why.into(),
        offered: sys::congestions(),
    })
}

#[cfg(not(target_os = "linux"))]
fn pin_congestion(_tcp: &Tcp, name: &str) -> Result<(), WireError> {
    let why = io::ErrorKind::Unsupported.into();
    Err(WireError::Congestion { name: name.to_owned(), why, offered: sys::congestions() })
}

#[cfg(test)]
pub(crate) mod process_tests;
