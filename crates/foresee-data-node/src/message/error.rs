// SPDX-License-Identifier: Apache-2.0
//! Failures to decode a message of the other side, or to encode one.

use super::fields::HEAD_BYTES;

/// A message that does not follow the format. One of the other side ends the attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages show the fields by their names")]
#[non_exhaustive]
pub enum MessageError {
    /// Bytes that are too few for any message.
    #[error("a message of {found} bytes is too short; the shortest has {HEAD_BYTES}")]
    TooShort { found: usize },
    /// A kind that this side does not receive.
    #[error(
        "a message of the {sender} has the unknown kind {found}; run one version of Foresee on this node"
    )]
    Kind {
        /// `host` or `consumer`.
        sender: &'static str,
        found: u8,
    },
    /// A length that does not match the number of samples.
    #[error("a message {kind} has {found} bytes instead of {expected}")]
    Length { kind: &'static str, found: usize, expected: usize },
    /// A number of samples outside its bounds.
    #[error("a message {kind} has {found} samples, and takes {least} to {most}; split the batch")]
    Count { kind: &'static str, found: usize, least: usize, most: usize },
    /// A value that a field does not allow.
    #[error("a message {kind} has the {fault}")]
    Field {
        kind: &'static str,
        #[source]
        fault: InvalidField,
    },
}

/// A field with a value that the format does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {found}; allowed: {rule}")]
pub struct InvalidField {
    /// Its name.
    pub field: &'static str,
    /// Its value.
    pub found: u64,
    /// The allowed values.
    pub rule: &'static str,
}
