// SPDX-License-Identifier: Apache-2.0
//! The header of 32 bytes before every payload.
//!
//! It is separate from the connection so that decoding is a total function of bytes. It allocates nothing, and
//! every input yields a header or a [`FrameFault`] that names the field. One `check` serves both directions, so
//! everything that can be encoded can be decoded. The plan's owner checks that tensor, packet and length match.

use std::fmt;

use foresee_units::Dtype;

use crate::error::FrameFault;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 32;
/// First byte of every frame of every version: neither ASCII nor a first byte of TLS.
pub const MAGIC: u8 = 0xF5;
/// Version of frames and messages, the second byte. A peer of another version gets an error that names it.
pub const VERSION: u8 = 1;
/// The longest payload of a data frame: four of the largest partitions in use (16 MB). It guards against invalid
/// lengths; no memory is allocated for it, because the caller provides the buffer.
pub const DATA_BYTES_MAX: u32 = 64 << 20;
/// The longest payload of a SAMPLE. Longer samples are sent in parts, so that a receiver knows that they are on their way.
pub const SAMPLE_BYTES_MAX: u32 = 1 << 20;
/// The longest PLAN: 100,000 tensors with names of 100 bytes and four dimensions fit.
pub const PLAN_BYTES_MAX: u32 = 16 << 20;
/// The longest other control message: the longest set of tensors fits, see [`crate::SET_BYTES_MAX`].
pub const CONTROL_BYTES_MAX: u32 = 160 << 10;
/// The longest message of a handshake: the most that an unauthenticated peer can make this side store.
pub const HANDSHAKE_BYTES_MAX: u32 = 1 << 10;

/// Bytes of the header before its checksum, which covers them and the payload.
const SUMMED: usize = 28;
const FLAG_CHECKSUM: u8 = 1 << 4;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $word:literal, $max:expr;)*) => {
        /// The kind of a frame.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Kind {
            $($(#[$doc])* $name = $code,)*
        }

        impl Kind {
            /// Every kind.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The kind of a type byte.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// The longest payload, in bytes.
            pub const fn payload_max(self) -> u32 {
                match self {
                    $(Self::$name => $max,)*
                }
            }

            pub(crate) const fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }
        }
    };
}

kinds! {
    /// A packet of a rank's gradient, to a server.
    Push = 1, "PUSH", DATA_BYTES_MAX;
    /// A packet of a sum, to a rank.
    Sum = 2, "SUM", DATA_BYTES_MAX;
    /// A sample, or a part of one, to another node.
    Sample = 3, "SAMPLE", SAMPLE_BYTES_MAX;
    /// The dialler's identity, purpose and nonce.
    Hello = 16, "HELLO", HANDSHAKE_BYTES_MAX;
    /// The listener's nonce.
    Challenge = 17, "CHALLENGE", HANDSHAKE_BYTES_MAX;
    /// The dialler's proof that it has the secret.
    Proof = 18, "PROOF", HANDSHAKE_BYTES_MAX;
    /// The listener's answer, with its own proof.
    Welcome = 19, "WELCOME", HANDSHAKE_BYTES_MAX;
    /// The tensors in their order of first use, the packet size and the servers.
    Plan = 20, "PLAN", PLAN_BYTES_MAX;
    /// A rank has made all its pushes of a round; the message lists the other tensors.
    RoundEnd = 21, "ROUND_END", CONTROL_BYTES_MAX;
    /// The tensors that any rank pushed in a round.
    Used = 22, "USED", CONTROL_BYTES_MAX;
    /// A rank has all results of a round.
    Got = 23, "GOT", CONTROL_BYTES_MAX;
    /// Every rank has all results of a round.
    RoundDone = 24, "ROUND_DONE", CONTROL_BYTES_MAX;
    /// A heartbeat.
    Ping = 25, "PING", CONTROL_BYTES_MAX;
    /// An orderly end.
    Bye = 26, "BYE", CONTROL_BYTES_MAX;
    /// An error report.
    Error = 27, "ERROR", CONTROL_BYTES_MAX;
    /// A partition was received completely: frees credit of the baseline with credit.
    Ack = 28, "ACK", CONTROL_BYTES_MAX;
    /// The state of a rank, sent to a server that it reconnects to or that replaces a lost one.
    Resume = 29, "RESUME", PLAN_BYTES_MAX;
    /// The server is ready to resume.
    Resumed = 30, "RESUMED", CONTROL_BYTES_MAX;
    /// A rank is lost, and the job goes on without it.
    Lost = 31, "LOST", CONTROL_BYTES_MAX;
    /// The remaining ranks: the first message of a new membership.
    Members = 32, "MEMBERS", CONTROL_BYTES_MAX;
    /// The state of a remaining rank, with what it knows of the open rounds.
    Known = 33, "KNOWN", PLAN_BYTES_MAX;
    /// The state that all remaining ranks resume from.
    Change = 34, "CHANGE", PLAN_BYTES_MAX;
    /// A server has applied the change.
    Changed = 35, "CHANGED", CONTROL_BYTES_MAX;
    /// The ranks that a server has been waiting for.
    Waiting = 36, "WAITING", CONTROL_BYTES_MAX;
    /// What nodes tell each other about samples.
    Samples = 37, "SAMPLES", CONTROL_BYTES_MAX;
}

impl Kind {
    /// Whether the payload is data, which is read in place, and not a message.
    pub const fn is_data(self) -> bool {
        matches!(self, Self::Push | Self::Sum | Self::Sample)
    }

    /// Whether it belongs to the handshake only.
    pub const fn is_handshake(self) -> bool {
        matches!(self, Self::Hello | Self::Challenge | Self::Proof | Self::Welcome)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The header of a frame. It has no job and rank, because the handshake binds them to the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of the frame.
    pub kind: Kind,
    /// Element type of the payload; PUSH and SUM only.
    pub dtype: Option<Dtype>,
    /// Membership of the sender, by which late frames of an old one are detected.
    pub generation: u32,
    /// Low half of the round number; [`widen_round`] restores the whole. 0 in control frames, whose messages
    /// carry all 64 bits. In a SAMPLE the number of the part, each but the last of [`SAMPLE_BYTES_MAX`] bytes.
    pub round: u32,
    /// The tensor's index in the plan; 0 in control frames. In a SAMPLE the low half of the sample's number.
    pub tensor: u32,
    /// The packet's index in the tensor: its first byte is at packet x packet size, in 64 bits. 0 in control
    /// frames. In a SAMPLE the high half of the sample's number.
    pub packet: u32,
    /// Bytes of the payload that follows.
    pub length: u32,
    /// Priority, 0 first; not interpreted here. 0 in control frames.
    pub class: u16,
    /// Number of ranks in a SUM, 0 if all that contributed are lost; 0 in every other frame.
    pub contributors: u16,
    /// CRC-32C of the header's first 28 bytes and the payload, if the sender computed one.
    pub checksum: Option<u32>,
}

impl Header {
    /// The header of a message of `length` bytes.
    pub const fn control(kind: Kind, generation: u32, length: u32) -> Self {
        Self {
            kind,
            dtype: None,
            generation,
            round: 0,
            tensor: 0,
            packet: 0,
            length,
            class: 0,
            contributors: 0,
            checksum: None,
        }
    }

    /// The header of a part of a sample.
    pub const fn sample(sample: u64, part: u32, length: u32) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
        let (low, high) = (sample as u32, (sample >> 32) as u32);
        Self { round: part, tensor: low, packet: high, ..Self::control(Kind::Sample, 0, length) }
    }

    /// The number of the sample in a SAMPLE.
    pub const fn sample_number(&self) -> u64 {
        (self.packet as u64) << 32 | self.tensor as u64
    }

    /// Encode the header.
    ///
    /// # Errors
    /// Any fault that [`Header::decode`] would report, so that no invalid header is sent.
    pub fn encode(&self) -> Result<[u8; HEADER_BYTES], FrameFault> {
        self.check()?;
        let mut bytes = self.unsummed();
        bytes[SUMMED..].copy_from_slice(&self.checksum.unwrap_or(0).to_le_bytes());
        Ok(bytes)
    }

    /// Decode a header.
    ///
    /// # Errors
    /// The first fault, in this order: magic, version, type, flags, dtype, then fields that the type does not
    /// allow. Total: no input panics, and nothing is allocated.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameFault> {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[0] != MAGIC {
            return Err(FrameFault::Magic { found: bytes[0] });
        }
        if bytes[1] != VERSION {
            return Err(FrameFault::Version { found: bytes[1] });
        }
        let kind = Kind::from_code(bytes[2]).ok_or(FrameFault::UnknownKind { found: bytes[2] })?;
        let (dtype, flags) = (bytes[3] & 0x0F, bytes[3] & 0xF0);
        if flags & !FLAG_CHECKSUM != 0 {
            return Err(FrameFault::UnknownFlags { kind, found: flags & !FLAG_CHECKSUM });
        }
        let dtype = match dtype {
            0 => None,
            code => Some(Dtype::from_code(code).ok_or(FrameFault::UnknownDtype { kind, found: code })?),
        };
        let sum = u32_at(28);
        if flags & FLAG_CHECKSUM == 0 && sum != 0 {
            let rule = "it is 0 where the flag of a checksum is not set";
            return Err(FrameFault::Field { kind, field: "checksum", found: sum.into(), rule });
        }
        let header = Self {
            kind,
            dtype,
            generation: u32_at(4),
            round: u32_at(8),
            tensor: u32_at(12),
            packet: u32_at(16),
            length: u32_at(20),
            class: u16_at(24),
            contributors: u16_at(26),
            checksum: (flags & FLAG_CHECKSUM != 0).then_some(sum),
        };
        header.check()?;
        Ok(header)
    }

    /// Return the header with the checksum of itself and `payload`.
    #[must_use]
    pub fn sealed(mut self, payload: &[u8]) -> Self {
        // The checksum covers the flag.
        self.checksum = Some(0);
        self.checksum = Some(self.sum_of(payload));
        self
    }

    /// Check `payload` against the checksum; succeeds if the sender computed none.
    ///
    /// # Errors
    /// [`FrameFault::Checksum`] with both values.
    pub fn verify(&self, payload: &[u8]) -> Result<(), FrameFault> {
        let Some(found) = self.checksum else { return Ok(()) };
        let computed = self.sum_of(payload);
        if found == computed {
            return Ok(());
        }
        let Self { kind, tensor, packet, .. } = *self;
        Err(FrameFault::Checksum { kind, tensor, packet, found, computed })
    }

    fn sum_of(&self, payload: &[u8]) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&self.unsummed()[..SUMMED]), payload)
    }

    fn unsummed(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = MAGIC;
        bytes[1] = VERSION;
        bytes[2] = self.kind as u8;
        bytes[3] = self.dtype.map_or(0, Dtype::code);
        if self.checksum.is_some() {
            bytes[3] |= FLAG_CHECKSUM;
        }
        bytes[4..8].copy_from_slice(&self.generation.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.round.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.tensor.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.packet.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.length.to_le_bytes());
        bytes[24..26].copy_from_slice(&self.class.to_le_bytes());
        bytes[26..28].copy_from_slice(&self.contributors.to_le_bytes());
        bytes
    }

    fn check(&self) -> Result<(), FrameFault> {
        let kind = self.kind;
        let field = |field, found: u64, rule| Err(FrameFault::Field { kind, field, found, rule });
        if self.length > kind.payload_max() {
            return Err(FrameFault::TooLong { kind, length: self.length, max: kind.payload_max() });
        }
        let others = [
            ("dtype", self.dtype.map_or(0, |dtype| dtype.code().into())),
            ("class", self.class.into()),
            ("contributors", self.contributors.into()),
        ];
        let other = others.into_iter().find(|&(_, found)| found != 0);
        if kind == Kind::Sample {
            return other.map_or(Ok(()), |(name, found)| field(name, found.into(), "it is 0 in a SAMPLE"));
        }
        if kind.is_data() {
            if self.dtype.is_none() {
                return field("dtype", 0, "a PUSH and a SUM name their element type");
            }
            if kind == Kind::Push && self.contributors > 0 {
                let rule = "a SUM has contributors, a PUSH none";
                return field("contributors", self.contributors.into(), rule);
            }
            return Ok(());
        }
        let places = [("round", self.round), ("tensor", self.tensor), ("packet", self.packet)];
        let other = other.or_else(|| places.into_iter().find(|&(_, found)| found != 0));
        other.map_or(Ok(()), |(name, found)| field(name, found.into(), "it is 0 in control frames"))
    }
}

/// Return the round with the low half `low` that is nearest to `near`.
///
/// Only two neighbouring rounds are ever in flight, so half of a range of 2^32 rounds is unambiguous.
pub const fn widen_round(low: u32, near: u64) -> u64 {
    const SPAN: u64 = 1 << 32;
    let same = (near & !(SPAN - 1)) | low as u64;
    if same > near && same - near > SPAN / 2 && same >= SPAN {
        same - SPAN
    } else if same < near && near - same > SPAN / 2 {
        same.saturating_add(SPAN)
    } else {
        same
    }
}

#[cfg(test)]
mod tests;
