// SPDX-License-Identifier: Apache-2.0
//! The index file: its frame and its table of contents. Only this file reads and writes them.
//!
//! ```text
//! magic, version | columns, one after the other | contents (JSON) | trailer: position, length, checksum
//! ```
//! The contents come last, so that an index is written front to back in one pass, and a truncated file has none.
//! The checksum covers frame and contents, but not the columns: opening reads no entry, and
//! [`crate::Index::verify`] compares the entries with the fingerprint. `docs/formats/index.md` specifies the
//! bytes.

use serde::{Deserialize, Serialize};

use crate::column::{Cursor, Numbers, NumbersAt, Strings, StringsAt};
use crate::error::IndexError;
use crate::layout::Layout;

/// The newest version; all versions up to it are readable. An index is written in the first version that has its
/// layout.
pub const FORMAT_VERSION: u32 = 2;

/// A byte that is not text, a name, and line ends that a text transfer would change.
pub(crate) const MAGIC: [u8; 8] = *b"\x89FIDX\r\n\x1a";
/// Magic, version, four zero bytes.
pub(crate) const HEAD_BYTES: usize = 16;
/// Position and length of the contents, checksum, [`END`].
const TRAILER_BYTES: usize = 8 + 8 + 16 + 8;
const END: [u8; 8] = *b"FIDX-END";

/// The contents; the file's columns follow one another in the order of these fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Contents {
    /// Redacted; ends in `/`.
    pub(crate) base_uri: String,
    /// Seconds since 1970 in UTC.
    pub(crate) created: u64,
    pub(crate) layout: Layout,
    /// Fingerprint of the content, 32 hexadecimal digits.
    pub(crate) fingerprint: String,
    pub(crate) samples: u64,
    /// Bytes of all samples.
    pub(crate) total_bytes: u64,
    /// Bytes of the largest sample.
    pub(crate) max_bytes: u64,
    pub(crate) objects: Objects,
    /// Present if the samples have labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) classes: Option<Classes>,
    /// Present if an object has several samples of one size; otherwise each object is a sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rows: Option<Rows>,
    /// Present if samples of a table share objects; otherwise each object belongs to one sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) picks: Option<Picks>,
}

/// Objects of a table's samples, in sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Picks {
    pub(crate) count: u64,
    pub(crate) object: Numbers,
}

/// One entry per object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Objects {
    pub(crate) count: u64,
    pub(crate) key: Strings,
    pub(crate) size: Numbers,
    pub(crate) tag: Strings,
}

/// A label per object, a name per class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Classes {
    pub(crate) count: u64,
    pub(crate) label: Numbers,
    pub(crate) name: Strings,
}

/// For each object the start of its first row, and the total number of rows up to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rows {
    pub(crate) start: Numbers,
    pub(crate) end: Numbers,
}

/// The positions of the columns in the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ColumnPositions {
    pub(crate) key: StringsAt,
    pub(crate) size: NumbersAt,
    pub(crate) tag: StringsAt,
    pub(crate) label: Option<NumbersAt>,
    pub(crate) class: Option<StringsAt>,
    pub(crate) row_start: Option<NumbersAt>,
    pub(crate) row_end: Option<NumbersAt>,
    pub(crate) pick: Option<NumbersAt>,
}

impl Contents {
    /// The frame's first bytes.
    pub(crate) fn head(&self) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(&MAGIC);
        head[8..12].copy_from_slice(&self.layout.version().to_le_bytes());
        head
    }

    /// Contents and trailer, for a write at byte `at`.
    pub(crate) fn tail(&self, at: u64) -> Vec<u8> {
        let mut tail = serde_json::to_vec(self).expect("numbers and strings always have a JSON form");
        let mut place = [0; 16];
        place[..8].copy_from_slice(&at.to_le_bytes());
        place[8..].copy_from_slice(&(tail.len() as u64).to_le_bytes());
        let sum = checksum(&self.head(), &tail, &place);
        for part in [&place[..], &sum, &END] {
            tail.extend_from_slice(part);
        }
        tail
    }

    /// Read frame and contents of a file and locate its columns; reads no entries except the last ones.
    pub(crate) fn read(file: &[u8]) -> Result<(Self, ColumnPositions), IndexError> {
        let cut = || IndexError::Truncated { bytes: file.len() as u64 };
        if file.is_empty() || !MAGIC.starts_with(&file[..file.len().min(MAGIC.len())]) {
            return Err(IndexError::NotAnIndex);
        }
        let (head, _) = file.split_first_chunk::<HEAD_BYTES>().ok_or_else(cut)?;
        let found = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        if found > FORMAT_VERSION {
            return Err(IndexError::NewerVersion { found, supported: FORMAT_VERSION });
        }
        let (front, trailer) = file.split_last_chunk::<TRAILER_BYTES>().ok_or_else(cut)?;
        if !trailer.ends_with(&END) {
            return Err(cut());
        }
        let damaged = |what| IndexError::Damaged { what };
        let (place, sum) = (&trailer[..16], &trailer[16..32]);
        let number =
            |at: usize| place[at..at + 8].iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte));
        let (at, bytes) = (number(0), number(8));
        if at < HEAD_BYTES as u64 || at.checked_add(bytes) != Some(front.len() as u64) {
            return Err(damaged("its contents do not end at its trailer"));
        }
        let text = &front[front.len() - usize::try_from(bytes).map_err(|_| cut())?..];
        if checksum(head, text, place) != *sum {
            return Err(damaged("the checksum of its contents does not match"));
        }
        let contents: Self =
            serde_json::from_slice(text).map_err(|_| damaged("its contents are not those of its version"))?;
        if found < contents.layout.version() {
            return Err(damaged("its layout is not one of its version"));
        }
        let columns = contents.columns(file, at).ok_or_else(|| damaged("its columns do not add up"))?;
        Ok((contents, columns))
    }

    /// The columns between the frame's head and byte `end`; `None` if they do not fill that range exactly, or if
    /// the last entries contradict the totals.
    fn columns(&self, file: &[u8], end: u64) -> Option<ColumnPositions> {
        let mut cursor = Cursor { at: HEAD_BYTES as u64 };
        let count = self.objects.count;
        let (classes, rows, picks) = (self.classes.as_ref(), self.rows.as_ref(), self.picks.as_ref());
        let columns = ColumnPositions {
            key: cursor.strings(self.objects.key, count)?,
            size: cursor.numbers(self.objects.size, count)?,
            tag: cursor.strings(self.objects.tag, count)?,
            label: classes.map_or(Some(None), |it| cursor.numbers(it.label, count).map(Some))?,
            class: classes.map_or(Some(None), |it| cursor.strings(it.name, it.count).map(Some))?,
            row_start: rows.map_or(Some(None), |it| cursor.numbers(it.start, count).map(Some))?,
            row_end: rows.map_or(Some(None), |it| cursor.numbers(it.end, count).map(Some))?,
            pick: picks.map_or(Some(None), |it| cursor.numbers(it.object, it.count).map(Some))?,
        };
        let samples = match (columns.row_end, &self.layout) {
            (Some(row_end), _) => row_end.get(file, count.checked_sub(1)?)?,
            (None, Layout::Table { parts }) => {
                let items = self.picks.as_ref().map_or(count, |picks| picks.count);
                items.is_multiple_of(*parts).then(|| items.checked_div(*parts)).flatten()?
            }
            (None, _) => count,
        };
        let adds_up = cursor.at == end
            && self.samples == samples
            && samples > 0
            && self.rows.is_some() == self.layout.row_bytes().is_some()
            && (self.picks.is_none() || matches!(self.layout, Layout::Table { .. }))
            && columns.key.is_complete(file)
            && columns.tag.is_complete(file)
            && columns.class.is_none_or(|class| class.is_complete(file));
        adds_up.then_some(columns)
    }
}

fn checksum(head: &[u8], contents: &[u8], place: &[u8]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    for part in [head, contents, place] {
        hasher.update(part);
    }
    let mut sum = [0; 16];
    hasher.finalize_xof().fill(&mut sum);
    sum
}
