// SPDX-License-Identifier: Apache-2.0
//! What the two ends tell each other beside the data: plans, ends of rounds, signs of life, errors.
//!
//! Apart from the frames, which know nothing of their payload: a message is a struct, its bytes are postcard's, and
//! every list and text in it has a bound that is kept while reading, before memory is taken.
//!
//! Refuses to judge a plan or a round: both are bytes here, in the form of those who exchange.

mod bounded;
mod fault;
mod membership;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub(crate) use bounded::{ListOf, TextOf};
pub(crate) use fault::Printable;
pub use fault::{Fault, FaultCode};
pub use membership::{Change, Changed, Known, Lost, Members, Resume, Resumed};

use crate::error::FrameFault;
use crate::frame::{Header, Kind};

/// The longest plan, in bytes: a hundred thousand tensors with long names. A membership fits beside it.
pub const PLAN_BODY_MAX: usize = (16 << 20) - MEMBER_BYTES_MAX - 64;
/// The longest set of tensors, in bytes: a bit for each of a million.
pub const SET_BYTES_MAX: usize = 128 << 10;
/// The longest membership, in bytes: a bit for each of 65,535 ranks.
pub const MEMBER_BYTES_MAX: usize = 8 << 10;
/// The most rounds of which anybody knows what they used and not that they are done.
pub const OPEN_ROUNDS_MAX: usize = 4;
/// The longest text that explains something, in bytes.
pub const TEXT_BYTES_MAX: usize = 512;

/// A control message; each is a frame of the kind of its name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Message {
    /// What will be exchanged, and how.
    Plan(Plan),
    /// A rank pushes no more in a round.
    RoundEnd(RoundEnd),
    /// Which tensors anybody pushed.
    Used(Used),
    /// A rank has landed everything of a round.
    Got(Got),
    /// All ranks have: kept gradients may go.
    RoundDone(RoundDone),
    /// Sign of life.
    Ping(Ping),
    /// An orderly end.
    Bye(Bye),
    /// What went wrong.
    Error(Fault),
    /// A partition arrived.
    Ack(Ack),
    /// A rank comes to a server that took the place of a lost one.
    Resume(Resume),
    /// Such a server goes on.
    Resumed(Resumed),
    /// A rank is lost, and the job goes on without it.
    Lost(Lost),
    /// Who is left.
    Members(Members),
    /// What one of them knows.
    Known(Known),
    /// What all of them go by.
    Change(Change),
    /// A server goes by it.
    Changed(Changed),
    /// Whom a server has been waiting for.
    Waiting(Waiting),
}

/// What will be exchanged, and how: a proposal of a rank, or a server's answer once all ranks agree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Membership under which the plan holds; 0 in a proposal.
    pub generation: u32,
    /// The plan in the form of those who exchange; up to [`PLAN_BODY_MAX`] bytes.
    #[serde(with = "ListOf::<PLAN_BODY_MAX>")]
    pub body: Vec<u8>,
}

/// A rank pushes no more in `round`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundEnd {
    /// The round.
    pub round: u64,
    /// Tensors that this rank did not push in it, as a set in the form of those who exchange; up to
    /// [`SET_BYTES_MAX`] bytes.
    #[serde(with = "ListOf::<SET_BYTES_MAX>")]
    pub absent: Vec<u8>,
}

/// Every rank has ended `round`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// The round.
    pub round: u64,
    /// Tensors that at least one rank pushed in it, as [`RoundEnd::absent`] is.
    #[serde(with = "ListOf::<SET_BYTES_MAX>")]
    pub used: Vec<u8>,
}

/// A rank has landed everything of `round`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Got {
    /// The round.
    pub round: u64,
}

/// Every rank has landed everything of `round`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundDone {
    /// The round.
    pub round: u64,
}

/// Sign of life; whoever hears one need not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ping {
    /// Counts up from 0 on each connection.
    pub number: u64,
}

/// An orderly end: the connection closes behind it, and that is no failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bye {
    /// Why; up to [`TEXT_BYTES_MAX`] bytes.
    #[serde(with = "TextOf::<TEXT_BYTES_MAX>")]
    pub reason: String,
}

/// Whom a server has been waiting for, told to ranks that wait with it. Nobody has to act on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// Which ranks, and for what, for people; up to [`TEXT_BYTES_MAX`] bytes.
    #[serde(with = "TextOf::<TEXT_BYTES_MAX>")]
    pub text: String,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printable(&self.text).fmt(f)
    }
}

/// A partition of a tensor arrived whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// The round.
    pub round: u64,
    /// The tensor's number.
    pub tensor: u32,
    /// The partition's number in the tensor.
    pub partition: u32,
}

impl Message {
    /// The kind of frame that carries it.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Plan(_) => Kind::Plan,
            Self::RoundEnd(_) => Kind::RoundEnd,
            Self::Used(_) => Kind::Used,
            Self::Got(_) => Kind::Got,
            Self::RoundDone(_) => Kind::RoundDone,
            Self::Ping(_) => Kind::Ping,
            Self::Bye(_) => Kind::Bye,
            Self::Error(_) => Kind::Error,
            Self::Ack(_) => Kind::Ack,
            Self::Resume(_) => Kind::Resume,
            Self::Resumed(_) => Kind::Resumed,
            Self::Lost(_) => Kind::Lost,
            Self::Members(_) => Kind::Members,
            Self::Known(_) => Kind::Known,
            Self::Change(_) => Kind::Change,
            Self::Changed(_) => Kind::Changed,
            Self::Waiting(_) => Kind::Waiting,
        }
    }

    /// Header, with its checksum, and payload of the message.
    ///
    /// # Errors
    /// A list, a text or the whole is longer than its bound; nothing that [`Message::decode`] refuses is made.
    pub fn encode(&self, generation: u32) -> Result<(Header, Vec<u8>), FrameFault> {
        let kind = self.kind();
        let body = match self {
            Self::Plan(body) => to_bytes(kind, body),
            Self::RoundEnd(body) => to_bytes(kind, body),
            Self::Used(body) => to_bytes(kind, body),
            Self::Got(body) => to_bytes(kind, body),
            Self::RoundDone(body) => to_bytes(kind, body),
            Self::Ping(body) => to_bytes(kind, body),
            Self::Bye(body) => to_bytes(kind, body),
            Self::Error(body) => to_bytes(kind, body),
            Self::Ack(body) => to_bytes(kind, body),
            Self::Resume(body) => to_bytes(kind, body),
            Self::Resumed(body) => to_bytes(kind, body),
            Self::Lost(body) => to_bytes(kind, body),
            Self::Members(body) => to_bytes(kind, body),
            Self::Known(body) => to_bytes(kind, body),
            Self::Change(body) => to_bytes(kind, body),
            Self::Changed(body) => to_bytes(kind, body),
            Self::Waiting(body) => to_bytes(kind, body),
        }?;
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        Ok((Header::control(kind, generation, length).sealed(&body), body))
    }

    /// The message of a frame.
    ///
    /// # Errors
    /// The kind is data or of the handshake, the checksum is wrong, or the body is not exactly one message.
    pub fn decode(header: &Header, payload: &[u8]) -> Result<Self, FrameFault> {
        let kind = header.kind;
        header.verify(payload)?;
        Ok(match kind {
            Kind::Plan => Self::Plan(from_bytes(kind, payload)?),
            Kind::RoundEnd => Self::RoundEnd(from_bytes(kind, payload)?),
            Kind::Used => Self::Used(from_bytes(kind, payload)?),
            Kind::Got => Self::Got(from_bytes(kind, payload)?),
            Kind::RoundDone => Self::RoundDone(from_bytes(kind, payload)?),
            Kind::Ping => Self::Ping(from_bytes(kind, payload)?),
            Kind::Bye => Self::Bye(from_bytes(kind, payload)?),
            Kind::Error => Self::Error(from_bytes(kind, payload)?),
            Kind::Ack => Self::Ack(from_bytes(kind, payload)?),
            Kind::Resume => Self::Resume(from_bytes(kind, payload)?),
            Kind::Resumed => Self::Resumed(from_bytes(kind, payload)?),
            Kind::Lost => Self::Lost(from_bytes(kind, payload)?),
            Kind::Members => Self::Members(from_bytes(kind, payload)?),
            Kind::Known => Self::Known(from_bytes(kind, payload)?),
            Kind::Change => Self::Change(from_bytes(kind, payload)?),
            Kind::Changed => Self::Changed(from_bytes(kind, payload)?),
            Kind::Waiting => Self::Waiting(from_bytes(kind, payload)?),
            Kind::Push | Kind::Sum | Kind::Hello | Kind::Challenge | Kind::Proof | Kind::Welcome => {
                return Err(FrameFault::Unexpected { kind, expected: "a control message" });
            }
        })
    }
}

/// Postcard's bytes of `body`, within the bound of its kind.
pub(crate) fn to_bytes<T: Serialize>(kind: Kind, body: &T) -> Result<Vec<u8>, FrameFault> {
    let bytes = postcard::to_allocvec(body).map_err(|why| FrameFault::Body { kind, why: why.to_string() })?;
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    if length > kind.payload_max() {
        return Err(FrameFault::TooLong { kind, length, max: kind.payload_max() });
    }
    Ok(bytes)
}

/// The one `T` that `bytes` are.
pub(crate) fn from_bytes<T: DeserializeOwned>(kind: Kind, bytes: &[u8]) -> Result<T, FrameFault> {
    match postcard::take_from_bytes(bytes) {
        Ok((body, [])) => Ok(body),
        Ok((_, rest)) => {
            let why = format!("{} bytes stand behind its end", rest.len());
            Err(FrameFault::Body { kind, why })
        }
        Err(why) => Err(FrameFault::Body { kind, why: why.to_string() }),
    }
}
