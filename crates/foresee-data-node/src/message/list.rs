// SPDX-License-Identifier: Apache-2.0
//! Lists inside of messages: values to encode, or the bytes of a decoded message.

use std::fmt;

use super::error::{InvalidField, MessageError};
use super::fields::Shape;

/// An element of a [`MessageList`], with a fixed number of bytes.
pub trait ListElement: Copy {
    /// Bytes of an element.
    const BYTES: usize;

    /// Write the element to `into`, which has [`BYTES`](Self::BYTES) bytes.
    ///
    /// # Errors
    /// A field has a value that the format does not allow.
    fn encode(self, into: &mut [u8]) -> Result<(), InvalidField>;

    /// Read the element from `bytes`, which has [`BYTES`](Self::BYTES) bytes.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    fn decode(bytes: &[u8]) -> Result<Self, InvalidField>;
}

/// A list that borrows its values, or the encoded bytes in which they were checked.
#[derive(Clone, Copy)]
pub struct MessageList<'a, T>(Repr<'a, T>);

/// The values of a [`MessageList`], in order.
#[derive(Clone, Debug)]
pub struct MessageListIter<'a, T>(Repr<'a, T>);

#[derive(Clone, Copy, Debug)]
enum Repr<'a, T> {
    Values(&'a [T]),
    /// Whole elements, each of which decodes.
    Encoded(&'a [u8]),
}

impl<'a, T: ListElement> MessageList<'a, T> {
    /// Check encoded bytes, whose number is a multiple of the element's.
    pub(super) fn decode(shape: &Shape, bytes: &'a [u8]) -> Result<Self, MessageError> {
        for element in bytes.chunks_exact(T::BYTES) {
            T::decode(element).map_err(|fault| shape.fault(fault))?;
        }
        Ok(Self(Repr::Encoded(bytes)))
    }

    /// Append the encoded values.
    pub(super) fn encode_into(&self, shape: &Shape, into: &mut Vec<u8>) -> Result<(), MessageError> {
        let start = into.len();
        into.resize(start + self.len() * T::BYTES, 0);
        for (value, element) in self.iter().zip(into[start..].chunks_exact_mut(T::BYTES)) {
            value.encode(element).map_err(|fault| shape.fault(fault))?;
        }
        Ok(())
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.iter().len()
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The values, in order.
    pub fn iter(&self) -> MessageListIter<'a, T> {
        MessageListIter(self.0)
    }
}

impl<'a, T> From<&'a [T]> for MessageList<'a, T> {
    fn from(values: &'a [T]) -> Self {
        Self(Repr::Values(values))
    }
}

impl<'a, T: ListElement> IntoIterator for MessageList<'a, T> {
    type Item = T;
    type IntoIter = MessageListIter<'a, T>;

    fn into_iter(self) -> MessageListIter<'a, T> {
        self.iter()
    }
}

impl<'a, T: ListElement> IntoIterator for &MessageList<'a, T> {
    type Item = T;
    type IntoIter = MessageListIter<'a, T>;

    fn into_iter(self) -> MessageListIter<'a, T> {
        self.iter()
    }
}

impl<T: ListElement> Iterator for MessageListIter<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        match &mut self.0 {
            Repr::Values(values) => values.split_off_first().copied(),
            Repr::Encoded(bytes) => {
                let element = bytes.split_off(..T::BYTES)?;
                Some(T::decode(element).expect("every element was decoded once"))
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let len = match self.0 {
            Repr::Values(values) => values.len(),
            Repr::Encoded(bytes) => bytes.len() / T::BYTES,
        };
        (len, Some(len))
    }
}

impl<T: ListElement> ExactSizeIterator for MessageListIter<'_, T> {}

impl<T: ListElement + PartialEq> PartialEq for MessageList<'_, T> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<T: ListElement + Eq> Eq for MessageList<'_, T> {}

impl<T: ListElement + fmt::Debug> fmt::Debug for MessageList<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
