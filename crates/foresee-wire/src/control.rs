// SPDX-License-Identifier: Apache-2.0
//! Control messages between the two ends: plans, round ends, heartbeats, errors, requests for samples.
//!
//! They are separate from the frames, which treat a payload as bytes. A message is a struct encoded by postcard.
//! Every list and text in it has a bound, which is checked while reading, before memory is allocated. Plans and
//! sets of tensors are opaque bytes here.

mod bounded;
mod fault;
mod membership;
mod samples;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub(crate) use bounded::{ListOf, TextOf};
pub(crate) use fault::Printable;
pub use fault::{Fault, FaultCode};
pub use membership::{Change, Changed, Known, Lost, Members, Resume, Resumed};
pub use samples::{SAMPLE_REQUESTS_MAX, SampleMessage, SampleRequest};

use crate::error::FrameFault;
use crate::frame::{Header, Kind};

/// The longest plan, in bytes: a hundred thousand tensors with long names. A membership fits in the same frame.
pub const PLAN_BODY_MAX: usize = (16 << 20) - MEMBER_BYTES_MAX - 64;
/// The longest set of tensors, in bytes: a bit for each of a million.
pub const SET_BYTES_MAX: usize = 128 << 10;
/// The longest membership, in bytes: a bit for each of 65,535 ranks.
pub const MEMBER_BYTES_MAX: usize = 8 << 10;
/// Maximum number of rounds whose used tensors are known but which are not done.
pub const OPEN_ROUNDS_MAX: usize = 4;
/// The longest explanatory text, in bytes.
pub const TEXT_BYTES_MAX: usize = 512;

macro_rules! messages {
    ($($name:ident($body:ty),)*) => {
        /// A control message; each variant is a frame of the kind with the same name.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Message {
            $(#[doc = concat!("See [`", stringify!($body), "`].")] $name($body),)*
        }

        impl Message {
            /// The kind of frame that carries it.
            pub const fn kind(&self) -> Kind {
                match self {
                    $(Self::$name(_) => Kind::$name,)*
                }
            }

            /// Encode the message as a header with checksum, and a payload.
            ///
            /// # Errors
            /// A list, a text or the whole message exceeds its bound, so [`Message::decode`] would reject it.
            pub fn encode(&self, generation: u32) -> Result<(Header, Vec<u8>), FrameFault> {
                let kind = self.kind();
                let body = match self {
                    $(Self::$name(body) => to_bytes(kind, body)?,)*
                };
                let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
                Ok((Header::control(kind, generation, length).sealed(&body), body))
            }

            /// Decode the message of a frame.
            ///
            /// # Errors
            /// The kind is data or of the handshake, the checksum is wrong, or the body is not exactly one message.
            pub fn decode(header: &Header, payload: &[u8]) -> Result<Self, FrameFault> {
                let kind = header.kind;
                header.verify(payload)?;
                match kind {
                    $(Kind::$name => from_bytes(kind, payload).map(Self::$name),)*
                    _ => Err(FrameFault::Unexpected { kind, expected: "a control message" }),
                }
            }
        }
    };
}

messages! {
    Plan(Plan), RoundEnd(RoundEnd), Used(Used), Got(Got), RoundDone(RoundDone), Ping(Ping), Bye(Bye), Error(Fault),
    Ack(Ack), Resume(Resume), Resumed(Resumed), Lost(Lost), Members(Members), Known(Known), Change(Change),
    Changed(Changed), Waiting(Waiting), Samples(SampleMessage),
}

/// The tensors and settings of the exchange: a proposal of a rank, or a server's answer once all ranks agree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Membership of the plan; 0 in a proposal.
    pub generation: u32,
    /// The encoded plan, up to [`PLAN_BODY_MAX`] bytes.
    #[serde(with = "ListOf::<PLAN_BODY_MAX>")]
    pub body: Vec<u8>,
}

/// A rank has made all its pushes of `round`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundEnd {
    /// The round.
    pub round: u64,
    /// Tensors that this rank did not push in the round, as an encoded set; up to [`SET_BYTES_MAX`] bytes.
    #[serde(with = "ListOf::<SET_BYTES_MAX>")]
    pub absent: Vec<u8>,
}

/// Every rank has ended `round`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// The round.
    pub round: u64,
    /// Tensors that at least one rank pushed in the round, encoded as [`RoundEnd::absent`].
    #[serde(with = "ListOf::<SET_BYTES_MAX>")]
    pub used: Vec<u8>,
}

/// A rank has all results of `round`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Got {
    /// The round.
    pub round: u64,
}

/// Every rank has all results of `round`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundDone {
    /// The round.
    pub round: u64,
}

/// A heartbeat, which needs no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ping {
    /// Counts up from 0 on each connection.
    pub number: u64,
}

/// An orderly end: the sender closes the connection after it, which is not a failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bye {
    /// Why; up to [`TEXT_BYTES_MAX`] bytes.
    #[serde(with = "TextOf::<TEXT_BYTES_MAX>")]
    pub reason: String,
}

/// The ranks that a server has been waiting for, sent to the ranks that wait with it. It is informative only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// Which ranks, and for what, as text for users; up to [`TEXT_BYTES_MAX`] bytes.
    #[serde(with = "TextOf::<TEXT_BYTES_MAX>")]
    pub text: String,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printable(&self.text).fmt(f)
    }
}

/// A partition of a tensor was received completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// The round.
    pub round: u64,
    /// The tensor's number.
    pub tensor: u32,
    /// The partition's number in the tensor.
    pub partition: u32,
}

/// Encode `body` with postcard, within the bound of its kind.
pub(crate) fn to_bytes<T: Serialize>(kind: Kind, body: &T) -> Result<Vec<u8>, FrameFault> {
    let bytes = postcard::to_allocvec(body).map_err(|why| FrameFault::Body { kind, why: why.to_string() })?;
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    if length > kind.payload_max() {
        return Err(FrameFault::TooLong { kind, length, max: kind.payload_max() });
    }
    Ok(bytes)
}

/// Decode exactly one `T` from `bytes`.
pub(crate) fn from_bytes<T: DeserializeOwned>(kind: Kind, bytes: &[u8]) -> Result<T, FrameFault> {
    match postcard::take_from_bytes(bytes) {
        Ok((body, [])) => Ok(body),
        Ok((_, rest)) => {
            let why = format!("{} bytes follow its end", rest.len());
            Err(FrameFault::Body { kind, why })
        }
        Err(why) => Err(FrameFault::Body { kind, why: why.to_string() }),
    }
}
