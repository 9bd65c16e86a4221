// SPDX-License-Identifier: Apache-2.0
//! An index as text, for `foresee index --json` and for the golden files.
//!
//! It is a separate form, so that the file format may change without it. Entries are created during
//! serialization, so ten million of them need no memory.

use foresee_units::SampleId;
use serde::ser::{Error as _, SerializeStruct};
use serde::{Serialize, Serializer};

use crate::index::Index;

/// An index that serializes as one object, with its first `limit` samples.
#[derive(Clone, Debug)]
pub struct Dump {
    index: Index,
    limit: u64,
}

impl Index {
    /// This index as text, with its first `limit` samples; `u64::MAX` for all of them.
    pub fn dump(&self, limit: u64) -> Dump {
        Dump { index: self.clone(), limit }
    }
}

impl Serialize for Dump {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let index = &self.index;
        let contents = index.contents();
        let classes: Vec<_> = index.classes().into_iter().map(Text).collect();
        let mut dump = serializer.serialize_struct("Dump", 12)?;
        dump.serialize_field("version", &index.layout().version())?;
        dump.serialize_field("base_uri", index.base_uri())?;
        dump.serialize_field("created", &index.created())?;
        dump.serialize_field("layout", index.layout())?;
        dump.serialize_field("fingerprint", &contents.fingerprint)?;
        dump.serialize_field("samples", &index.samples())?;
        dump.serialize_field("objects", &index.objects())?;
        dump.serialize_field("total_bytes", &contents.total_bytes)?;
        dump.serialize_field("max_bytes", &contents.max_bytes)?;
        dump.serialize_field("uniform_bytes", &index.uniform_size().map(foresee_units::Bytes::get))?;
        dump.serialize_field("classes", &classes)?;
        dump.serialize_field("entries", &Entries(self))?;
        dump.end()
    }
}

struct Entries<'a>(&'a Dump);

impl Serialize for Entries<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeSeq;

        let Dump { index, limit } = self.0;
        let shown = index.samples().min(*limit);
        let mut entries = serializer.serialize_seq(usize::try_from(shown * index.parts()).ok())?;
        let items = (0..shown).flat_map(|sample| (0..index.parts()).map(move |part| (sample, part)));
        for (sample, part) in items {
            let entry = index.entry(index.entry_of(SampleId(sample), part)).map_err(S::Error::custom)?;
            entries.serialize_element(&EntryText {
                sample,
                object: entry.object,
                key: Text(entry.key),
                start: entry.range.start,
                bytes: entry.range.len,
                tag: Text(entry.tag),
                label: entry.label,
            })?;
        }
        entries.end()
    }
}

#[derive(Serialize)]
struct EntryText<'a> {
    sample: u64,
    object: u64,
    key: Text<'a>,
    start: u64,
    bytes: u64,
    tag: Text<'a>,
    label: Option<i64>,
}

/// A string if the bytes are text, otherwise an object with their hexadecimal digits.
struct Text<'a>(&'a [u8]);

impl Serialize for Text<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Ok(text) = str::from_utf8(self.0) {
            return serializer.serialize_str(text);
        }
        let digits = b"0123456789abcdef";
        let digit = |value: u8| char::from(digits[usize::from(value)]);
        let hex: String = self.0.iter().flat_map(|&byte| [digit(byte >> 4), digit(byte & 15)]).collect();
        let mut object = serializer.serialize_struct("Hex", 1)?;
        object.serialize_field("hex", &hex)?;
        object.end()
    }
}
