// SPDX-License-Identifier: Apache-2.0
//! The fingerprint: 16 bytes that identify the content of a data set.
//!
//! Two indexes have equal fingerprints exactly if their samples are the same bytes of the same objects with the
//! same tags and labels in the same order. It excludes the location of the data set and the time of indexing: a
//! copy with equal tags is the same data set. It also excludes the file's encoding, so that a later format keeps
//! caches valid.

use crate::layout::Layout;

/// One object and its rows: the input of a fingerprint, and the content of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) size: u64,
    pub(crate) tag: &'a [u8],
    pub(crate) label: Option<u64>,
    /// Start of its first row; 0 if the object is the sample.
    pub(crate) start: u64,
    /// The number of its samples.
    pub(crate) rows: u64,
}

/// Takes objects in the order of the index.
#[derive(Debug)]
pub(crate) struct Fingerprint {
    hasher: blake3::Hasher,
    pending: Vec<u8>,
}

/// Large enough that the hash uses wide instructions.
const PENDING_BYTES: usize = 64 * 1024;

impl Fingerprint {
    /// Begin with the common properties: the size of rows, and the names of labels.
    pub(crate) fn new<'a>(layout: &Layout, classes: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut this = Self::empty("foresee index fingerprint 1");
        match layout {
            Layout::Folder(_) | Layout::Flat { .. } => this.number(0),
            Layout::Bin { row_bytes, .. } => {
                this.number(1);
                this.number(*row_bytes);
            }
            Layout::Npy { dtype, shape, row_bytes } => {
                this.number(2);
                this.number(*row_bytes);
                this.string(dtype.as_bytes());
                this.number(shape.len() as u64);
                for &length in shape {
                    this.number(length);
                }
            }
            Layout::Table { parts } => {
                this.number(3);
                this.number(*parts);
            }
            Layout::Windows(windows) => {
                this.number(4);
                this.string(windows.dtype.as_bytes());
                let tail = u64::from(windows.drop_tail);
                for number in [windows.item_bytes, windows.length, windows.stride, tail] {
                    this.number(number);
                }
            }
        }
        let mut count = 0;
        for class in classes {
            this.string(class);
            count += 1;
        }
        this.number(count);
        this
    }

    /// Begin with the fingerprint of the file of which samples are selected.
    pub(crate) fn of_selection(file: [u8; 16]) -> Self {
        let mut this = Self::empty("foresee index selection 1");
        this.pending.extend_from_slice(&file);
        this
    }

    fn empty(context: &str) -> Self {
        let hasher = blake3::Hasher::new_derive_key(context);
        Self { hasher, pending: Vec::with_capacity(2 * PENDING_BYTES) }
    }

    /// The next object.
    pub(crate) fn add(&mut self, object: &Object<'_>) {
        self.string(object.key);
        self.string(object.tag);
        for number in [object.size, object.label.map_or(0, |label| label + 1), object.start, object.rows] {
            self.number(number);
        }
        self.hash_pending();
    }

    /// After all objects: the objects of a table's samples, if they share any. For a selection: its samples.
    pub(crate) fn add_numbers(&mut self, numbers: impl Iterator<Item = u64>) {
        for number in numbers {
            self.number(number);
            self.hash_pending();
        }
    }

    fn hash_pending(&mut self) {
        if self.pending.len() >= PENDING_BYTES {
            self.hasher.update(&self.pending);
            self.pending.clear();
        }
    }

    /// The fingerprint of all input.
    pub(crate) fn finish(mut self) -> [u8; 16] {
        self.hasher.update(&self.pending);
        let mut fingerprint = [0; 16];
        self.hasher.finalize_xof().fill(&mut fingerprint);
        fingerprint
    }

    fn number(&mut self, number: u64) {
        self.pending.extend_from_slice(&number.to_le_bytes());
    }

    fn string(&mut self, string: &[u8]) {
        self.number(string.len() as u64);
        self.pending.extend_from_slice(string);
    }
}

/// Format as 32 hexadecimal digits.
pub(crate) fn to_hex(fingerprint: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(fingerprint))
}

/// Parse 32 lower-case hexadecimal digits.
pub(crate) fn from_hex(text: &str) -> Option<[u8; 16]> {
    let fingerprint = u128::from_str_radix(text, 16).ok()?.to_be_bytes();
    (to_hex(fingerprint) == text).then_some(fingerprint)
}
