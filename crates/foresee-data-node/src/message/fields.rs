// SPDX-License-Identifier: Apache-2.0
//! The head that all messages share, and numbers in little-endian order.

use super::SAMPLES_MAX;
use super::error::{InvalidField, MessageError};
use super::list::ListElement;

/// Bytes of the head: kind, flags, two zeros, and the number of samples.
pub(super) const HEAD_BYTES: usize = 8;

/// What every message of a kind has in common.
#[derive(Debug)]
pub(super) struct Shape {
    /// The first byte.
    pub(super) code: u8,
    /// The name in errors.
    pub(super) name: &'static str,
    /// Bytes before the list, with the head.
    pub(super) fixed: usize,
    /// Bytes of an element of the list.
    pub(super) element: usize,
    /// Bounds of the number of elements.
    pub(super) counts: (usize, usize),
    /// The flags that may be set.
    pub(super) flags: u8,
}

/// Reads fields one after the other. Its caller has checked the length.
#[derive(Debug)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Shape {
    /// The shape of a message without samples.
    pub(super) const fn without_list(code: u8, name: &'static str, fixed: usize, flags: u8) -> Self {
        Self { code, name, fixed, element: 0, counts: (0, 0), flags }
    }

    /// The shape of a message with at least `least` samples, each of which is an element of type `T`.
    pub(super) const fn with_list<T: ListElement>(
        code: u8,
        name: &'static str,
        fixed: usize,
        least: usize,
        flags: u8,
    ) -> Self {
        Self { code, name, fixed, element: T::BYTES, counts: (least, SAMPLES_MAX), flags }
    }

    /// Append the head of a message.
    pub(super) fn begin(&self, flags: u8, count: usize, into: &mut Vec<u8>) -> Result<(), MessageError> {
        self.check_count(count)?;
        let count = u32::try_from(count).expect("a count is bounded");
        into.reserve(self.fixed + self.element * count as usize);
        into.extend_from_slice(&[self.code, flags, 0, 0]);
        into.extend_from_slice(&count.to_le_bytes());
        Ok(())
    }

    /// Check the head and the length of a message of a `sender`. Returns its shape, its flags, and the fields after the
    /// head.
    pub(super) fn open<'a>(
        shapes: &[&'static Self],
        sender: &'static str,
        bytes: &'a [u8],
    ) -> Result<(&'static Self, u8, Fields<'a>), MessageError> {
        let too_short = MessageError::TooShort { found: bytes.len() };
        let (&[code, flags, zeros @ .., a, b, c, d], rest) =
            bytes.split_first_chunk::<HEAD_BYTES>().ok_or(too_short)?;
        let shape = shapes.iter().find(|shape| shape.code == code);
        let shape = *shape.ok_or(MessageError::Kind { sender, found: code })?;
        if flags & !shape.flags != 0 {
            return Err(shape.fault(InvalidField {
                field: "flags",
                found: flags.into(),
                rule: "known bits",
            }));
        }
        shape.check_zero(u16::from_le_bytes(zeros).into())?;
        let count = usize::try_from(u32::from_le_bytes([a, b, c, d])).expect("Linux has 32 bits at least");
        shape.check_count(count)?;
        let expected = shape.fixed + shape.element * count;
        if bytes.len() != expected {
            return Err(MessageError::Length { kind: shape.name, found: bytes.len(), expected });
        }
        Ok((shape, flags, Fields(rest)))
    }

    /// Check a field that has no meaning yet.
    pub(super) fn check_zero(&self, found: u64) -> Result<(), MessageError> {
        if found != 0 {
            return Err(self.fault(InvalidField { field: "reserved field", found, rule: "0" }));
        }
        Ok(())
    }

    pub(super) fn fault(&self, fault: InvalidField) -> MessageError {
        MessageError::Field { kind: self.name, fault }
    }

    fn check_count(&self, found: usize) -> Result<(), MessageError> {
        let (least, most) = self.counts;
        if !(least..=most).contains(&found) {
            return Err(MessageError::Count { kind: self.name, found, least, most });
        }
        Ok(())
    }
}

/// Append a message to `into`, which is as before after an error.
pub(super) fn encode_or_restore(
    into: &mut Vec<u8>,
    encode: impl FnOnce(&mut Vec<u8>) -> Result<(), MessageError>,
) -> Result<(), MessageError> {
    let start = into.len();
    let outcome = encode(into);
    if outcome.is_err() {
        into.truncate(start);
    }
    outcome
}

impl Fields<'_> {
    pub(super) fn u8(&mut self) -> u8 {
        let [byte] = self.take();
        byte
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk().expect("the length was checked");
        self.0 = rest;
        *field
    }
}
