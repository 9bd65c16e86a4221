// SPDX-License-Identifier: Apache-2.0
//! Errors of connections and frames, with the peer's address and the remedy.
//!
//! [`FrameFault`] is separate from [`WireError`] because bytes are checked without a connection, in fuzzing too.
//! The caller decides whether a failure ends a run.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use foresee_units::Nanos;

use crate::control::{Fault, Printable};
use crate::frame::Kind;

/// A fault of bytes that are not a frame or message of this version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages show the fields by their names")]
#[non_exhaustive]
pub enum FrameFault {
    /// The first byte belongs to another protocol.
    #[error("it begins with byte {found:#04x}, and frames begin with {expected:#04x}; is another service there?", expected = crate::frame::MAGIC)]
    Magic { found: u8 },
    /// A version that this build does not support.
    #[error("it has version {found}, and this build has version {ours}; install one version on both", ours = crate::frame::VERSION)]
    Version { found: u8 },
    /// An unknown frame type.
    #[error("it has the unknown type {found}")]
    UnknownKind { found: u8 },
    /// An unknown flag bit.
    #[error("{kind} has the unknown flags {found:#04x}")]
    UnknownFlags {
        kind: Kind,
        /// The unknown bits, at their positions.
        found: u8,
    },
    /// An unknown element type.
    #[error("{kind} has the unknown dtype {found}")]
    UnknownDtype { kind: Kind, found: u8 },
    /// A value that the kind of frame does not allow.
    #[error("{kind} has {field} {found}; {rule}")]
    Field {
        kind: Kind,
        field: &'static str,
        found: u64,
        /// The allowed values.
        rule: &'static str,
    },
    /// A payload that exceeds the bound of its kind.
    #[error("{kind} announces {length} bytes; the maximum is {max}")]
    TooLong {
        kind: Kind,
        length: u32,
        /// The bound of its kind.
        max: u32,
    },
    /// The checksum does not match.
    #[error(
        "{kind} of tensor {tensor}, packet {packet} has checksum {found:#010x}, and its bytes give {computed:#010x}; the frame was damaged in transit"
    )]
    Checksum {
        kind: Kind,
        tensor: u32,
        packet: u32,
        /// The checksum in the header.
        found: u32,
        /// The computed checksum.
        computed: u32,
    },
    /// A payload whose length differs from its header or from the caller's buffer.
    #[error("{kind} has {length} bytes, and {given} were given")]
    Length {
        kind: Kind,
        /// The length in the header.
        length: usize,
        /// The length of the caller's slice.
        given: usize,
    },
    /// A message that cannot be encoded or decoded.
    #[error("{kind} has an invalid body: {why}")]
    Body { kind: Kind, why: String },
    /// An unexpected kind of frame.
    #[error("received {kind} instead of {expected}")]
    Unexpected {
        kind: Kind,
        /// The expected kinds.
        expected: &'static str,
    },
}

/// Failure to establish, authenticate or use a connection.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages show the fields by their names")]
#[non_exhaustive]
pub enum WireError {
    /// The peer sent bytes that are not a valid frame or message, or an unexpected one.
    #[error("a frame from {peer} is invalid: {fault}")]
    Malformed {
        peer: SocketAddr,
        #[source]
        fault: FrameFault,
    },
    /// Sent bytes were not acknowledged within the timeout of a dead peer.
    #[error(
        "{peer} has acknowledged nothing for {lasts}; check whether a firewall or NAT drops this connection"
    )]
    Unacknowledged {
        peer: SocketAddr,
        /// Duration of the silence.
        lasts: Nanos,
    },
    /// The caller requested a frame that cannot be sent or received.
    #[error("a frame for {peer} is refused: {fault}")]
    Refused {
        peer: SocketAddr,
        #[source]
        fault: FrameFault,
    },
    /// A frame is half written, and must be completed first.
    #[error("a frame for {peer} is half written; call `resume` before another frame")]
    HalfWritten { peer: SocketAddr },
    /// The connection ended within a frame.
    #[error(
        "{peer} ended the connection {missing} bytes before the end of a {part}; see its log for the reason"
    )]
    Cut {
        peer: SocketAddr,
        /// The part that was being read.
        part: &'static str,
        missing: usize,
    },
    /// The connection ended between two frames.
    #[error("{peer} ended the connection; see its log for the reason")]
    Ended { peer: SocketAddr },
    /// This side closed the connection.
    #[error("the connection to {peer} was closed here")]
    Closed { peer: SocketAddr },
    /// A deadline passed. Bytes read or written so far are retained, and the call may be repeated.
    #[error("{peer} did not {what} before the deadline")]
    Late {
        peer: SocketAddr,
        /// The expected event.
        what: &'static str,
    },
    /// The system reported a failure of the connection.
    #[error("{doing} {peer} failed: {why}")]
    Io {
        peer: SocketAddr,
        /// The operation, as in "reading from".
        doing: &'static str,
        #[source]
        why: io::Error,
    },
    /// No process listens at the address.
    #[error("nothing listens at {peer}; start the server first, and check the address and its port")]
    ConnectionRefused { peer: SocketAddr },
    /// Another process listens at the address.
    #[error("{address} is in use by another process; choose another port, or end that process")]
    PortInUse { address: SocketAddr },
    /// The address does not belong to this node.
    #[error("{address} cannot be used here: {why}; give an address of this host")]
    Address {
        address: SocketAddr,
        #[source]
        why: io::Error,
    },
    /// The two ends have different secrets.
    #[error("the secret of {peer} differs from the one here; give both ends of the job one secret, by its file or by {env}", env = crate::secret::ENV)]
    SecretDiffers { peer: SocketAddr },
    /// The two ends have different versions.
    #[error("{peer} has version {theirs}, and this build has version {ours}; install one version on both")]
    Version { peer: SocketAddr, theirs: u8, ours: u8 },
    /// The peer refused the connection, with its reason.
    #[error("{peer} refused: {}", Printable(&.fault.text))]
    Denied { peer: SocketAddr, fault: Box<Fault> },
    /// Only one end uses TLS.
    #[error("{peer} {}; start both ends with TLS, or both without", if *.there { "uses TLS, which is off here" } else { "does not use TLS, which is on here" })]
    TlsMismatch {
        peer: SocketAddr,
        /// Whether the peer is the end that uses TLS.
        there: bool,
    },
    /// TLS failed: an untrusted certificate, or modified bytes.
    #[error("TLS with {peer} failed: {why}")]
    Tls {
        peer: SocketAddr,
        #[source]
        why: rustls::Error,
    },
    /// A TLS file is unusable.
    #[error("{path} cannot be used for TLS: {why}")]
    TlsFile { path: PathBuf, why: String },
    /// A certificate or a name that TLS does not accept.
    #[error("TLS cannot be set up: {why}")]
    TlsSetup { why: String },
    /// A secret's file cannot be read.
    #[error("the secret cannot be read from {path}: {why}")]
    SecretFile {
        path: PathBuf,
        #[source]
        why: io::Error,
    },
    /// A secret's file that other users may access.
    #[error(
        "{path} has mode {mode:04o}, so others can read the secret; run `chmod 600` on it, and draw a new secret"
    )]
    SecretExposed {
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A secret that is missing, too short or too long.
    #[error("the secret of {origin} has {bytes} bytes, and needs {min} to {max}; draw one, as in `openssl rand -hex 32`", min = crate::secret::SECRET_BYTES_MIN, max = crate::secret::SECRET_BYTES_MAX)]
    SecretLength {
        /// Its source.
        origin: String,
        bytes: usize,
    },
    /// The environment has no secret.
    #[error("{env} is not set; set it to the job's secret, or give the secret's file", env = crate::secret::ENV)]
    NoSecret,
    /// A congestion control that this node does not offer.
    #[error("congestion control {name:?} is not available here: {why}; choose one of {offered}")]
    Congestion {
        name: String,
        #[source]
        why: io::Error,
        /// The names that the system offers.
        offered: String,
    },
    /// A system resource is exhausted.
    #[error("{doing} failed: {why}")]
    System {
        doing: &'static str,
        #[source]
        why: io::Error,
    },
    /// The system returned no random numbers, which proofs need.
    #[error("the system returned no random numbers")]
    NoRandom,
    /// A setting outside its range.
    #[error("{name} of {found} is outside {range}")]
    Setting {
        name: &'static str,
        found: Nanos,
        /// The allowed range.
        range: &'static str,
    },
}

impl WireError {
    /// Whether a deadline passed, so that the same call may be repeated.
    pub fn is_late(&self) -> bool {
        matches!(self, Self::Late { .. })
    }

    /// Whether the peer's node was silent for the timeout of a dead peer. Other failures of a connection have an
    /// active cause at the peer.
    pub fn is_silence(&self) -> bool {
        use io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
        match self {
            Self::Unacknowledged { .. } => true,
            Self::Io { why, .. } => matches!(why.kind(), TimedOut | HostUnreachable | NetworkUnreachable),
            _ => false,
        }
    }
}
