// SPDX-License-Identifier: Apache-2.0
//! Columns: an integer or a byte string per object, as narrow as the data set allows.
//!
//! A column of integers is a base and an offset per entry, in 0, 1, 2, 4 or 8 bytes: a constant takes no space. A
//! column of strings is their concatenation and a column of their ends.
//!
//! The reader trusts no input: a value that is not inside the file is `None`.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

/// Encoding of a column of integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Numbers {
    /// Bytes per entry: 0, 1, 2, 4 or 8, little-endian.
    pub(crate) width: u8,
    /// Added to each entry: the minimum of the column.
    pub(crate) base: u64,
}

/// Encoding of a column of byte strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Strings {
    /// The end of each string, relative to the first byte of the first.
    pub(crate) end: Numbers,
    /// Total bytes of all strings.
    pub(crate) bytes: u64,
}

impl Numbers {
    /// The narrowest column that holds `values`.
    pub(crate) fn fitting(values: impl Iterator<Item = u64>) -> Self {
        let (low, high) = values.fold((u64::MAX, 0), |(low, high), value| (low.min(value), high.max(value)));
        let base = low.min(high);
        let width = match high - base {
            0 => 0,
            1..=0xff => 1,
            0x100..=0xffff => 2,
            0x1_0000..=0xffff_ffff => 4,
            _ => 8,
        };
        Self { width, base }
    }

    /// Write `values`, which must be those that the column was fitted to.
    pub(crate) fn write(self, values: impl Iterator<Item = u64>, out: &mut impl Write) -> io::Result<()> {
        if self.width == 0 {
            return Ok(());
        }
        for value in values {
            out.write_all(&(value - self.base).to_le_bytes()[..usize::from(self.width)])?;
        }
        Ok(())
    }
}

impl Strings {
    /// The narrowest columns that hold strings of these lengths.
    pub(crate) fn fitting(lengths: impl Iterator<Item = u64> + Clone) -> Self {
        Self { end: Numbers::fitting(running_sum(lengths.clone())), bytes: lengths.sum() }
    }

    /// Write `strings`; `lengths` are theirs, and those that the columns were fitted to.
    pub(crate) fn write<'a>(
        self,
        lengths: impl Iterator<Item = u64>,
        mut strings: impl Iterator<Item = &'a [u8]>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        self.end.write(running_sum(lengths), out)?;
        strings.try_for_each(|string| out.write_all(string))
    }
}

/// The end of each of several concatenated parts.
pub(crate) fn running_sum(parts: impl Iterator<Item = u64>) -> impl Iterator<Item = u64> {
    parts.scan(0, |end, part| {
        *end += part;
        Some(*end)
    })
}

/// Assigns positions from front to back, so that sections can neither overlap nor leave a gap.
#[derive(Debug)]
pub(crate) struct Cursor {
    /// The position of the next section.
    pub(crate) at: u64,
}

impl Cursor {
    /// The position of the next section; `None` if it would end past 2^64 bytes, or for an invalid width.
    pub(crate) fn numbers(&mut self, column: Numbers, count: u64) -> Option<NumbersAt> {
        if !matches!(column.width, 0 | 1 | 2 | 4 | 8) {
            return None;
        }
        let at = self.skip(u64::from(column.width).checked_mul(count)?)?;
        Some(NumbersAt { at, count, column })
    }

    /// The positions of the next two sections, with the same limits.
    pub(crate) fn strings(&mut self, column: Strings, count: u64) -> Option<StringsAt> {
        let end = self.numbers(column.end, count)?;
        Some(StringsAt { end, at: self.skip(column.bytes)?, bytes: column.bytes })
    }

    fn skip(&mut self, bytes: u64) -> Option<u64> {
        let at = self.at;
        self.at = at.checked_add(bytes)?;
        Some(at)
    }
}

/// A column of numbers in a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NumbersAt {
    at: u64,
    count: u64,
    column: Numbers,
}

impl NumbersAt {
    /// Entry `number`.
    pub(crate) fn get(self, file: &[u8], number: u64) -> Option<u64> {
        if number >= self.count {
            return None;
        }
        let width = u64::from(self.column.width);
        let entry = slice(file, self.at.checked_add(number.checked_mul(width)?)?, width)?;
        let mut wide = [0; 8];
        wide[..entry.len()].copy_from_slice(entry);
        self.column.base.checked_add(u64::from_le_bytes(wide))
    }

    /// The value of all entries, if the encoding is constant.
    pub(crate) fn constant(self) -> Option<u64> {
        (self.column.width == 0).then_some(self.column.base)
    }
}

/// A column of byte strings in a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StringsAt {
    end: NumbersAt,
    at: u64,
    bytes: u64,
}

impl StringsAt {
    /// String `number`.
    pub(crate) fn get(self, file: &[u8], number: u64) -> Option<&[u8]> {
        let start = match number.checked_sub(1) {
            None => 0,
            Some(before) => self.end.get(file, before)?,
        };
        let end = self.end.get(file, number)?;
        if end > self.bytes {
            return None;
        }
        slice(file, self.at.checked_add(start)?, end.checked_sub(start)?)
    }

    /// Whether the last string ends at the end of the column; true without strings.
    pub(crate) fn is_complete(self, file: &[u8]) -> bool {
        let last = match self.end.count.checked_sub(1) {
            None => Some(0),
            Some(last) => self.end.get(file, last),
        };
        last == Some(self.bytes)
    }
}

fn slice(file: &[u8], at: u64, bytes: u64) -> Option<&[u8]> {
    let (at, bytes) = (usize::try_from(at).ok()?, usize::try_from(bytes).ok()?);
    file.get(at..at.checked_add(bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use foresee_testkit::property;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(property(256))]

        #[test]
        fn numbers_survive_writing_and_reading(values in prop::collection::vec(any::<u64>(), 1..50), shift in 0_u32..64) {
            let values: Vec<u64> = values.iter().map(|value| value >> shift).collect();
            let column = Numbers::fitting(values.iter().copied());
            let mut file = Vec::new();
            column.write(values.iter().copied(), &mut file).unwrap();
            prop_assert_eq!(file.len(), usize::from(column.width) * values.len());
            let at = Cursor { at: 0 }.numbers(column, values.len() as u64).unwrap();
            for (number, &value) in values.iter().enumerate() {
                prop_assert_eq!(at.get(&file, number as u64), Some(value));
            }
            prop_assert_eq!(at.get(&file, values.len() as u64), None);
        }

        #[test]
        fn strings_survive_writing_and_reading(strings in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..50)) {
            let lengths = strings.iter().map(|string| string.len() as u64);
            let column = Strings::fitting(lengths.clone());
            let mut file = Vec::new();
            column.write(lengths, strings.iter().map(Vec::as_slice), &mut file).unwrap();
            let at = Cursor { at: 0 }.strings(column, strings.len() as u64).unwrap();
            prop_assert!(at.is_complete(&file));
            for (number, string) in strings.iter().enumerate() {
                prop_assert_eq!(at.get(&file, number as u64), Some(string.as_slice()));
            }
        }
    }

    #[test]
    fn a_constant_column_takes_no_space() {
        assert_eq!(Numbers::fitting([7, 7, 7].into_iter()), Numbers { width: 0, base: 7 });
        assert_eq!(Numbers::fitting([7, 262].into_iter()), Numbers { width: 1, base: 7 });
        assert_eq!(Numbers::fitting([7, 263].into_iter()), Numbers { width: 2, base: 7 });
        assert_eq!(Numbers::fitting([0, u64::MAX].into_iter()), Numbers { width: 8, base: 0 });
        assert_eq!(Numbers::fitting(std::iter::empty()), Numbers { width: 0, base: 0 });
    }

    #[test]
    fn a_section_beyond_2_to_the_64_bytes_is_refused() {
        let wide = Numbers { width: 8, base: 0 };
        assert!(Cursor { at: 16 }.numbers(wide, 1 << 63).is_none());
        assert!(Cursor { at: 16 }.numbers(Numbers { width: 3, base: 0 }, 1).is_none());
        assert!(Cursor { at: 16 }.strings(Strings { end: wide, bytes: u64::MAX }, 1).is_none());
    }
}
