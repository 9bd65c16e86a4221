// SPDX-License-Identifier: Apache-2.0
//! TLS over a TCP socket, for a thread that sends and a thread that receives.
//!
//! Apart from the configuration. The session (`rustls::Connection`) is one state for both directions, so it has a
//! lock; no call under that lock waits. Ciphertext on its way out and on its way in has a lock of its own, held by
//! the one thread that sends or receives, over waits too. Order of locks: `outgoing`, then `session`; `incoming`,
//! then `session`.
//!
//! Refuses to keep much: at most [`CHUNK`] bytes of plaintext are encrypted ahead of the socket.

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::{ClientConnection, Connection, ServerConnection};

use super::{TlsClient, TlsServer};
use crate::error::WireError;
use crate::tcp::Tcp;
use crate::transport::{Transport, Wait};

/// Four full messages of TLS: enough for a packet of the usual 30 KB in one call to the system.
const CHUNK: usize = 64 << 10;
/// Names what the exported bytes are for.
const BINDING_LABEL: &[u8] = b"EXPORTER-foresee-wire-1";

#[derive(Debug)]
pub(crate) struct Tls {
    tcp: Arc<Tcp>,
    session: Mutex<Connection>,
    outgoing: Mutex<Ciphertext>,
    incoming: Mutex<Ciphertext>,
    binding: [u8; 32],
}

/// Bytes of which the first `done` were passed on.
#[derive(Debug, Default)]
struct Ciphertext {
    bytes: Vec<u8>,
    done: usize,
}

impl Tls {
    /// Encrypts a connection that this side dialled.
    pub(crate) fn dial(tcp: Arc<Tcp>, client: &TlsClient, wait: Wait) -> Result<Self, WireError> {
        let peer = tcp.peer();
        let name = client.name.clone().unwrap_or_else(|| peer.ip().into());
        let session = ClientConnection::new(Arc::clone(&client.config), name)
            .map_err(|why| WireError::Tls { peer, why })?;
        Self::agree(tcp, session.into(), wait).map_err(|fault| match fault {
            // It answered, and not in TLS.
            WireError::Tls { why: rustls::Error::InvalidMessage(_), .. } => {
                WireError::TlsMismatch { peer, there: false }
            }
            fault => fault,
        })
    }

    /// Encrypts a connection that this side accepted.
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
                // The peer learns from an alert why this end gives up.
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

    /// Takes over what the session has to send.
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

    /// Gives the session what it takes; false if it takes nothing before its plaintext is read.
    ///
    /// # Errors
    /// A [`rustls::Error`] inside, where the peer broke the protocol.
    fn decrypt(&mut self, session: &mut Connection) -> io::Result<bool> {
        let mut rest = &self.bytes[self.done..];
        let before = rest.len();
        while !rest.is_empty() {
            // It reports a full buffer as an error; the plaintext has to leave first.
            let Ok(count) = session.read_tls(&mut rest) else { break };
            session.process_new_packets().map_err(io::Error::other)?;
            if count == 0 {
                // Behind the peer's "close notify" nothing counts.
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
            // What receiving left to say goes first, or it would take room from the limit.
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
            // The rest is held, and counted as such.
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
                        // Cut without "close notify": to a protocol of frames no other end than any.
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
                // Tells the session that nothing follows.
                lock(&self.session).read_tls(&mut io::empty())?;
            }
        }
    }

    fn held(&self) -> usize {
        // A sender that waits holds the lock, and then the socket's queue is full anyway.
        self.outgoing.try_lock().map_or(0, |outgoing| outgoing.bytes.len() - outgoing.done)
    }

    fn binding(&self) -> Option<[u8; 32]> {
        Some(self.binding)
    }

    fn tcp(&self) -> &Tcp {
        &self.tcp
    }
}

/// A thread that panicked in here left a session that is either whole or failed, and says so itself.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
