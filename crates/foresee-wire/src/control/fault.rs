// SPDX-License-Identifier: Apache-2.0
//! The content of ERROR messages: a code for programs, a text for users.
//!
//! It is separate from the messages because handshakes use it too, and error types show it. Control characters
//! are escaped when the text is displayed.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{TEXT_BYTES_MAX, TextOf};

/// An error report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Its kind, for programs.
    pub code: FaultCode,
    /// The rank that it concerns.
    pub rank: Option<u32>,
    /// The tensor that it concerns.
    pub tensor: Option<u32>,
    /// What happened and what to do, for users; up to [`TEXT_BYTES_MAX`] bytes.
    #[serde(with = "TextOf::<TEXT_BYTES_MAX>")]
    pub text: String,
}

impl Fault {
    /// Create a fault without a rank or tensor. A text that is too long is cut at a character boundary.
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
    /// An authentication proof was wrong.
    Secret,
    /// Only one end uses TLS.
    Tls,
    /// A malformed frame or message, or one in the wrong state.
    Protocol,
    /// No capacity for another job, rank or connection.
    Busy,
    /// Ranks disagree on job, world or plan.
    Plan,
    /// A rank or a server is lost.
    Lost,
    /// An outdated generation.
    Generation,
    /// This end is closing.
    Closing,
    /// Any other fault; the text explains it.
    Other,
}

/// A text from the network, with its control characters escaped, because it may be printed to a terminal.
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
