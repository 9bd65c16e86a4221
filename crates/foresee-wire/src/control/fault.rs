// SPDX-License-Identifier: Apache-2.0
//! What went wrong, and with whom: a kind for programs, a sentence for people.
//!
//! Apart from the messages, because a handshake has faults too, and errors show them. Refuses a text that could command a
//! terminal.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{TEXT_BYTES_MAX, TextOf};

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
    #[serde(with = "TextOf::<TEXT_BYTES_MAX>")]
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
