// SPDX-License-Identifier: Apache-2.0
//! Lists and texts of messages with an upper bound, for `#[serde(with = "ListOf::<MAX>")]`.
//!
//! serde's own readers have no bound: they would accept a list of a billion empty members. Memory grows with the
//! members that were read, and not with the announced number.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error as _, SeqAccess, Visitor};
use serde::ser::{Error as _, Serialize, Serializer};

/// Members for which memory is allocated before they are read.
const TRUSTED: usize = 256;

/// A list of at most `MAX` members.
pub(crate) struct ListOf<const MAX: usize>;

impl<const MAX: usize> ListOf<MAX> {
    pub(crate) fn serialize<T: Serialize, S: Serializer>(list: &[T], to: S) -> Result<S::Ok, S::Error> {
        if list.len() > MAX {
            return Err(S::Error::custom(format_args!("a list of {} members, and {MAX} may be", list.len())));
        }
        list.serialize(to)
    }

    pub(crate) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<T>, D::Error> {
        from.deserialize_seq(ListVisitor::<T, MAX>(PhantomData))
    }
}

struct ListVisitor<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for ListVisitor<T, MAX> {
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

/// A text of at most `MAX` bytes.
pub(crate) struct TextOf<const MAX: usize>;

impl<const MAX: usize> TextOf<MAX> {
    pub(crate) fn serialize<S: Serializer>(text: &str, to: S) -> Result<S::Ok, S::Error> {
        if text.len() > MAX {
            return Err(S::Error::custom(format_args!("a text of {} bytes, and {MAX} may be", text.len())));
        }
        text.serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
        from.deserialize_str(TextVisitor::<MAX>)
    }
}

struct TextVisitor<const MAX: usize>;

impl<const MAX: usize> Visitor<'_> for TextVisitor<MAX> {
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

#[cfg(test)]
mod tests {
    use serde::Deserialize as De;

    use super::*;

    #[derive(Debug, De, serde::Serialize)]
    struct Both {
        #[serde(with = "ListOf::<3>")]
        list: Vec<()>,
        #[serde(with = "TextOf::<3>")]
        text: String,
    }

    #[test]
    fn a_bound_holds_in_both_directions() {
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
    fn a_list_of_a_billion_empty_members_is_refused() {
        assert!(postcard::from_bytes::<Both>(&[0xFF, 0xFF, 0xFF, 0xFF, 0x0F, 0]).is_err());
    }
}
