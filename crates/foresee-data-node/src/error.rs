// SPDX-License-Identifier: Apache-2.0
//! Errors of joining the host of a node's cache, with the cause, the value and the remedy.
//!
//! No error holds a storage option or a URI: they may contain credentials.

use std::io;
use std::path::PathBuf;

use foresee_units::Bytes;

use crate::address::{DirectoryFault, SOCKET_PATH_BYTES_MAX};
use crate::attach::{PROTOCOL_VERSION, RefusalCode};
use crate::memory::{IndexFault, RING_BYTES_MAX, RING_BYTES_MIN, SLAB_BYTES_MAX, SealFault};
use crate::peer::OVERFLOW_UID;
use crate::ring::RingError;

/// Failure to create, find, join or use the cache of a node.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages show the fields by their names")]
#[non_exhaustive]
pub enum NodeError {
    /// A slab without data, or one with more than a location can address.
    #[error(
        "a node's cache of {data} is impossible; use 1 byte to {max} (`ram=`, `--ram` of a service)",
        max = Bytes::new(SLAB_BYTES_MAX)
    )]
    SlabShape { data: Bytes },
    /// A slab larger than the memory that the host may use.
    #[error(
        "a node's cache of {bytes} exceeds the {available} that this process may still use; lower `ram=` (`--ram` of a service), or raise the memory limit of the job or container"
    )]
    SlabTooLarge {
        bytes: Bytes,
        /// What the limit of the control group leaves.
        available: Bytes,
    },
    /// The system refused memory that a slab or a ring needs.
    #[error(
        "the system refused {bytes} of shared memory: {why}; lower `ram=` (`--ram` of a service), or raise the memory limit of the job or container"
    )]
    NoMemory {
        bytes: Bytes,
        #[source]
        why: io::Error,
    },
    /// A range that was used before it was allocated.
    #[error("bytes {offset} to {end} of the slab are not allocated; call `commit` first")]
    NotCommitted {
        offset: u64,
        /// The end of the range, exclusive.
        end: u64,
    },
    /// A range outside of the slab.
    #[error(
        "bytes {offset} + {length} lie outside the slab of {data}; install one version of Foresee on both ends"
    )]
    OutsideSlab { offset: u64, length: u64, data: Bytes },
    /// A sample that the data set does not have.
    #[error("sample {sample} is not one of the {samples} of the data set; report this defect")]
    NoSample { sample: u64, samples: u64 },
    /// A descriptor that is not the expected sealed memory.
    #[error(
        "the descriptor of the {what} is refused: {fault}; is the host of the cache a Foresee process of the same version?"
    )]
    NotSealed {
        /// The expected memory.
        what: &'static str,
        #[source]
        fault: SealFault,
    },
    /// A descriptor that is not the index file of a data set.
    #[error(
        "the descriptor of the index is refused: {0}; is the consumer a Foresee process of the same version?"
    )]
    Index(#[from] IndexFault),
    /// A ring of another size than the protocol allows.
    #[error("a ring of {bytes} bytes is refused; use a power of two from {min} to {max}", min = RING_BYTES_MIN, max = RING_BYTES_MAX)]
    RingSize { bytes: u32 },
    /// The rings of the host have another version or size.
    #[error(
        "the rings of the host of the cache are refused: {0}; install one version of Foresee on both ends"
    )]
    Ring(#[from] RingError),
    /// A peer of another user.
    #[error("the other end runs as uid {uid}, and this process as uid {ours}; run both as one user")]
    OtherUid { uid: u32, ours: u32 },
    /// A peer whose user is unknown in this user namespace.
    #[error("the other end runs as the overflow uid {uid}, which stands for every unmapped user; run both in one user namespace", uid = OVERFLOW_UID)]
    OverflowUid,
    /// The peer ended before it could be identified.
    #[error("the process at the other end has ended; attach again")]
    PeerEnded,
    /// An environment variable with an invalid value.
    #[error("{name}={value:?} is invalid; {remedy}")]
    Setting {
        name: &'static str,
        value: String,
        /// The allowed values.
        remedy: &'static str,
    },
    /// A socket path that the system cannot represent.
    #[error("the socket path {path} has {} bytes, and at most {max} fit; use a shorter path (`--socket`, FORESEE_NODE)", .path.as_os_str().len(), max = SOCKET_PATH_BYTES_MAX)]
    PathTooLong { path: PathBuf },
    /// A directory in which no socket may be created or used.
    #[error("the directory {path} is refused for the socket of the node's cache: {fault}")]
    Directory {
        path: PathBuf,
        #[source]
        fault: DirectoryFault,
    },
    /// No socket exists at the address.
    #[error(
        "no host of a node's cache is at {path}; start `foresee node`, or set FORESEE_NODE to its socket"
    )]
    NoHost { path: PathBuf },
    /// A socket whose host has ended.
    #[error(
        "the host of the cache at {path} has ended and left its socket; start `foresee node` again, which removes it"
    )]
    Stale { path: PathBuf },
    /// The system forbids the connection.
    #[error("access to {path} is not permitted: {why}; run as the user who started the host of the cache")]
    NotPermitted {
        path: PathBuf,
        #[source]
        why: io::Error,
    },
    /// A live host, or one that is starting, has the path.
    #[error(
        "another host of a node's cache has {path}; attach to it, stop it, or use another path (`--socket`, FORESEE_NODE)"
    )]
    InUse { path: PathBuf },
    /// A file that is not a socket has the path.
    #[error(
        "{path} exists and is no socket of a node's cache; remove it, or use another path (`--socket`, FORESEE_NODE)"
    )]
    NotASocket { path: PathBuf },
    /// The other end has another version of the protocol.
    #[error("the other end has version {theirs} of the node protocol, and this build has version {ours}; install one version of Foresee on both", ours = PROTOCOL_VERSION)]
    OtherVersion { theirs: u16 },
    /// The host refused, with its reason.
    #[error("the host of the cache refused ({code:?}): {text:?}")]
    Refused { code: RefusalCode, text: String },
    /// The other end sent something that is no message of this version, or an unexpected one.
    #[error("the other end sent an invalid message: {why}; is another program at this socket?")]
    Malformed { why: String },
    /// A message above the bound.
    #[error(
        "a message of {bytes} bytes exceeds the bound of {max}; shorten the names, URI or storage options"
    )]
    TooLong {
        bytes: usize,
        /// The bound of its kind.
        max: usize,
    },
    /// The other end closed the connection.
    #[error("the other end closed the connection of the node's cache; see its log for the reason")]
    Ended,
    /// A deadline passed. Nothing was lost, and the call may be repeated unless the connection was being established.
    #[error("the other end did not {what} before the deadline; check whether it is stopped or overloaded")]
    Late {
        /// The expected event.
        what: &'static str,
    },
    /// A resource of the parent process was used in a forked child.
    #[error("the connection to a node's cache does not survive a fork: attach again in the child")]
    Forked,
    /// The table of descriptors is full.
    #[error("this process already has {max} descriptors of a node's cache; detach consumers first")]
    TooManyDescriptors { max: usize },
    /// The system reported another failure.
    #[error("{doing} failed: {why}")]
    Io {
        /// The operation.
        doing: &'static str,
        #[source]
        why: io::Error,
    },
}

impl NodeError {
    /// Return a function that turns a system error into an error that names the operation.
    pub(crate) fn io<E: Into<io::Error>>(doing: &'static str) -> impl Fn(E) -> Self {
        move |why| Self::Io { doing, why: why.into() }
    }
}
