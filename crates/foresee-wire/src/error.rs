// SPDX-License-Identifier: Apache-2.0
//! What can go wrong on a wire, with the peer's address and the remedy.
//!
//! [`FrameFault`] is apart from [`WireError`] because bytes are judged without a connection, in fuzzing too.
//! Refuses to say what a failure means to a run: whether a lost peer ends it is decided above.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use foresee_units::Nanos;

use crate::control::{Fault, Printable};
use crate::frame::Kind;

/// Bytes that are no frame or no message of this version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameFault {
    /// The first byte is another protocol's.
    #[error("begins with byte {found:#04x}, and frames begin with {expected:#04x}; is another service there?", expected = crate::frame::MAGIC)]
    Magic {
        /// The byte.
        found: u8,
    },
    /// A version that this build does not speak.
    #[error("is of version {found}, and this build speaks version {ours}; install one version on both", ours = crate::frame::VERSION)]
    Version {
        /// Theirs.
        found: u8,
    },
    /// A type that no kind of frame has.
    #[error("has the unknown type {found}")]
    UnknownKind {
        /// The byte.
        found: u8,
    },
    /// A bit of the flags that means nothing in this version.
    #[error("{kind} has the unknown flags {found:#04x}")]
    UnknownFlags {
        /// Kind of frame.
        kind: Kind,
        /// The unknown bits, in place.
        found: u8,
    },
    /// A number that no element type has.
    #[error("{kind} has the unknown dtype {found}")]
    UnknownDtype {
        /// Kind of frame.
        kind: Kind,
        /// The number.
        found: u8,
    },
    /// A field has a value that its kind of frame does not allow.
    #[error("{kind} has {field} {found}; {rule}")]
    Field {
        /// Kind of frame.
        kind: Kind,
        /// Name of the field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// What it may be.
        rule: &'static str,
    },
    /// A payload longer than its kind may be.
    #[error("{kind} announces {length} bytes, and may have {max}")]
    TooLong {
        /// Kind of frame.
        kind: Kind,
        /// Announced bytes.
        length: u32,
        /// The most that its kind may have.
        max: u32,
    },
    /// The bytes are not those that were sent.
    #[error(
        "{kind} of tensor {tensor}, packet {packet} has checksum {found:#010x}, and its bytes give {computed:#010x}; they were damaged on the way"
    )]
    Checksum {
        /// Kind of frame.
        kind: Kind,
        /// The tensor's number.
        tensor: u32,
        /// The packet's number.
        packet: u32,
        /// The sum in the header.
        found: u32,
        /// The sum of the bytes.
        computed: u32,
    },
    /// A payload of another length than its header or the caller's buffer says.
    #[error("{kind} has {length} bytes, and {given} were given")]
    Length {
        /// Kind of frame.
        kind: Kind,
        /// What the header says.
        length: usize,
        /// The caller's slice.
        given: usize,
    },
    /// A message that cannot be read or written.
    #[error("{kind} has a body that is wrong: {why}")]
    Body {
        /// Kind of frame.
        kind: Kind,
        /// What is wrong.
        why: String,
    },
    /// A kind of frame that has no place here.
    #[error("{kind} came where {expected} belongs")]
    Unexpected {
        /// What came.
        kind: Kind,
        /// What may come.
        expected: &'static str,
    },
}

/// A connection that cannot be made, proved or used any longer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The peer sent what is no frame, no message, or not its turn.
    #[error("a frame from {peer} {fault}")]
    Malformed {
        /// The peer.
        peer: SocketAddr,
        /// What is wrong with the bytes.
        #[source]
        fault: FrameFault,
    },
    /// What was sent is on its way for as long as a dead peer is given, and nobody says that it came.
    #[error("{peer} has acknowledged nothing for {lasts}: something on the way may drop this connection")]
    Unacknowledged {
        /// The peer.
        peer: SocketAddr,
        /// Since when.
        lasts: Nanos,
    },
    /// The caller asked for a frame that cannot be sent or received so.
    #[error("a frame for {peer} cannot pass: it {fault}")]
    Refused {
        /// The peer.
        peer: SocketAddr,
        /// What is wrong with it.
        #[source]
        fault: FrameFault,
    },
    /// A frame is half written, and only its rest may follow.
    #[error("a frame for {peer} is half written; `resume` it before another begins")]
    HalfWritten {
        /// The peer.
        peer: SocketAddr,
    },
    /// The connection ended in the middle of a frame.
    #[error(
        "{peer} ended the connection {missing} bytes before the end of a {part}; look there for the reason"
    )]
    Cut {
        /// The peer.
        peer: SocketAddr,
        /// What was being read.
        part: &'static str,
        /// Bytes that did not come.
        missing: usize,
    },
    /// The connection ended between two frames.
    #[error("{peer} ended the connection; look there for the reason")]
    Ended {
        /// The peer.
        peer: SocketAddr,
    },
    /// This side closed the connection.
    #[error("the connection to {peer} was closed here")]
    Closed {
        /// The peer.
        peer: SocketAddr,
    },
    /// A deadline passed; what was read or written so far is kept, and the call may be repeated.
    #[error("{peer} did not {what} before the deadline")]
    Late {
        /// The peer.
        peer: SocketAddr,
        /// What was awaited.
        what: &'static str,
    },
    /// The system reports a failure of the connection.
    #[error("{doing} {peer} failed: {why}")]
    Io {
        /// The peer.
        peer: SocketAddr,
        /// What was tried, as in "reading from".
        doing: &'static str,
        /// The system's words.
        #[source]
        why: io::Error,
    },
    /// Nothing answers at the address.
    #[error("nothing listens at {peer}; start the server first, and check the address and its port")]
    NobodyThere {
        /// The address.
        peer: SocketAddr,
    },
    /// Another process listens at the address.
    #[error("{address} is in use by another process; choose another port, or end that process")]
    PortInUse {
        /// The address.
        address: SocketAddr,
    },
    /// An address that this machine cannot use.
    #[error("{address} cannot be used here: {why}; give an address of this machine")]
    Address {
        /// The address.
        address: SocketAddr,
        /// The system's words.
        #[source]
        why: io::Error,
    },
    /// The two ends do not share a secret.
    #[error("the secret of {peer} differs from the one here; give both ends of the job one secret, by its file or by {env}", env = crate::secret::ENV)]
    SecretDiffers {
        /// The peer.
        peer: SocketAddr,
    },
    /// The two ends speak different versions.
    #[error("{peer} speaks version {theirs}, and this build version {ours}; install one version on both")]
    Version {
        /// The peer.
        peer: SocketAddr,
        /// Its version.
        theirs: u8,
        /// Ours.
        ours: u8,
    },
    /// The peer said no, in its words.
    #[error("{peer} refused: {}", Printable(&.fault.text))]
    Denied {
        /// The peer.
        peer: SocketAddr,
        /// Its reason.
        fault: Box<Fault>,
    },
    /// One end encrypts, and the other does not.
    #[error("{peer} {}; start both ends with TLS, or both without", if *.there { "wants TLS, which is off here" } else { "does not speak TLS, which is on here" })]
    TlsMismatch {
        /// The peer.
        peer: SocketAddr,
        /// Whether it is the peer that encrypts.
        there: bool,
    },
    /// Encryption failed: a certificate that is not trusted, or bytes that were changed.
    #[error("TLS with {peer} failed: {why}")]
    Tls {
        /// The peer.
        peer: SocketAddr,
        /// What failed.
        #[source]
        why: rustls::Error,
    },
    /// A file of TLS cannot be used.
    #[error("{path} cannot be used for TLS: {why}")]
    TlsFile {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// A certificate or a name that TLS cannot work with.
    #[error("TLS cannot be set up: {why}")]
    TlsSetup {
        /// Why.
        why: String,
    },
    /// A secret's file cannot be read.
    #[error("the secret cannot be read from {path}: {why}")]
    SecretFile {
        /// The file.
        path: PathBuf,
        /// The system's words.
        #[source]
        why: io::Error,
    },
    /// A secret's file that others may read.
    #[error(
        "{path} has mode {mode:04o}, so others can read the secret; run `chmod 600` on it, and draw a new secret"
    )]
    SecretExposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A secret that is too short, too long, or not there.
    #[error("the secret of {origin} has {bytes} bytes, and needs {min} to {max}; draw one, as in `openssl rand -hex 32`", min = crate::secret::SECRET_BYTES_MIN, max = crate::secret::SECRET_BYTES_MAX)]
    SecretLength {
        /// Where it came from.
        origin: String,
        /// Its length.
        bytes: usize,
    },
    /// No secret in the environment.
    #[error("{env} is not set; set it to the job's secret, or give the secret's file", env = crate::secret::ENV)]
    NoSecret,
    /// A congestion control that this machine does not offer.
    #[error("congestion control {name:?} is not to be had here: {why}; choose one of {offered}")]
    Congestion {
        /// The name as asked for.
        name: String,
        /// The system's words.
        #[source]
        why: io::Error,
        /// What the system offers.
        offered: String,
    },
    /// The system gives no more of something.
    #[error("{doing} failed: {why}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// The system's words.
        #[source]
        why: io::Error,
    },
    /// Proofs need random numbers, and the system gave none.
    #[error("the system gives no random numbers")]
    NoRandom,
    /// A setting outside its range.
    #[error("{name} of {found} is outside {range}")]
    Setting {
        /// Its name.
        name: &'static str,
        /// Its value.
        found: Nanos,
        /// What it may be.
        range: &'static str,
    },
}

impl WireError {
    /// Whether a deadline passed and the same call may be made again.
    pub fn is_late(&self) -> bool {
        matches!(self, Self::Late { .. })
    }

    /// Whether nothing is heard of the peer's machine any more, for as long as a dead peer is given: a connection that breaks
    /// otherwise was ended by somebody.
    pub fn is_silence(&self) -> bool {
        use io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
        match self {
            Self::Unacknowledged { .. } => true,
            Self::Io { why, .. } => matches!(why.kind(), TimedOut | HostUnreachable | NetworkUnreachable),
            _ => false,
        }
    }
}
