// SPDX-License-Identifier: Apache-2.0
//! Contents of HELLO and WELCOME: identity and purpose of a connection.
//!
//! They are separate from the handshake, which authenticates them as bytes, and from gradients, which are one of
//! several purposes: peers that exchange samples send the same HELLO. The owner of the listener decides whether a
//! rank is admitted.

use serde::{Deserialize, Serialize};

use crate::control::{Fault, TextOf};
use crate::error::{FrameFault, WireError};
use crate::frame::Kind;
use crate::secret::random;

/// A capability of a dialler: after a broken connection it reconnects as the same session. Its state is retained
/// for [`Timeouts::reconnect`](crate::Timeouts::reconnect).
pub const CAN_RECONNECT: u64 = 1;

/// The longest name of a job, in bytes.
pub const JOB_BYTES_MAX: usize = 128;

/// Draw a process's random number, for [`Hello::session`] and [`Welcome::session`].
///
/// The system provides it, because forked processes have all other state in common.
///
/// # Errors
/// [`WireError::NoRandom`].
pub fn draw_session() -> Result<u64, WireError> {
    let drawn = random()?;
    Ok(drawn[..8].iter().fold(0, |all, &byte| all << 8 | u64::from(byte)))
}

/// The dialler's description of itself. The proofs of both ends cover all of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The purpose of the connection.
    pub purpose: Purpose,
    /// Name of the job: 1 to [`JOB_BYTES_MAX`] bytes of letters, digits, and `-_.:/`.
    #[serde(with = "TextOf::<JOB_BYTES_MAX>")]
    pub job: String,
    /// The dialler's rank, less than `world`.
    pub rank: u32,
    /// Ranks of the job, at least 1.
    pub world: u32,
    /// Ranks that the dialler represents, itself first: 1, or all of its node. At least 1.
    pub node_ranks: u32,
    /// Whether the job goes on after a loss of ranks.
    pub survives: bool,
    /// Membership of the dialler.
    pub generation: u32,
    /// The content of the connection.
    pub role: Role,
    /// Index among several equal connections, from 0.
    pub index: u16,
    /// The server or peer that the dialler means to reach; a different one detects the mistake immediately.
    pub target: u32,
    /// Drawn once per process: distinguishes a restarted rank from one that reconnects.
    pub session: u64,
    /// Optional capabilities of the dialler, one bit each; the listener ignores unknown ones.
    pub capabilities: u64,
}

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Purpose {
    /// Gradients and their sums.
    Gradients,
    /// Samples between ranks.
    Samples,
}

/// The content of a connection. There are two, so that a heartbeat never queues behind bulk data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Role {
    /// Packets.
    Data,
    /// Messages.
    Control,
}

/// A listener's answer to an accepted dialler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Drawn once per process: detects a restarted server.
    pub session: u64,
    /// Membership of the listener.
    pub generation: u32,
    /// The dialler's capabilities that will be used.
    pub capabilities: u64,
}

/// The listener's decision, which it authenticates in both cases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    Welcome(Welcome),
    Refused(Fault),
}

/// The payload of HELLO: the dialler's description, and fields of the handshake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Greeting {
    /// A copy, because no proof covers the header's version.
    pub(crate) version: u8,
    pub(crate) nonce: [u8; 32],
    pub(crate) hello: Hello,
}

impl Hello {
    /// Create the HELLO of a rank of a job of `world` ranks that represents only itself; other fields are 0.
    pub fn new(purpose: Purpose, role: Role, job: impl Into<String>, rank: u32, world: u32) -> Self {
        let job = job.into();
        Self {
            purpose,
            job,
            rank,
            world,
            node_ranks: 1,
            survives: false,
            generation: 0,
            role,
            index: 0,
            target: 0,
            session: 0,
            capabilities: 0,
        }
    }

    /// Check the fields; the error names the wrong one.
    pub(crate) fn check(&self) -> Result<(), FrameFault> {
        let kind = Kind::Hello;
        let wrong = |why| Err(FrameFault::Body { kind, why });
        let Self { job, rank, world, node_ranks, .. } = self;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
        if job.is_empty() || job.len() > JOB_BYTES_MAX || !job.bytes().all(plain) {
            return wrong(format!(
                "job {job:?}; a job's name has 1 to {JOB_BYTES_MAX} letters, digits and -_.:/"
            ));
        }
        if rank >= world {
            return wrong(format!("rank {rank} of {world}; ranks go from 0 to world size - 1"));
        }
        if *node_ranks == 0 || *node_ranks > world - rank {
            return wrong(format!(
                "{node_ranks} ranks from rank {rank} of {world} on; 1 or more, within the world"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use foresee_testkit::property;
    use proptest::prelude::*;

    use super::*;
    use crate::control::{from_bytes, to_bytes};
    use crate::frame::HANDSHAKE_BYTES_MAX;

    pub(crate) fn hello() -> Hello {
        Hello {
            generation: 1,
            target: 2,
            session: 0xFEED,
            ..Hello::new(Purpose::Gradients, Role::Data, "resnet/7", 3, 4)
        }
    }

    #[test]
    fn the_longest_greeting_and_the_longest_refusal_fit_a_frame_of_the_handshake() {
        let job = "j".repeat(JOB_BYTES_MAX);
        let numbers = Hello {
            job,
            rank: 1 << 31,
            world: u32::MAX,
            node_ranks: (1 << 31) - 1,
            generation: u32::MAX,
            index: u16::MAX,
            target: u32::MAX,
            session: u64::MAX,
            capabilities: u64::MAX,
            ..hello()
        };
        assert_eq!(numbers.check(), Ok(()));
        let greeting = Greeting { version: 1, nonce: [255; 32], hello: numbers };
        let bytes = to_bytes(Kind::Hello, &greeting).unwrap();
        assert_eq!(from_bytes::<Greeting>(Kind::Hello, &bytes).unwrap(), greeting);
        let mut fault = Fault::new(crate::FaultCode::Other, "x".repeat(5000));
        (fault.rank, fault.tensor) = (Some(u32::MAX), Some(u32::MAX));
        let answer = to_bytes(Kind::Welcome, &Answer::Refused(fault)).unwrap();
        assert!(answer.len() + 32 <= HANDSHAKE_BYTES_MAX as usize);
    }

    proptest! {
        #![proptest_config(property(10_000))]

        #[test]
        fn any_bytes_are_a_greeting_or_a_fault(
            noise in proptest::collection::vec(any::<u8>(), 0..120), keep in 0_usize..80, at in any::<[prop::sample::Index; 2]>(),
        ) {
            let greeting = Greeting { version: 1, nonce: [9; 32], hello: hello() };
            let mut bytes = to_bytes(Kind::Hello, &greeting).unwrap();
            let last = bytes.len();
            bytes[at[0].index(last)] ^= 1;
            bytes.truncate(keep);
            bytes.extend(&noise[..at[1].index(noise.len() + 1)]);
            if let Ok(greeting) = from_bytes::<Greeting>(Kind::Hello, &bytes) {
                prop_assert!(greeting.hello.check().is_err() || greeting.hello.rank < greeting.hello.world);
                prop_assert!(greeting.hello.job.len() <= JOB_BYTES_MAX);
            }
            let _ = from_bytes::<Answer>(Kind::Welcome, &bytes);
        }
    }

    #[test]
    fn a_rank_outside_its_world_and_a_job_with_invalid_characters_are_refused() {
        let error = |hello: Hello| hello.check().unwrap_err().to_string();
        assert!(error(Hello { rank: 4, ..hello() }).contains("rank 4 of 4"));
        assert!(error(Hello { rank: 0, world: 0, ..hello() }).contains("rank 0 of 0"));
        assert!(error(Hello { node_ranks: 2, ..hello() }).contains("2 ranks from rank 3 of 4 on"));
        assert!(error(Hello { node_ranks: 0, ..hello() }).contains("0 ranks from rank 3"));
        assert!(error(Hello { job: "a\nb".into(), ..hello() }).contains(r#"job "a\nb""#));
        assert!(error(Hello { job: String::new(), ..hello() }).contains("1 to 128"));
    }
}
