// SPDX-License-Identifier: Apache-2.0
//! Encoding of messages: a header that never changes, then a body of this version.
//!
//! The header comes before the body, so that two versions recognise each other. A message is read from a datagram of
//! bounded length, and each member of a list takes at least one byte, so memory is bounded too.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::NodeError;

/// Version of the protocol. Both ends refuse any other.
pub const PROTOCOL_VERSION: u16 = 5;
/// The longest message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// The longest first message of a consumer, in bytes.
pub const HELLO_BYTES_MAX: usize = 1 << 10;

const MAGIC: [u8; 4] = *b"FNOD";
/// Bytes before the body.
pub(super) const HEADER_BYTES: usize = MAGIC.len() + size_of::<u16>();

/// Encode a message of this version.
///
/// # Errors
/// [`NodeError::TooLong`] above `max` bytes.
pub(super) fn encode<T: Serialize>(message: &T, max: usize) -> Result<Vec<u8>, NodeError> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(PROTOCOL_VERSION.to_le_bytes());
    let bytes = postcard::to_extend(message, bytes).expect("only memory bounds the length");
    if bytes.len() > max {
        return Err(NodeError::TooLong { bytes: bytes.len(), max });
    }
    Ok(bytes)
}

/// Bytes of a value in a body.
pub(super) fn body_bytes<T: Serialize>(value: &T) -> usize {
    postcard::to_extend(value, Vec::new()).expect("only memory bounds the length").len()
}

/// Decode a message.
///
/// # Errors
/// [`NodeError::OtherVersion`]; [`NodeError::Malformed`] unless it is exactly one message.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, NodeError> {
    let malformed = |why: &str| NodeError::Malformed { why: why.into() };
    let (header, body) =
        bytes.split_at_checked(HEADER_BYTES).ok_or_else(|| malformed("it is shorter than a header"))?;
    let (magic, version) = header.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(malformed("it has another magic number"));
    }
    let theirs = u16::from_le_bytes([version[0], version[1]]);
    if theirs != PROTOCOL_VERSION {
        return Err(NodeError::OtherVersion { theirs });
    }
    let (message, rest) = postcard::take_from_bytes(body).map_err(|why| malformed(&why.to_string()))?;
    if !rest.is_empty() {
        return Err(malformed("bytes follow the message"));
    }
    Ok(message)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{NodeReply, NodeRequest, Refusal, RefusalCode};
    use super::*;

    fn refusal() -> NodeReply {
        NodeReply::Refusal(Refusal { code: RefusalCode::Closing, text: "ab".into() })
    }

    #[test]
    fn a_message_has_the_bytes_of_the_format_page() {
        let bytes = encode(&refusal(), MESSAGE_BYTES_MAX).unwrap();
        assert_eq!(bytes, *b"FNOD\x05\x00\x00\x03\x02ab");
        assert_eq!(decode::<NodeReply>(&bytes).unwrap(), refusal());
    }

    #[test]
    fn another_version_is_named_whatever_its_body_is() {
        for (bytes, version) in [(&b"FNOD\x04\x00"[..], 4), (b"FNOD\x00\x01xyz", 256)] {
            let refused = decode::<NodeReply>(bytes).unwrap_err();
            assert!(matches!(refused, NodeError::OtherVersion { theirs } if theirs == version));
        }
    }

    #[test]
    fn only_exactly_one_message_is_accepted() {
        let bytes = encode(&refusal(), MESSAGE_BYTES_MAX).unwrap();
        for end in 0..bytes.len() {
            assert!(matches!(decode::<NodeReply>(&bytes[..end]), Err(NodeError::Malformed { .. })));
        }
        let longer = [&bytes[..], b"x"].concat();
        assert!(matches!(decode::<NodeReply>(&longer), Err(NodeError::Malformed { .. })));
        assert!(decode::<NodeReply>(b"GET / HTTP/1.1").is_err());
    }

    #[test]
    fn a_message_above_the_bound_is_not_encoded() {
        let text = "x".repeat(MESSAGE_BYTES_MAX);
        let long = NodeReply::Refusal(Refusal { code: RefusalCode::DataSet, text });
        assert!(matches!(encode(&long, MESSAGE_BYTES_MAX), Err(NodeError::TooLong { .. })));
    }

    proptest! {
        #![proptest_config(foresee_testkit::property(100_000))]

        #[test]
        fn random_bytes_never_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let bytes = [b"FNOD\x05\x00", &body[..]].concat();
            let _ = decode::<NodeRequest>(&bytes);
            let _ = decode::<NodeReply>(&bytes);
        }
    }
}
