// SPDX-License-Identifier: Apache-2.0
//! Who dials whom, and for what.
//!
//! Apart from the handshake, which proves these facts without reading them, and from gradients, which are one purpose
//! of several: peers that hand each other samples say the same HELLO.
//!
//! Refuses to admit anybody: whether a rank is wanted is decided by whoever takes the connection.

use serde::{Deserialize, Serialize};

use crate::control::{Fault, TextOf};
use crate::error::{FrameFault, WireError};
use crate::frame::Kind;
use crate::secret::random;

/// A capability of a dialler: when a connection breaks it dials again, as the same session. Its place is kept for
/// [`Timeouts::reconnect`](crate::Timeouts::reconnect).
pub const COMES_AGAIN: u64 = 1;

/// The longest name of a job, in bytes.
pub const JOB_BYTES_MAX: usize = 128;

/// Draws a process's number, for [`Hello::session`] and [`Welcome::session`].
///
/// By the system, for processes that are forked have everything else in common.
///
/// # Errors
/// [`WireError::NoRandom`].
pub fn draw_session() -> Result<u64, WireError> {
    let drawn = random()?;
    Ok(drawn[..8].iter().fold(0, |all, &byte| all << 8 | u64::from(byte)))
}

/// What a dialler says of itself. Everything in it is covered by the proofs of both ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// What the connection is for.
    pub purpose: Purpose,
    /// Name of the job: 1 to [`JOB_BYTES_MAX`] bytes of letters, digits, and `-_.:/`.
    #[serde(with = "TextOf::<JOB_BYTES_MAX>")]
    pub job: String,
    /// The dialler's rank, less than `world`.
    pub rank: u32,
    /// Ranks of the job, at least 1.
    pub world: u32,
    /// Ranks for which the dialler speaks, itself the first: 1, or all of its machine. At least 1.
    pub local: u32,
    /// Whether the job goes on without ranks that are lost.
    pub survives: bool,
    /// Membership that the dialler is part of.
    pub generation: u32,
    /// What travels on the connection.
    pub role: Role,
    /// Which of several equal connections this is, from 0.
    pub lane: u16,
    /// Which of the job's servers, or which peer, the dialler means to reach: one that is another knows it at once.
    pub target: u32,
    /// Drawn once per process: tells a rank that was started again from one that dials again.
    pub session: u64,
    /// Optional abilities of the dialler, a bit each; unknown ones are for the listener to ignore.
    pub capabilities: u64,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Purpose {
    /// Gradients and their sums.
    Gradients,
    /// Samples between ranks.
    Samples,
}

/// What travels on a connection. Two, so that a sign of life never queues behind bulk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Role {
    /// Packets.
    Data,
    /// Messages.
    Control,
}

/// What a listener answers to a dialler that it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Drawn once per process: tells a server that was started again.
    pub session: u64,
    /// Membership that the listener is part of.
    pub generation: u32,
    /// Those of the dialler's capabilities that will be used.
    pub capabilities: u64,
}

/// The listener's decision, proved by it either way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    Welcome(Welcome),
    Refused(Fault),
}

/// What HELLO carries: the dialler's words, and what the handshake adds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Greeting {
    /// Again, because the header's is not covered by a proof.
    pub(crate) version: u8,
    pub(crate) nonce: [u8; 32],
    pub(crate) hello: Hello,
}

impl Hello {
    /// Of a rank of a job of `world` ranks, speaking for itself, with 0 for everything else.
    pub fn new(purpose: Purpose, role: Role, job: impl Into<String>, rank: u32, world: u32) -> Self {
        let job = job.into();
        Self {
            purpose,
            job,
            rank,
            world,
            local: 1,
            survives: false,
            generation: 0,
            role,
            lane: 0,
            target: 0,
            session: 0,
            capabilities: 0,
        }
    }

    /// Refuses what no listener should see; the message names the field.
    pub(crate) fn check(&self) -> Result<(), FrameFault> {
        let kind = Kind::Hello;
        let wrong = |why| Err(FrameFault::Body { kind, why });
        let Self { job, rank, world, local, .. } = self;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
        if job.is_empty() || job.len() > JOB_BYTES_MAX || !job.bytes().all(plain) {
            return wrong(format!(
                "job {job:?}; a job's name has 1 to {JOB_BYTES_MAX} letters, digits and -_.:/"
            ));
        }
        if rank >= world {
            return wrong(format!("rank {rank} of {world}; ranks go from 0 to world size - 1"));
        }
        if *local == 0 || *local > world - rank {
            return wrong(format!(
                "{local} ranks from rank {rank} of {world} on; 1 or more, within the world"
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
            purpose: Purpose::Gradients,
            job: "resnet/7".into(),
            rank: 3,
            world: 4,
            local: 1,
            survives: false,
            generation: 1,
            role: Role::Data,
            lane: 0,
            target: 2,
            session: 0xFEED,
            capabilities: 0,
        }
    }

    #[test]
    fn the_longest_greeting_and_the_longest_refusal_fit_a_frame_of_the_handshake() {
        let job = "j".repeat(JOB_BYTES_MAX);
        let numbers = Hello {
            job,
            rank: 1 << 31,
            world: u32::MAX,
            local: (1 << 31) - 1,
            generation: u32::MAX,
            lane: u16::MAX,
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
    fn a_rank_outside_its_world_and_a_job_with_odd_letters_are_refused() {
        let told = |hello: Hello| hello.check().unwrap_err().to_string();
        assert!(told(Hello { rank: 4, ..hello() }).contains("rank 4 of 4"));
        assert!(told(Hello { rank: 0, world: 0, ..hello() }).contains("rank 0 of 0"));
        assert!(told(Hello { local: 2, ..hello() }).contains("2 ranks from rank 3 of 4 on"));
        assert!(told(Hello { local: 0, ..hello() }).contains("0 ranks from rank 3"));
        assert!(told(Hello { job: "a\nb".into(), ..hello() }).contains(r#"job "a\nb""#));
        assert!(told(Hello { job: String::new(), ..hello() }).contains("1 to 128"));
    }
}
