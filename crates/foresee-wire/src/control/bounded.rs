// SPDX-License-Identifier: Apache-2.0
//! Lists and texts with a bound, kept while they are read.
//!
//! Apart from the messages because serde's own readers have no bound: a list of a billion empty members would be
//! believed. Memory grows with the members that were really read, never with the number announced.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error as _, SeqAccess, Visitor};
use serde::ser::{Error as _, Serialize, Serializer};

/// Members for which room is made on the sender's word alone.
const TRUSTED: usize = 256;

/// Writes a list of at most `MAX` members.
pub(crate) fn put_list<S: Serializer, T: Serialize, const MAX: usize>(
    list: &[T],
    to: S,
) -> Result<S::Ok, S::Error> {
    if list.len() > MAX {
        return Err(S::Error::custom(format_args!("a list of {} members, and {MAX} may be", list.len())));
    }
    list.serialize(to)
}

/// Reads a list of at most `MAX` members.
pub(crate) fn take_list<'de, D: Deserializer<'de>, T: Deserialize<'de>, const MAX: usize>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    struct Take<T, const MAX: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Take<T, MAX> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MAX} members")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Vec<T>, A::Error> {
            let announced = from.size_hint().unwrap_or(0);
            if announced > MAX {
                return Err(A::Error::invalid_length(announced, &self));
            }
            let mut list = Vec::with_capacity(announced.min(TRUSTED));
            while let Some(member) = from.next_element()? {
                if list.len() == MAX {
                    return Err(A::Error::invalid_length(MAX + 1, &self));
                }
                list.push(member);
            }
            Ok(list)
        }
    }

    from.deserialize_seq(Take::<T, MAX>(PhantomData))
}

/// Writes a text of at most `MAX` bytes.
pub(crate) fn put_text<S: Serializer, const MAX: usize>(text: &str, to: S) -> Result<S::Ok, S::Error> {
    if text.len() > MAX {
        return Err(S::Error::custom(format_args!("a text of {} bytes, and {MAX} may be", text.len())));
    }
    text.serialize(to)
}

/// Reads a text of at most `MAX` bytes.
pub(crate) fn take_text<'de, D: Deserializer<'de>, const MAX: usize>(from: D) -> Result<String, D::Error> {
    struct Take<const MAX: usize>;

    impl<const MAX: usize> Visitor<'_> for Take<MAX> {
        type Value = String;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MAX} bytes of text")
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<String, E> {
            if text.len() > MAX {
                return Err(E::invalid_length(text.len(), &self));
            }
            Ok(text.to_owned())
        }
    }

    from.deserialize_str(Take::<MAX>)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize as De;

    use super::*;

    #[derive(Debug, De, serde::Serialize)]
    struct Both {
        #[serde(serialize_with = "put_list::<_, _, 3>", deserialize_with = "take_list::<_, _, 3>")]
        list: Vec<()>,
        #[serde(serialize_with = "put_text::<_, 3>", deserialize_with = "take_text::<_, 3>")]
        text: String,
    }

    #[test]
    fn a_bound_is_kept_in_both_directions() {
        let both =
            |list, text: &str| postcard::to_allocvec(&Both { list: vec![(); list], text: text.into() });
        assert_eq!(both(3, "abc").unwrap(), [3, 3, b'a', b'b', b'c']);
        assert!(both(4, "abc").is_err());
        assert!(both(3, "abcd").is_err());
        let read = |bytes: &[u8]| postcard::from_bytes::<Both>(bytes);
        assert!(read(&[3, 3, b'a', b'b', b'c']).is_ok());
        assert!(read(&[4, 0]).is_err());
        assert!(read(&[0, 4, b'a', b'b', b'c', b'd']).is_err());
    }

    #[test]
    fn a_billion_members_without_bytes_are_not_believed() {
        assert!(postcard::from_bytes::<Both>(&[0xFF, 0xFF, 0xFF, 0xFF, 0x0F, 0]).is_err());
    }
}
