// SPDX-License-Identifier: Apache-2.0
//! NumPy's array file: its header, from the first bytes of the object.
//!
//! Source: NumPy's NEP 1 and `numpy.lib.format`, versions 1.0 to 3.0: magic, version, the header's length in 2 or
//! 4 bytes, and a Python dictionary literal with `descr`, `fortran_order` and `shape`.
//!
//! Arrays without rows or without a fixed size are errors: Fortran order, scalars, Python objects, and for now
//! structured types, whose fields a reader would have to know.

/// The longest accepted header, in bytes; NumPy itself stops at 10,000.
const HEADER_BYTES_MAX: u64 = 64 * 1024;
const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// The result of parsing the first bytes of an array file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NpyHead {
    /// The whole header.
    Whole(NpyHeader),
    /// Too few bytes: the header needs this many, from the object's first byte.
    Needs(u64),
}

/// An array in C order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NpyHeader {
    /// The type in the file: `<f4`.
    pub dtype: String,
    /// The array's shape; the first axis counts rows.
    pub shape: Vec<u64>,
    /// Start of its first row.
    pub data_start: u64,
    /// A row's size, 1 or more.
    pub row_bytes: u64,
}

/// Why an object is not an array with rows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NpyError {
    /// Not an array file.
    #[error("not an npy file: it does not begin with NumPy's magic; save arrays with numpy.save")]
    NotNpy,
    /// An unknown version.
    #[error("npy file of version {major}.{minor}; 1.0 to 3.0 are read, save it with numpy.save")]
    Version {
        /// The first number.
        major: u8,
        /// The second number.
        minor: u8,
    },
    /// A header without the three entries.
    #[error("unreadable npy header: {what}; save the array again with numpy.save")]
    Header {
        /// The missing or invalid part.
        what: &'static str,
    },
    /// Fortran order.
    #[error("array in Fortran order: its rows are not contiguous; save numpy.ascontiguousarray(array)")]
    FortranOrder,
    /// Pickled objects.
    #[error("array of Python objects ({dtype}): its rows are pickles; save it with a fixed-size type")]
    Objects {
        /// The type in the file.
        dtype: String,
    },
    /// A structured type.
    #[error("array of a structured type; save array.view(numpy.uint8) or one file per field")]
    Structured,
    /// A type that NumPy does not write.
    #[error("array of unknown type {dtype:?}; save it with a fixed-size number type")]
    Dtype {
        /// The type in the file.
        dtype: String,
    },
    /// A scalar.
    #[error("array without axes: a single number has no rows; save it with a first axis")]
    NoRows,
    /// Rows of zero bytes.
    #[error("rows of 0 bytes hold no sample; an axis after the first has length 0")]
    EmptyRows,
    /// A size beyond 64 bits.
    #[error("array of more than 2^64 bytes; the header is damaged, save the array again")]
    TooLarge,
}

impl NpyHeader {
    /// Parse the header of an array file from `first`, the object's first bytes; 4 KiB usually suffice.
    pub fn read(first: &[u8]) -> Result<NpyHead, NpyError> {
        if !MAGIC.starts_with(&first[..first.len().min(MAGIC.len())]) {
            return Err(NpyError::NotNpy);
        }
        let Some(&[major, minor]) = first.get(6..8) else { return Ok(NpyHead::Needs(12)) };
        let length_bytes = match (major, minor) {
            (1, 0) => 2,
            (2 | 3, 0) => 4,
            _ => return Err(NpyError::Version { major, minor }),
        };
        let Some(length) = first.get(8..8 + length_bytes) else { return Ok(NpyHead::Needs(12)) };
        let length = length.iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte));
        if length > HEADER_BYTES_MAX {
            return Err(NpyError::Header { what: "longer than 64 KiB" });
        }
        let header_start = 8 + length_bytes;
        let data_start = header_start as u64 + length;
        let Some(text) = usize::try_from(data_start).ok().and_then(|end| first.get(header_start..end)) else {
            return Ok(NpyHead::Needs(data_start));
        };
        // Versions 1 and 2 specify Latin-1, version 3 UTF-8; the entries that are read are ASCII in all three.
        let header = Literal { rest: text }.header()?;
        if header.fortran_order {
            return Err(NpyError::FortranOrder);
        }
        let number_bytes = number_bytes(&header.dtype)?;
        let (_, row_shape) = header.shape.split_first().ok_or(NpyError::NoRows)?;
        let row_bytes = row_shape
            .iter()
            .try_fold(number_bytes, |bytes, &axis| bytes.checked_mul(axis))
            .ok_or(NpyError::TooLarge)?;
        if row_bytes == 0 {
            return Err(NpyError::EmptyRows);
        }
        Ok(NpyHead::Whole(Self { dtype: header.dtype, shape: header.shape, data_start, row_bytes }))
    }

    /// The number of rows; 0 is valid.
    pub fn rows(&self) -> u64 {
        self.shape.first().copied().unwrap_or(0)
    }

    /// A row's shape.
    pub fn row_shape(&self) -> &[u64] {
        self.shape.get(1..).unwrap_or(&[])
    }

    /// Bytes of header and rows; `None` past 2^64 bytes.
    pub fn file_bytes(&self) -> Option<u64> {
        self.rows().checked_mul(self.row_bytes)?.checked_add(self.data_start)
    }
}

/// The size of one element of a type, as `numpy.dtype(text).itemsize`.
fn number_bytes(dtype: &str) -> Result<u64, NpyError> {
    let unknown = || NpyError::Dtype { dtype: dtype.to_owned() };
    let rest = dtype.strip_prefix(['<', '>', '|', '=']).unwrap_or(dtype);
    let kind = rest.chars().next().ok_or_else(unknown)?;
    if kind == 'O' {
        return Err(NpyError::Objects { dtype: dtype.to_owned() });
    }
    let count = rest[kind.len_utf8()..].split('[').next().unwrap_or_default();
    if count.is_empty() || !count.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(unknown());
    }
    let count: u64 = count.parse().map_err(|_| unknown())?;
    match (kind, count) {
        ('b', 1)
        | ('i' | 'u', 1 | 2 | 4 | 8)
        | ('f', 2 | 4 | 8 | 12 | 16)
        | ('c', 8 | 16 | 24 | 32)
        | ('m' | 'M', 8)
        | ('S' | 'V', _) => Ok(count),
        ('U', _) => count.checked_mul(4).ok_or(NpyError::TooLarge),
        _ => Err(unknown()),
    }
}

/// The three entries.
struct Header {
    dtype: String,
    fortran_order: bool,
    shape: Vec<u64>,
}

/// The unread rest of a Python literal.
struct Literal<'a> {
    rest: &'a [u8],
}

impl Literal<'_> {
    fn header(mut self) -> Result<Header, NpyError> {
        let (mut dtype, mut fortran_order, mut shape) = (None, None, None);
        self.expect(b'{', "no dictionary")?;
        while !self.take(b'}') {
            let key = self.string()?;
            self.expect(b':', "a key without a value")?;
            let known = match key.as_str() {
                "descr" if self.peek() == Some(b'[') => return Err(NpyError::Structured),
                "descr" => dtype.replace(self.string()?).is_none(),
                "fortran_order" => fortran_order.replace(self.truth()?).is_none(),
                "shape" => shape.replace(self.tuple()?).is_none(),
                _ => false,
            };
            if !known {
                return Err(NpyError::Header { what: "an entry unknown or twice" });
            }
            if !self.take(b',') && self.peek() != Some(b'}') {
                return Err(NpyError::Header { what: "entries without a comma" });
            }
        }
        if self.peek().is_some() {
            return Err(NpyError::Header { what: "something follows the dictionary" });
        }
        match (dtype, fortran_order, shape) {
            (Some(dtype), Some(fortran_order), Some(shape)) => Ok(Header { dtype, fortran_order, shape }),
            _ => Err(NpyError::Header { what: "descr, fortran_order or shape is missing" }),
        }
    }

    /// Parse a string in single or double quotes; NumPy writes none with a backslash.
    fn string(&mut self) -> Result<String, NpyError> {
        let broken = NpyError::Header { what: "a string is not closed" };
        let quote = self.peek().filter(|byte| matches!(byte, b'\'' | b'"')).ok_or(broken.clone())?;
        let text = &self.rest[1..];
        let end = text.iter().position(|&byte| byte == quote).ok_or(broken)?;
        self.rest = &text[end + 1..];
        let text = &text[..end];
        if text.contains(&b'\\') {
            return Err(NpyError::Header { what: "a string with a backslash" });
        }
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    fn truth(&mut self) -> Result<bool, NpyError> {
        self.peek();
        for (word, truth) in [(&b"True"[..], true), (b"False", false)] {
            if let Some(rest) = self.rest.strip_prefix(word) {
                self.rest = rest;
                return Ok(truth);
            }
        }
        Err(NpyError::Header { what: "fortran_order is neither True nor False" })
    }

    /// `()`, `(3,)`, `(3, 4)`; Python 2 wrote `(3L,)`.
    fn tuple(&mut self) -> Result<Vec<u64>, NpyError> {
        self.expect(b'(', "shape is no tuple")?;
        let mut shape = Vec::new();
        while !self.take(b')') {
            self.peek();
            let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let axis = str::from_utf8(&self.rest[..digits]).ok().and_then(|text| text.parse().ok());
            shape.push(axis.ok_or(NpyError::Header { what: "an axis is no length" })?);
            self.rest = &self.rest[digits..];
            self.take(b'L');
            if !self.take(b',') && self.peek() != Some(b')') {
                return Err(NpyError::Header { what: "shape is no tuple" });
            }
        }
        Ok(shape)
    }

    fn expect(&mut self, byte: u8, what: &'static str) -> Result<(), NpyError> {
        if self.take(byte) { Ok(()) } else { Err(NpyError::Header { what }) }
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        if found {
            self.rest = &self.rest[1..];
        }
        found
    }

    /// The next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        self.rest = self.rest.trim_ascii_start();
        self.rest.first().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foresee_testkit::property;
    use proptest::prelude::*;

    fn file(version: u8, header: &str) -> Vec<u8> {
        let mut file = vec![0x93, b'N', b'U', b'M', b'P', b'Y', version, 0];
        let length = u32::try_from(header.len()).unwrap().to_le_bytes();
        file.extend_from_slice(if version == 1 { &length[..2] } else { &length });
        file.extend_from_slice(header.as_bytes());
        file
    }

    fn read(header: &str) -> Result<NpyHead, NpyError> {
        NpyHeader::read(&file(1, header))
    }

    #[test]
    fn a_header_is_parsed_in_every_version_and_spelling() {
        for (version, text) in [
            (1, "{'descr': '<f4', 'fortran_order': False, 'shape': (10, 3, 2), }           \n"),
            (2, "{'descr':'<f4','fortran_order':False,'shape':(10,3,2)}"),
            (3, "{\"shape\": (10L, 3L, 2L,), \"descr\": \"<f4\", \"fortran_order\": False}"),
        ] {
            let bytes = file(version, text);
            let Ok(NpyHead::Whole(header)) = NpyHeader::read(&bytes) else { panic!("{text}") };
            assert_eq!((header.dtype.as_str(), header.row_bytes, header.rows()), ("<f4", 24, 10));
            assert_eq!((header.row_shape(), header.data_start), (&[3, 2][..], bytes.len() as u64));
            assert_eq!(header.file_bytes(), Some(bytes.len() as u64 + 240));
        }
    }

    #[test]
    fn too_few_bytes_return_the_number_that_is_needed() {
        let whole = file(1, "{'descr': '|u1', 'fortran_order': False, 'shape': (1,)}");
        for end in 0..whole.len() {
            let Ok(NpyHead::Needs(bytes)) = NpyHeader::read(&whole[..end]) else { panic!("{end}") };
            assert!(bytes > end as u64, "asking for what is there would never end");
        }
    }

    #[test]
    fn an_array_without_rows_of_fixed_size_is_refused_with_its_reason() {
        let with = |dtype: &str, order: &str, shape: &str| {
            read(&format!("{{'descr': {dtype}, 'fortran_order': {order}, 'shape': {shape}}}")).unwrap_err()
        };
        assert_eq!(with("'<f4'", "True", "(2, 2)"), NpyError::FortranOrder);
        assert_eq!(with("'|O'", "False", "(2,)"), NpyError::Objects { dtype: "|O".into() });
        assert_eq!(with("[('a', '<i4')]", "False", "(2,)"), NpyError::Structured);
        assert_eq!(with("'<f4'", "False", "()"), NpyError::NoRows);
        assert_eq!(with("'<f4'", "False", "(2, 0)"), NpyError::EmptyRows);
        assert_eq!(with("'<f4'", "False", "(2, 9223372036854775808, 4)"), NpyError::TooLarge);
        for dtype in ["<f3", "<", "", "x", "é", "<i", "<i99999999999999999999"] {
            assert_eq!(with(&format!("'{dtype}'"), "False", "(2,)"), NpyError::Dtype { dtype: dtype.into() });
        }
        for shape in ["(-1,)", "(99999999999999999999,)", "2", "(2 2)", "(,)"] {
            assert!(matches!(with("'<f4'", "False", shape), NpyError::Header { .. }), "{shape}");
        }
        assert_eq!(NpyHeader::read(b"PK\x03\x04"), Err(NpyError::NotNpy));
        assert_eq!(NpyHeader::read(&file(9, "")), Err(NpyError::Version { major: 9, minor: 0 }));
    }

    #[test]
    fn every_type_of_fixed_size_has_numpys_size() {
        for (dtype, bytes) in [
            ("|b1", 1),
            ("<i8", 8),
            (">u2", 2),
            ("<f2", 2),
            ("<c16", 16),
            ("<U5", 20),
            ("|S7", 7),
            ("<M8[ns]", 8),
            ("<V2", 2),
        ] {
            assert_eq!(number_bytes(dtype), Ok(bytes), "{dtype}");
        }
    }

    proptest! {
        #![proptest_config(property(256))]

        #[test]
        fn no_header_panics_the_parser(text in "[{}()':, a-zA-Z0-9<|\\[\\]]{0,60}", version in 0_u8..5) {
            let _ = NpyHeader::read(&file(version, &text));
        }

        #[test]
        fn no_bytes_panic_the_parser(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = NpyHeader::read(&[&file(1, "")[..8], &bytes].concat());
        }
    }
}
