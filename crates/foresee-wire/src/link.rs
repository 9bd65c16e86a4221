// SPDX-License-Identifier: Apache-2.0
//! Handle of a connection as a whole: its kernel data, its buffer, its end.
//!
//! Sending and receiving have one thread each; this handle is cloned to all observers. It reports the bytes in
//! flight; the caller decides on the window.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use foresee_units::Bytes;
use rustix::net::sockopt;

use crate::error::WireError;
use crate::facts::{TcpInfo, send_buffer};
use crate::sys;
use crate::tcp::Tcp;
use crate::transport::Transport;

/// A handle of a connection; clones refer to the same one.
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

    /// Whether the connection is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.0.binding().is_some()
    }

    /// Bytes of the connection that the peer's system has not acknowledged: unsent, or in flight.
    ///
    /// Under TLS these are bytes of ciphertext, 22 more for every 16 KiB. `None` if the system does not report
    /// it; [`Link::limit_send_buffer`] replaces it there.
    pub fn queued(&self) -> Result<Option<Bytes>, WireError> {
        let held = Bytes::new(self.0.held() as u64);
        let queued = sys::queued(self.tcp().as_fd()).map_err(|why| self.fault(why))?;
        Ok(queued.map(|queued| queued + held))
    }

    /// The kernel's data about the connection; `None` if the system does not report it.
    pub fn info(&self) -> Result<Option<TcpInfo>, WireError> {
        sys::tcp_info(self.tcp().as_fd()).map_err(|why| self.fault(why))
    }

    /// Set the send buffer to twice `window`, as a backstop. Returns false, and changes nothing, if that exceeds
    /// the system's limit. The system never grows a buffer again that was set once.
    ///
    /// If the system does not report [`Link::queued`], the buffer is the window, clamped to 32 to 64 KiB.
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

    /// End the connection at once: waiting calls of both halves return [`WireError::Closed`].
    pub fn shutdown(&self) {
        self.0.shutdown();
    }

    /// Enable or disable acknowledgment events; false if the system has none.
    #[cfg(target_os = "linux")]
    pub(crate) fn want_acks(&self, wanted: bool) -> Result<bool, WireError> {
        sys::want_acks(self.tcp().as_fd(), wanted).map_err(|why| self.fault(why))
    }

    fn fault(&self, why: std::io::Error) -> WireError {
        WireError::Io { peer: self.peer(), doing: "asking the system about", why }
    }
}
