// SPDX-License-Identifier: Apache-2.0
//! TLS over a TCP socket, for one sending and one receiving thread.
//!
//! The session (`rustls::Connection`) is one state for both directions, so it has a lock, and no call under that
//! lock waits. Outgoing and incoming ciphertext have a lock each, which the sending or receiving thread holds
//! even while it waits. Lock order: `outgoing`, then `session`; `incoming`, then `session`. At most [`CHUNK`]
//! bytes of plaintext are encrypted ahead of the socket.

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::{ClientConnection, Connection, ServerConnection};

use super::{TlsClient, TlsServer};
use crate::error::WireError;
use crate::tcp::Tcp;
use crate::transport::{Transport, Wait};

/// Four full TLS messages: enough for a typical packet of 30 KB in one system call.
const CHUNK: usize = 64 << 10;
/// The label of the exported bytes.
const BINDING_LABEL: &[u8] = b"EXPORTER-foresee-wire-1";

#[derive(Debug)]
pub(crate) struct Tls {
    tcp: Arc<Tcp>,
    session: Mutex<Connection>,
    outgoing: Mutex<Ciphertext>,
    incoming: Mutex<Ciphertext>,
    binding: [u8; 32],
}

/// Bytes of which the first `done` were consumed.
#[derive(Debug, Default)]
struct Ciphertext {
    bytes: Vec<u8>,
    done: usize,
}

impl Tls {
    /// Encrypt a connection that this side dialled.
    pub(crate) fn dial(tcp: Arc<Tcp>, client: &TlsClient, wait: Wait) -> Result<Self, WireError> {
        let peer = tcp.peer();
        let name = client.name.clone().unwrap_or_else(|| peer.ip().into());
        let session = ClientConnection::new(Arc::clone(&client.config), name)
            .map_err(|why| WireError::Tls { peer, why })?;
        Self::agree(tcp, session.into(), wait).map_err(|fault| match fault {
            // It answered without TLS.
            WireError::Tls { why: rustls::Error::InvalidMessage(_), .. } => {
                WireError::TlsMismatch { peer, there: false }
            }
            fault => fault,
        })
    }

    /// Encrypt a connection that this side accepted.
    pub(crate) fn accept(tcp: Arc<Tcp>, server: &TlsServer, wait: Wait) -> Result<Self, WireError> {
        let peer = tcp.peer();
        let session =
            ServerConnection::new(Arc::clone(&server.0)).map_err(|why| WireError::Tls { peer, why })?;
        Self::agree(tcp, session.into(), wait)
    }

    fn agree(tcp: Arc<Tcp>, mut session: Connection, wait: Wait) -> Result<Self, WireError> {
        let peer = tcp.peer();
        let (mut outgoing, mut incoming) = (Ciphertext::default(), Ciphertext::default());
        let fault = |why: io::Error| handshake_fault(peer, why);
        let rejected = |why: rustls::Error| WireError::Tls { peer, why };
        session.set_buffer_limit(Some(CHUNK));
        loop {
            outgoing.encrypt(&mut session).map_err(fault)?;
            outgoing.send(&tcp, wait).map_err(fault)?;
            if !session.is_handshaking() {
                break;
            }
            if incoming.is_empty() && incoming.receive(&tcp, wait).map_err(fault)? == 0 {
                return Err(WireError::Cut { peer, part: "handshake of TLS", missing: 1 });
            }
            if let Err(why) = incoming.decrypt(&mut session) {
                // An alert tells the peer why this end fails.
                if outgoing.encrypt(&mut session).is_ok() {
                    let _ = outgoing.send(&tcp, wait);
                    tcp.finish();
                }
                return Err(match why.downcast() {
                    Ok(why) => rejected(why),
                    Err(why) => fault(why),
                });
            }
        }
        let binding = session.export_keying_material([0; 32], BINDING_LABEL, None).map_err(rejected)?;
        Ok(Self {
            tcp,
            session: Mutex::new(session),
            outgoing: Mutex::new(outgoing),
            incoming: Mutex::new(incoming),
            binding,
        })
    }
}

fn handshake_fault(peer: std::net::SocketAddr, why: io::Error) -> WireError {
    match why.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => WireError::Late { peer, what: "agree on TLS" },
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            WireError::Cut { peer, part: "handshake of TLS", missing: 1 }
        }
        _ => WireError::Io { peer, doing: "agreeing on TLS with", why },
    }
}

impl Ciphertext {
    fn is_empty(&self) -> bool {
        self.done == self.bytes.len()
    }

    /// Move the session's output to the outgoing ciphertext.
    fn encrypt(&mut self, session: &mut Connection) -> io::Result<()> {
        if self.is_empty() {
            self.bytes.clear();
            self.done = 0;
        }
        while session.wants_write() {
            session.write_tls(&mut self.bytes)?;
        }
        Ok(())
    }

    fn send(&mut self, tcp: &Tcp, wait: Wait) -> io::Result<()> {
        while !self.is_empty() {
            self.done += tcp.send(&[IoSlice::new(&self.bytes[self.done..])], wait)?;
        }
        Ok(())
    }

    fn receive(&mut self, tcp: &Tcp, wait: Wait) -> io::Result<usize> {
        self.bytes.resize(CHUNK, 0);
        let got = tcp.receive(&mut [IoSliceMut::new(&mut self.bytes)], wait, false);
        self.bytes.truncate(*got.as_ref().unwrap_or(&0));
        self.done = 0;
        got
    }

    /// Pass incoming ciphertext to the session; false if it accepts none before its plaintext is read.
    ///
    /// # Errors
    /// A [`rustls::Error`] inside, if the peer violated the protocol.
    fn decrypt(&mut self, session: &mut Connection) -> io::Result<bool> {
        let mut rest = &self.bytes[self.done..];
        let before = rest.len();
        while !rest.is_empty() {
            // The session reports a full buffer as an error; its plaintext has to be read first.
            let Ok(count) = session.read_tls(&mut rest) else { break };
            session.process_new_packets().map_err(io::Error::other)?;
            if count == 0 {
                // Bytes after the peer's "close notify" are ignored.
                rest = &[];
            }
        }
        let progress = rest.len() < before;
        self.done = self.bytes.len() - rest.len();
        Ok(progress)
    }
}

impl Transport for Tls {
    fn send(&self, slices: &[IoSlice<'_>], wait: Wait) -> io::Result<usize> {
        let mut outgoing = lock(&self.outgoing);
        outgoing.send(&self.tcp, wait)?;
        let mut accepted = 0;
        {
            let mut session = lock(&self.session);
            // Output that receiving caused goes first, so that it does not count towards the limit.
            outgoing.encrypt(&mut session)?;
            for slice in slices {
                let part = &slice[..slice.len().min(CHUNK - accepted)];
                let count = session.writer().write(part)?;
                accepted += count;
                if count < slice.len() {
                    break;
                }
            }
            outgoing.encrypt(&mut session)?;
        }
        match outgoing.send(&self.tcp, Wait::Never) {
            // The rest is retained, and counted as such.
            Err(why) if why.kind() != io::ErrorKind::WouldBlock => Err(why),
            _ => Ok(accepted),
        }
    }

    fn flush(&self, wait: Wait) -> io::Result<()> {
        lock(&self.outgoing).send(&self.tcp, wait)
    }

    fn receive(&self, slices: &mut [IoSliceMut<'_>], wait: Wait, _whole: bool) -> io::Result<usize> {
        let mut incoming = lock(&self.incoming);
        loop {
            {
                let mut session = lock(&self.session);
                loop {
                    match session.reader().read_vectored(slices) {
                        Ok(count) => return Ok(count),
                        // An end without "close notify": for a protocol of frames it is the same as any other
                        // end.
                        Err(why) if why.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                        Err(why) if why.kind() != io::ErrorKind::WouldBlock => return Err(why),
                        Err(_) if incoming.is_empty() => break,
                        Err(_) => {
                            if !incoming.decrypt(&mut session)? {
                                return Err(io::Error::other("TLS takes no more bytes, and gives none"));
                            }
                        }
                    }
                }
            }
            if incoming.receive(&self.tcp, wait)? == 0 {
                // Notify the session that nothing follows.
                lock(&self.session).read_tls(&mut io::empty())?;
            }
        }
    }

    fn held(&self) -> usize {
        // A waiting sender holds the lock, and then the socket's queue is full anyway.
        self.outgoing.try_lock().map_or(0, |outgoing| outgoing.bytes.len() - outgoing.done)
    }

    fn binding(&self) -> Option<[u8; 32]> {
        Some(self.binding)
    }

    fn tcp(&self) -> &Tcp {
        &self.tcp
    }
}

/// After a panic of another thread the session is either intact or failed, and reports so itself.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
