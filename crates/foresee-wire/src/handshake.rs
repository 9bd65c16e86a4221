// SPDX-License-Identifier: Apache-2.0
//! Mutual authentication: both ends prove that they have the job's secret.
//!
//! ```text
//! dialler  HELLO      greeting: version, nonce, who and for what
//! listener CHALLENGE  its nonce                                   (reveals only a random number)
//! dialler  PROOF      HMAC(secret, "dialler",  greeting, both nonces, channel)
//! listener WELCOME    answer, HMAC(secret, "listener", the same, answer)
//! ```
//!
//! The dialler proves itself first, so a listener sends an unauthenticated peer nothing that depends on the
//! secret. Each nonce is drawn for one connection, so a replayed handshake proves nothing. The proof contains the
//! role of its sender, so one side's proof cannot be reflected to it. `channel` is known only to the two ends of
//! a TLS session, so under TLS a man in the middle fails. Without TLS a man in the middle can relay the four
//! messages and then impersonate either end: the secret excludes unauthenticated peers, but does not protect against a
//! hostile network.
//!
//! Until a peer is authenticated, one deadline bounds its whole handshake, and no frame may exceed 1 KiB.
//!
//! The connection is a separate type, which exists only after authentication. The caller chooses the secret and
//! admits ranks.

use std::net::SocketAddr;
use std::sync::Arc;

use foresee_units::Nanos;
use ring::hmac;

use crate::connection::{Connection, Halves};
use crate::control::{Fault, FaultCode, Message, from_bytes, to_bytes};
use crate::error::{FrameFault, WireError};
use crate::frame::{HANDSHAKE_BYTES_MAX, Header, Kind, VERSION};
use crate::hello::{Answer, Greeting, Hello, Welcome};
use crate::secret::{Secret, random};
use crate::silence::Timeouts;
use crate::socket::{self, LinkOptions};
use crate::tcp::Tcp;
use crate::tls::{Tls, TlsClient, TlsServer};
use crate::transport::{Transport, Wait};

const NONCE: usize = 32;
const PROOF: usize = 32;
/// Bytes of a refused peer that are read and discarded.
const REFUSAL_DRAIN_MAX: usize = 64 << 10;
/// First byte of a TLS session.
const TLS_FIRST: u8 = 0x16;

/// Returns the secret of the job in a HELLO, or `None` for an unknown job, which the dialler cannot distinguish
/// from a wrong secret. Called once per connection by the listener's threads; it must be fast and do no I/O.
pub type Keys = Arc<dyn Fn(&Hello) -> Option<Secret> + Send + Sync>;

/// Options of a dial.
#[derive(Clone, Debug, Default)]
pub struct DialOptions {
    /// The socket's options.
    pub link: LinkOptions,
    /// Encryption; `None`: plain TCP.
    pub tls: Option<TlsClient>,
    /// Timeouts; unacknowledged bytes end a control connection after its timeout.
    pub timeouts: Timeouts,
}

/// Connect to a listener and authenticate both ends.
///
/// Makes one attempt; the caller decides whether to wait for a server that is not up yet.
///
/// # Errors
/// [`WireError::ConnectionRefused`], [`WireError::SecretDiffers`], [`WireError::Version`], [`WireError::TlsMismatch`],
/// [`WireError::Tls`]; [`WireError::Denied`] with the listener's reason; [`WireError::Late`] at the end of `wait`.
pub fn dial(
    peer: SocketAddr,
    hello: Hello,
    secret: &Secret,
    options: &DialOptions,
    wait: Wait,
) -> Result<Connection, WireError> {
    hello.check().map_err(|fault| WireError::Refused { peer, fault })?;
    let tcp = Arc::new(socket::dial(peer, &options.link, wait)?);
    socket::set_user_timeout(&tcp, hello.role, options.timeouts.timeout);
    let transport: Arc<dyn Transport> = match &options.tls {
        Some(tls) => Arc::new(Tls::dial(tcp, tls, wait)?),
        None => tcp,
    };
    let mut halves = Halves::new(Arc::clone(&transport));
    let (welcome, nonce) = authenticate(&mut halves, transport.binding(), &hello, secret, wait)?;
    Ok(halves.into_connection(hello, welcome, nonce))
}

/// The dialler's part; returns the answer and the listener's nonce.
fn authenticate(
    halves: &mut Halves,
    binding: Option<[u8; 32]>,
    hello: &Hello,
    secret: &Secret,
    wait: Wait,
) -> Result<(Welcome, [u8; NONCE]), WireError> {
    let peer = halves.sender.link().peer();
    let malformed = |fault| WireError::Malformed { peer, fault };
    let greeting = Greeting { version: VERSION, nonce: random()?, hello: hello.clone() };
    let greeting = to_bytes(Kind::Hello, &greeting).map_err(|fault| WireError::Refused { peer, fault })?;
    send_frame(halves, Kind::Hello, &greeting, wait)?;

    let challenge = receive_frame(halves, Kind::Challenge, wait)?;
    let nonce = sized::<NONCE>(Kind::Challenge, &challenge).map_err(malformed)?;
    let transcript = Transcript { greeting: &greeting, nonce, binding };
    send_frame(halves, Kind::Proof, transcript.sign(secret, Side::Dialler, &[]).as_ref(), wait)?;

    let welcome = receive_frame(halves, Kind::Welcome, wait)?;
    let (answer, proof) = welcome.split_at_checked(welcome.len().saturating_sub(PROOF)).unwrap_or((&[], &[]));
    if !transcript.proves(secret, Side::Listener, answer, proof) {
        return Err(WireError::SecretDiffers { peer });
    }
    match from_bytes(Kind::Welcome, answer).map_err(malformed)? {
        Answer::Welcome(welcome) => Ok((welcome, nonce)),
        Answer::Refused(fault) => Err(WireError::Denied { peer, fault: Box::new(fault) }),
    }
}

/// An authenticated dialler that waits for an answer. If it is dropped without one, its connection ends.
#[derive(Debug)]
pub struct Arrival {
    halves: Halves,
    hello: Hello,
    greeting: Vec<u8>,
    nonce: [u8; NONCE],
    binding: Option<[u8; 32]>,
    secret: Secret,
    timeout: Nanos,
}

impl Arrival {
    /// The dialler's HELLO.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// The dialler's address.
    pub fn peer(&self) -> SocketAddr {
        self.halves.sender.link().peer()
    }

    /// Accept the dialler. The answer is short and the connection empty, so a `wait` of zero suffices for an
    /// honest peer.
    pub fn welcome(mut self, welcome: Welcome, wait: Wait) -> Result<Connection, WireError> {
        self.answer(&Answer::Welcome(welcome), wait)?;
        socket::set_user_timeout(self.halves.sender.link().tcp(), self.hello.role, self.timeout);
        Ok(self.halves.into_connection(self.hello, welcome, self.nonce))
    }

    /// Refuse the dialler, with an authenticated reason.
    pub fn refuse(mut self, fault: Fault, wait: Wait) -> Result<(), WireError> {
        self.answer(&Answer::Refused(fault), wait)?;
        self.halves.sender.link().tcp().finish();
        Ok(())
    }

    fn answer(&mut self, answer: &Answer, wait: Wait) -> Result<(), WireError> {
        let peer = self.peer();
        let mut answer =
            to_bytes(Kind::Welcome, answer).map_err(|fault| WireError::Refused { peer, fault })?;
        let transcript = Transcript { greeting: &self.greeting, nonce: self.nonce, binding: self.binding };
        let proof = transcript.sign(&self.secret, Side::Listener, &answer);
        answer.extend(proof.as_ref());
        send_frame(&mut self.halves, Kind::Welcome, &answer, wait)
    }
}

/// The listener's state that all connections share.
pub(crate) struct Acceptor {
    pub(crate) keys: Keys,
    pub(crate) tls: Option<TlsServer>,
    pub(crate) timeout: Nanos,
}

impl Acceptor {
    /// The listener's part, up to its decision.
    pub(crate) fn receive(&self, tcp: Arc<Tcp>, wait: Wait) -> Result<Arrival, WireError> {
        let peer = tcp.peer();
        let transport: Arc<dyn Transport> = match &self.tls {
            None => tcp,
            Some(tls) => {
                let first = tcp.peek(wait).map_err(|why| receive_error(peer, why))?;
                if first == Some(crate::frame::MAGIC) {
                    let mut halves = Halves::new(tcp);
                    let fault = Fault::new(FaultCode::Tls, "this server requires TLS; dial with it");
                    send_refusal(&mut halves, fault, wait);
                    return Err(WireError::TlsMismatch { peer, there: false });
                }
                Arc::new(Tls::accept(tcp, tls, wait)?)
            }
        };
        let mut halves = Halves::new(Arc::clone(&transport));
        match self.authenticate(&mut halves, transport.binding(), wait) {
            Ok((hello, greeting, nonce, secret)) => Ok(Arrival {
                halves,
                hello,
                greeting,
                nonce,
                binding: transport.binding(),
                secret,
                timeout: self.timeout,
            }),
            Err(fault) => {
                if let Some(reason) = reason(&fault) {
                    send_refusal(&mut halves, reason, wait);
                }
                Err(fault)
            }
        }
    }

    fn authenticate(
        &self,
        halves: &mut Halves,
        binding: Option<[u8; 32]>,
        wait: Wait,
    ) -> Result<(Hello, Vec<u8>, [u8; NONCE], Secret), WireError> {
        let peer = halves.sender.link().peer();
        let malformed = |fault| WireError::Malformed { peer, fault };
        let greeting = receive_frame(halves, Kind::Hello, wait)?;
        let Greeting { version, hello, .. } = from_bytes(Kind::Hello, &greeting).map_err(malformed)?;
        if version != VERSION {
            return Err(WireError::Version { peer, theirs: version, ours: VERSION });
        }
        hello.check().map_err(malformed)?;
        let nonce = random()?;
        send_frame(halves, Kind::Challenge, &nonce, wait)?;
        let proof = receive_frame(halves, Kind::Proof, wait)?;
        // An unknown job is checked against a random secret, so it fails as a wrong secret does.
        let secret = (self.keys)(&hello).map_or_else(Secret::draw, Ok)?;
        let transcript = Transcript { greeting: &greeting, nonce, binding };
        if !transcript.proves(&secret, Side::Dialler, &[], &proof) {
            return Err(WireError::SecretDiffers { peer });
        }
        Ok((hello, greeting, nonce, secret))
    }
}

/// The end that sends a proof.
#[derive(Clone, Copy)]
enum Side {
    Dialler,
    Listener,
}

/// The content of a proof without its sender's role. The dialler's nonce is in the greeting.
struct Transcript<'a> {
    greeting: &'a [u8],
    nonce: [u8; NONCE],
    binding: Option<[u8; 32]>,
}

impl Transcript<'_> {
    /// The bytes under the proof. Every part has a fixed length or a length prefix, so no two transcripts have
    /// the same bytes.
    fn bytes(&self, side: Side, answer: &[u8]) -> Vec<u8> {
        let side = match side {
            Side::Dialler => b"foresee-wire-1 dialler..",
            Side::Listener => b"foresee-wire-1 listener.",
        };
        let channel = self.binding.map_or(vec![0], |binding| [&[1], &binding[..]].concat());
        let length = |part: &[u8]| u32::try_from(part.len()).unwrap_or(u32::MAX).to_le_bytes();
        let (greeting, answer_length) = (length(self.greeting), length(answer));
        let parts: [&[u8]; 7] =
            [side, &channel, &self.nonce, &greeting, self.greeting, &answer_length, answer];
        parts.concat()
    }

    fn sign(&self, secret: &Secret, side: Side, answer: &[u8]) -> hmac::Tag {
        hmac::sign(secret.key(), &self.bytes(side, answer))
    }

    /// Compare in constant time.
    fn proves(&self, secret: &Secret, side: Side, answer: &[u8], proof: &[u8]) -> bool {
        hmac::verify(secret.key(), &self.bytes(side, answer), proof).is_ok()
    }
}

fn send_frame(halves: &mut Halves, kind: Kind, body: &[u8], wait: Wait) -> Result<(), WireError> {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let header = Header::control(kind, 0, length).sealed(body);
    halves.sender.send_all(&header, body, wait)
}

/// Read the body of a frame of the expected kind; at most [`HANDSHAKE_BYTES_MAX`] bytes are read and stored.
fn receive_frame(halves: &mut Halves, kind: Kind, wait: Wait) -> Result<Vec<u8>, WireError> {
    let peer = halves.sender.link().peer();
    let malformed = |fault| Err(WireError::Malformed { peer, fault });
    let header = match halves.receiver.header(wait) {
        Ok(Some(header)) => header,
        Ok(None) => return Err(WireError::Ended { peer }),
        Err(WireError::Malformed { fault: FrameFault::Version { found }, .. }) => {
            return Err(WireError::Version { peer, theirs: found, ours: VERSION });
        }
        Err(WireError::Malformed { fault: FrameFault::Magic { found: TLS_FIRST }, .. }) => {
            return Err(WireError::TlsMismatch { peer, there: true });
        }
        Err(fault) => return Err(fault),
    };
    if header.length > HANDSHAKE_BYTES_MAX {
        let (kind, length, max) = (header.kind, header.length, HANDSHAKE_BYTES_MAX);
        return malformed(FrameFault::TooLong { kind, length, max });
    }
    if header.kind == Kind::Error && kind != Kind::Hello {
        let Message::Error(fault) = halves.receiver.message(wait)? else { unreachable!("the kind is ERROR") };
        return Err(match fault.code {
            FaultCode::Secret => WireError::SecretDiffers { peer },
            FaultCode::Tls => WireError::TlsMismatch { peer, there: true },
            _ => WireError::Denied { peer, fault: Box::new(fault) },
        });
    }
    if header.kind != kind {
        return malformed(FrameFault::Unexpected { kind: header.kind, expected: kind.word() });
    }
    let mut body = vec![0; header.length as usize];
    halves.receiver.payload(&mut body, wait)?;
    Ok(body)
}

fn sized<const N: usize>(kind: Kind, body: &[u8]) -> Result<[u8; N], FrameFault> {
    body.try_into().map_err(|_| FrameFault::Length { kind, length: N, given: body.len() })
}

/// The reason that a refused peer is sent; `None` unless it uses this protocol and can correct the fault.
fn reason(fault: &WireError) -> Option<Fault> {
    match fault {
        WireError::Version { theirs, ours, .. } => {
            let text = format!("version {theirs} there, version {ours} here; install one version on both");
            Some(Fault::new(FaultCode::Version, text))
        }
        WireError::SecretDiffers { .. } => Some(Fault::new(FaultCode::Secret, "the secrets differ")),
        WireError::TlsMismatch { there: true, .. } => {
            Some(Fault::new(FaultCode::Tls, "this server has no TLS; dial without it"))
        }
        WireError::Malformed { fault: FrameFault::Body { .. }, .. } => {
            Some(Fault::new(FaultCode::Protocol, fault.to_string()))
        }
        _ => None,
    }
}

/// Send a reason and end the connection such that the reason arrives: closing a socket with unread bytes discards
/// the bytes sent last.
fn send_refusal(halves: &mut Halves, fault: Fault, wait: Wait) {
    if halves.sender.send_message(&Message::Error(fault), 0, wait).is_err() {
        return;
    }
    let link = halves.sender.link();
    link.tcp().finish();
    let mut sink = [0; 4096];
    let mut read = 0;
    while read < REFUSAL_DRAIN_MAX {
        match link.tcp().receive(&mut [std::io::IoSliceMut::new(&mut sink)], wait, false) {
            Ok(0) | Err(_) => return,
            Ok(count) => read += count,
        }
    }
}

fn receive_error(peer: SocketAddr, why: std::io::Error) -> WireError {
    match why.kind() {
        std::io::ErrorKind::TimedOut | std::io::ErrorKind::WouldBlock => {
            WireError::Late { peer, what: "send anything" }
        }
        _ => WireError::Io { peer, doing: "receiving from", why },
    }
}

#[cfg(test)]
mod process_tests;
#[cfg(test)]
mod tests;
