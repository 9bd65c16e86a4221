// SPDX-License-Identifier: Apache-2.0
//! A connection as a whole, seen from beside its two halves: its facts, its buffer, its end.
//!
//! Apart from sending and receiving, which one thread each does: this handle is cloned to whoever watches.
//!
//! Refuses to decide on a window: it tells the bytes that one would count.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use foresee_units::Bytes;
use rustix::net::sockopt;

use crate::error::WireError;
use crate::facts::{TcpInfo, send_buffer};
use crate::sys;
use crate::tcp::Tcp;
use crate::transport::Transport;

/// A handle of a connection; clones are the same connection.
#[derive(Clone, Debug)]
pub struct Link(Arc<dyn Transport>);

impl Link {
    pub(crate) fn new(transport: Arc<dyn Transport>) -> Self {
        Self(transport)
    }

    pub(crate) fn tcp(&self) -> &Tcp {
        self.0.tcp()
    }

    /// The other end's address.
    pub fn peer(&self) -> std::net::SocketAddr {
        self.tcp().peer()
    }

    /// This end's address; its IP names the interface.
    pub fn local(&self) -> std::net::SocketAddr {
        self.tcp().local()
    }

    /// Whether what travels is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.0.binding().is_some()
    }

    /// Bytes that were given to the connection and not acknowledged by the peer's system: not sent, or under way.
    ///
    /// Under TLS they are bytes of ciphertext, 22 more for every 16 KiB. `None` where the system does not tell; there
    /// [`Link::limit_send_buffer`] has to do.
    pub fn queued(&self) -> Result<Option<Bytes>, WireError> {
        let held = Bytes::new(self.0.held() as u64);
        let queued = sys::queued(self.tcp().as_fd()).map_err(|why| self.fault(why))?;
        Ok(queued.map(|queued| queued + held))
    }

    /// What the system knows of the connection; `None` where it does not tell.
    pub fn info(&self) -> Result<Option<TcpInfo>, WireError> {
        sys::tcp_info(self.tcp().as_fd()).map_err(|why| self.fault(why))
    }

    /// Sets the send buffer to twice `window`, as a backstop; false where that is above the system's limit and the
    /// buffer stays as it is. The system never lets a buffer that was set once grow by itself again.
    ///
    /// Where the system does not tell [`Link::queued`], it is the window, and cut to 32 to 64 KiB.
    pub fn limit_send_buffer(&self, window: Bytes) -> Result<bool, WireError> {
        let size = if cfg!(target_os = "linux") {
            send_buffer(window, sys::send_buffer_max())
        } else {
            Some(window.clamp(Bytes::new(32 << 10), Bytes::new(64 << 10)))
        };
        let Some(size) = size else { return Ok(false) };
        let size = usize::try_from(size.get()).unwrap_or(usize::MAX);
        sockopt::set_socket_send_buffer_size(self.tcp(), size).map_err(|why| self.fault(why.into()))?;
        Ok(true)
    }

    /// Ends the connection at once: waiting calls of both halves return with [`WireError::Closed`].
    pub fn shutdown(&self) {
        self.0.shutdown();
    }

    /// Asks for events of acknowledgments, or for none; false where the system has none.
    #[cfg(target_os = "linux")]
    pub(crate) fn want_acks(&self, wanted: bool) -> Result<bool, WireError> {
        sys::want_acks(self.tcp().as_fd(), wanted).map_err(|why| self.fault(why))
    }

    fn fault(&self, why: std::io::Error) -> WireError {
        WireError::Io { peer: self.peer(), doing: "asking the system about", why }
    }
}
