// SPDX-License-Identifier: Apache-2.0
//! What the two ends tell each other when a server is replaced or a rank is lost: who is left, and from where on.
//!
//! Apart from the messages of every round. Refuses to decide who is left.

use serde::{Deserialize, Serialize};

use super::{ListOf, MEMBER_BYTES_MAX, OPEN_ROUNDS_MAX, PLAN_BODY_MAX, TEXT_BYTES_MAX, TextOf, Used};

/// What a server that took the place of a lost one has to know to go on, and what one has to know whose connection broke: a
/// rank's first word when it comes again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// Membership of the plan at work; 0: the rank has heard of none.
    pub generation: u32,
    /// The oldest round that the rank keeps gradients of.
    pub oldest: u64,
    /// As [`Members::live`], where anybody was lost; else empty.
    #[serde(with = "ListOf::<MEMBER_BYTES_MAX>")]
    pub live: Vec<u8>,
    /// The plan at work, as [`super::Plan::body`]; up to [`PLAN_BODY_MAX`] bytes.
    #[serde(with = "ListOf::<PLAN_BODY_MAX>")]
    pub body: Vec<u8>,
}

/// The answer to [`Resume`]: from a server in the place of a lost one once every rank has said it, from one whose connection
/// broke at once. What is kept is to be pushed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// Membership of the plan that goes on.
    pub generation: u32,
    /// Rounds before this one are done.
    pub oldest: u64,
    /// Whether the server is the one that the rank was connected to, and has what it summed: only what has not landed with
    /// the rank is missing then.
    pub knows: bool,
}

/// A rank is lost, and its job goes on: told to ranks by the server that noticed, and by them to the first server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// The rank.
    pub rank: u32,
    /// Why; up to [`TEXT_BYTES_MAX`] bytes.
    #[serde(with = "TextOf::<TEXT_BYTES_MAX>")]
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
    #[serde(with = "ListOf::<MEMBER_BYTES_MAX>")]
    pub live: Vec<u8>,
    /// Who was lost, and why, for people; up to [`TEXT_BYTES_MAX`] bytes.
    #[serde(with = "TextOf::<TEXT_BYTES_MAX>")]
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
    #[serde(with = "ListOf::<OPEN_ROUNDS_MAX>")]
    pub used: Vec<Used>,
}

/// What all that are left go by: told by the first server to ranks, and by each of them to every server, before anything
/// else under the new membership.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The new membership.
    pub generation: u32,
    /// As [`Members::live`].
    #[serde(with = "ListOf::<MEMBER_BYTES_MAX>")]
    pub live: Vec<u8>,
    /// Rounds before this one are done.
    pub oldest: u64,
    /// What rounds from there on used, as far as any of them has heard.
    #[serde(with = "ListOf::<OPEN_ROUNDS_MAX>")]
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
