// SPDX-License-Identifier: Apache-2.0
//! What the two ends tell each other beside the data: plans, ends of rounds, signs of life, errors.
//!
//! Apart from the frames, which know nothing of their payload: a message is a struct, its bytes are postcard's, and
//! every list and text in it has a bound that is kept while reading, before memory is taken.
//!
//! Refuses to judge a plan or a round: both are bytes here, in the form of those who exchange.

mod bounded;

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub(crate) use bounded::{put_list, put_text, take_list, take_text};

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
}

/// What will be exchanged, and how: a proposal of a rank, or a server's answer once all ranks agree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Membership under which the plan holds; 0 in a proposal.
    pub generation: u32,
    /// The plan in the form of those who exchange; up to [`PLAN_BODY_MAX`] bytes.
    #[serde(
        serialize_with = "put_list::<_, _, PLAN_BODY_MAX>",
        deserialize_with = "take_list::<_, _, PLAN_BODY_MAX>"
    )]
    pub body: Vec<u8>,
}

/// A rank pushes no more in `round`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundEnd {
    /// The round.
    pub round: u64,
    /// Tensors that this rank did not push in it, as a set in the form of those who exchange; up to
    /// [`SET_BYTES_MAX`] bytes.
    #[serde(
        serialize_with = "put_list::<_, _, SET_BYTES_MAX>",
        deserialize_with = "take_list::<_, _, SET_BYTES_MAX>"
    )]
    pub absent: Vec<u8>,
}

/// Every rank has ended `round`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// The round.
    pub round: u64,
    /// Tensors that at least one rank pushed in it, as [`RoundEnd::absent`] is.
    #[serde(
        serialize_with = "put_list::<_, _, SET_BYTES_MAX>",
        deserialize_with = "take_list::<_, _, SET_BYTES_MAX>"
    )]
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
    #[serde(
        serialize_with = "put_text::<_, TEXT_BYTES_MAX>",
        deserialize_with = "take_text::<_, TEXT_BYTES_MAX>"
    )]
    pub reason: String,
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

/// What a server that took the place of a lost one has to know to go on: a rank's first word to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// Membership of the plan at work; 0: the rank has heard of none.
    pub generation: u32,
    /// The oldest round that the rank keeps gradients of.
    pub oldest: u64,
    /// As [`Members::live`], where anybody was lost; else empty.
    #[serde(
        serialize_with = "put_list::<_, _, MEMBER_BYTES_MAX>",
        deserialize_with = "take_list::<_, _, MEMBER_BYTES_MAX>"
    )]
    pub live: Vec<u8>,
    /// The plan at work, as [`Plan::body`]; up to [`PLAN_BODY_MAX`] bytes.
    #[serde(
        serialize_with = "put_list::<_, _, PLAN_BODY_MAX>",
        deserialize_with = "take_list::<_, _, PLAN_BODY_MAX>"
    )]
    pub body: Vec<u8>,
}

/// Every rank has said [`Resume`]: what they keep is to be pushed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// Membership of the plan that goes on.
    pub generation: u32,
    /// Rounds before this one are done.
    pub oldest: u64,
}

/// A rank is lost, and its job goes on: told to ranks by the server that noticed, and by them to the first server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// The rank.
    pub rank: u32,
    /// Why; up to [`TEXT_BYTES_MAX`] bytes.
    #[serde(
        serialize_with = "put_text::<_, TEXT_BYTES_MAX>",
        deserialize_with = "take_text::<_, TEXT_BYTES_MAX>"
    )]
    pub why: String,
}

/// Who is left, says the first server: from here on a rank hears of no round's end until it has heard [`Change`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    /// The new membership.
    pub generation: u32,
    /// The rank that was lost, or the first of them.
    pub rank: u32,
    /// Which ranks are in it, a bit each, that of rank 0 the lowest of the first byte; up to [`MEMBER_BYTES_MAX`] bytes.
    #[serde(
        serialize_with = "put_list::<_, _, MEMBER_BYTES_MAX>",
        deserialize_with = "take_list::<_, _, MEMBER_BYTES_MAX>"
    )]
    pub live: Vec<u8>,
    /// Who was lost, and why, for people; up to [`TEXT_BYTES_MAX`] bytes.
    #[serde(
        serialize_with = "put_text::<_, TEXT_BYTES_MAX>",
        deserialize_with = "take_text::<_, TEXT_BYTES_MAX>"
    )]
    pub why: String,
}

/// What a rank that is left knows, said to the first server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// The new membership.
    pub generation: u32,
    /// The oldest round that the rank keeps gradients of.
    pub oldest: u64,
    /// What it has heard of rounds from there on, up to [`OPEN_ROUNDS_MAX`] of them.
    #[serde(
        serialize_with = "put_list::<_, _, OPEN_ROUNDS_MAX>",
        deserialize_with = "take_list::<_, _, OPEN_ROUNDS_MAX>"
    )]
    pub used: Vec<Used>,
}

/// What all that are left go by: told by the first server to ranks, and by each of them to every server, before anything
/// else under the new membership.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The new membership.
    pub generation: u32,
    /// As [`Members::live`].
    #[serde(
        serialize_with = "put_list::<_, _, MEMBER_BYTES_MAX>",
        deserialize_with = "take_list::<_, _, MEMBER_BYTES_MAX>"
    )]
    pub live: Vec<u8>,
    /// Rounds before this one are done.
    pub oldest: u64,
    /// What rounds from there on used, as far as any of them has heard.
    #[serde(
        serialize_with = "put_list::<_, _, OPEN_ROUNDS_MAX>",
        deserialize_with = "take_list::<_, _, OPEN_ROUNDS_MAX>"
    )]
    pub used: Vec<Used>,
}

/// What a server tells from here on is told under this membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// The membership.
    pub generation: u32,
    /// Rounds before this one are done.
    pub oldest: u64,
}

/// What went wrong, and with whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Its kind, for programs.
    pub code: FaultCode,
    /// The rank that it is about.
    pub rank: Option<u32>,
    /// The tensor that it is about.
    pub tensor: Option<u32>,
    /// A sentence for people: what happened, and what to do; up to [`TEXT_BYTES_MAX`] bytes.
    #[serde(
        serialize_with = "put_text::<_, TEXT_BYTES_MAX>",
        deserialize_with = "take_text::<_, TEXT_BYTES_MAX>"
    )]
    pub text: String,
}

impl Fault {
    /// A fault about nobody in particular. A text that is too long is cut, at a character.
    pub fn new(code: FaultCode, text: impl Into<String>) -> Self {
        let mut text = text.into();
        let mut end = text.len().min(TEXT_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        Self { code, rank: None, tensor: None, text }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printable(&self.text).fmt(f)
    }
}

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum FaultCode {
    /// The other end speaks another version.
    Version,
    /// A proof was wrong.
    Secret,
    /// TLS is on at one end alone.
    Tls,
    /// A frame or message that is malformed or out of turn.
    Protocol,
    /// No room for another job, rank or connection.
    Busy,
    /// Ranks do not agree on job, world or plan.
    Plan,
    /// A rank or a server is lost.
    Lost,
    /// An old generation.
    Generation,
    /// This end is closing.
    Closing,
    /// Anything else; the text says what.
    Other,
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

/// A text from elsewhere, its control characters made visible: it may reach a terminal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Printable<'a>(pub(crate) &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for char in self.0.chars() {
            if char.is_control() {
                write!(f, "{}", char.escape_default())?;
            } else {
                write!(f, "{char}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn examples() -> Vec<Message> {
        let set = vec![0b1000, 0, 1];
        let mut fault = Fault::new(FaultCode::Lost, "rank 3 is silent for 30 s");
        fault.rank = Some(3);
        let used = vec![Used { round: 4, used: set.clone() }, Used { round: 5, used: vec![0, 0, 1] }];
        vec![
            Message::Plan(Plan { generation: 2, body: vec![7; 300] }),
            Message::RoundEnd(RoundEnd { round: u64::MAX, absent: set.clone() }),
            Message::Used(Used { round: 1 << 40, used: set }),
            Message::Got(Got { round: 5 }),
            Message::RoundDone(RoundDone { round: 5 }),
            Message::Ping(Ping { number: 9 }),
            Message::Bye(Bye { reason: "done".into() }),
            Message::Error(fault),
            Message::Ack(Ack { round: 5, tensor: 6, partition: 7 }),
            Message::Resume(Resume { generation: 2, oldest: 1 << 40, live: vec![5], body: vec![7; 300] }),
            Message::Resumed(Resumed { generation: 2, oldest: u64::MAX }),
            Message::Lost(Lost { rank: 3, why: "it was silent for 30 s".into() }),
            Message::Members(Members {
                generation: 3,
                rank: 3,
                live: vec![0b0111],
                why: "rank 3 is lost".into(),
            }),
            Message::Known(Known { generation: 3, oldest: 4, used: used.clone() }),
            Message::Change(Change { generation: 3, live: vec![0b0111], oldest: 4, used }),
            Message::Changed(Changed { generation: 3, oldest: 4 }),
        ]
    }

    #[test]
    fn every_message_survives_its_bytes() {
        for message in examples() {
            let (header, body) = message.encode(4).unwrap();
            assert_eq!(header.generation, 4);
            assert_eq!(Header::decode(&header.encode().unwrap()).unwrap(), header);
            assert_eq!(Message::decode(&header, &body).unwrap(), message);
        }
    }

    #[test]
    fn every_message_cut_short_or_with_bytes_behind_it_is_refused() {
        for message in examples() {
            let (header, body) = message.encode(0).unwrap();
            let unsummed = Header { checksum: None, ..header };
            for end in 0..body.len() {
                assert!(Message::decode(&unsummed, &body[..end]).is_err(), "{} cut at {end}", header.kind);
            }
            let longer = [&body[..], &[0]].concat();
            let told = Message::decode(&unsummed, &longer).unwrap_err().to_string();
            assert!(told.contains("1 bytes stand behind its end"), "{told}");
            assert!(matches!(Message::decode(&header, &longer), Err(FrameFault::Checksum { .. })));
        }
    }

    #[test]
    fn the_longest_plan_and_the_longest_set_fit_and_a_byte_more_is_refused() {
        let plan = |bytes| Message::Plan(Plan { generation: u32::MAX, body: vec![0xFF; bytes] });
        let end = |bytes| Message::RoundEnd(RoundEnd { round: u64::MAX, absent: vec![0xFF; bytes] });
        let everybody = || vec![0xFF; MEMBER_BYTES_MAX];
        let resume = |bytes| {
            let (generation, oldest) = (u32::MAX, u64::MAX);
            Message::Resume(Resume { generation, oldest, live: everybody(), body: vec![0xFF; bytes] })
        };
        let change = |bytes| {
            let used = Used { round: u64::MAX, used: vec![0xFF; bytes] };
            let used = vec![used; OPEN_ROUNDS_MAX];
            Message::Change(Change { generation: u32::MAX, live: everybody(), oldest: u64::MAX, used })
        };
        for message in [plan(PLAN_BODY_MAX), end(SET_BYTES_MAX), resume(PLAN_BODY_MAX), change(SET_BYTES_MAX)]
        {
            let (header, body) = message.encode(0).unwrap();
            assert_eq!(Message::decode(&header, &body).unwrap(), message);
        }
        let (plans, sets) = (PLAN_BODY_MAX + 1, SET_BYTES_MAX + 1);
        for message in [plan(plans), end(sets), resume(plans), change(sets)] {
            assert!(message.encode(0).is_err());
        }
    }

    #[test]
    fn data_and_handshake_are_no_messages() {
        for &kind in Kind::ALL {
            if kind.is_data() || kind.is_handshake() {
                let fault = Message::decode(&Header::control(kind, 0, 0), &[]).unwrap_err();
                assert!(matches!(fault, FrameFault::Unexpected { .. }));
            }
        }
    }

    #[test]
    fn a_long_explanation_is_cut_at_a_character_and_cannot_command_a_terminal() {
        let fault = Fault::new(FaultCode::Other, "ü".repeat(TEXT_BYTES_MAX));
        assert_eq!(fault.text.len(), TEXT_BYTES_MAX);
        assert!(Message::Error(fault).encode(0).is_ok());
        let fault = Fault::new(FaultCode::Other, "\u{1b}[2Jgone");
        assert_eq!(fault.to_string(), "\\u{1b}[2Jgone");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn any_bytes_are_a_message_that_encodes_again_or_a_fault(
            kind in 0..Kind::ALL.len(), body in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let length = u32::try_from(body.len()).unwrap();
            let header = Header::control(Kind::ALL[kind], 0, length);
            if let Ok(message) = Message::decode(&header, &body) {
                // Postcard reads padded numbers, so the bytes may differ; the message may not.
                let (header, body) = message.encode(0).unwrap();
                prop_assert_eq!(Message::decode(&header, &body).unwrap(), message);
            }
        }

        #[test]
        fn a_damaged_message_never_panics(
            which in 0..examples().len(), at in any::<proptest::sample::Index>(), byte in any::<u8>(),
        ) {
            let (header, mut body) = examples()[which].encode(0).unwrap();
            let at = at.index(body.len());
            let same = body[at] == byte;
            body[at] = byte;
            prop_assert_eq!(Message::decode(&header, &body).is_ok(), same);
            let _ = Message::decode(&Header { checksum: None, ..header }, &body);
        }
    }
}
