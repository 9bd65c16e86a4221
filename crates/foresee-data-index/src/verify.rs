// SPDX-License-Identifier: Apache-2.0
//! Full verification of an index: every entry, and all of them against the fingerprint.
//!
//! It is separate from opening, which must not read ten million entries: `foresee index --verify` and recipients
//! of an index pay for it, a training run does not.

use std::cmp::Ordering;

use crate::error::IndexError;
use crate::fingerprint::Fingerprint;
use crate::index::Index;
use crate::layout::Layout;

impl Index {
    /// Read every entry and compare it with the contents and the fingerprint.
    ///
    /// # Errors
    /// The first contradiction: [`IndexError::DamagedEntry`] with its object, or [`IndexError::Damaged`] for the
    /// whole.
    pub fn verify(&self) -> Result<(), IndexError> {
        let contents = self.contents();
        let damaged = |what| IndexError::Damaged { what };
        let classes = self.classes();
        if classes.len() as u64 != contents.classes.as_ref().map_or(0, |classes| classes.count) {
            return Err(damaged("its classes are outside of the file"));
        }
        let options = self.layout().options();
        let row_bytes = self.layout().row_bytes();
        let mut fingerprint = Fingerprint::new(self.layout(), classes.into_iter());
        let (mut total, mut largest, mut previous): (u64, u64, Option<&[u8]>) = (0, 0, None);
        for number in 0..self.objects() {
            let object = self.object_at(number)?;
            let wrong = |what| IndexError::DamagedEntry { object: number, what };
            if !options.keeps_order()
                && previous.is_some_and(|previous| options.compare(previous, object.key) != Ordering::Less)
            {
                return Err(wrong("keys that are not in order"));
            }
            let sample_bytes = row_bytes.unwrap_or(object.size);
            let bytes = object.rows.checked_mul(sample_bytes);
            let fits = match self.layout() {
                Layout::Windows(windows) => {
                    let rows = windows.rows(object.start, object.size, String::new);
                    object.start <= object.size && rows.is_ok_and(|(rows, _)| rows.rows == object.rows)
                }
                _ => bytes
                    .and_then(|bytes| bytes.checked_add(object.start))
                    .is_some_and(|end| end <= object.size),
            };
            if !fits {
                return Err(wrong("rows past the object's end"));
            }
            total = bytes.and_then(|bytes| total.checked_add(bytes)).ok_or_else(|| wrong("2^64 bytes"))?;
            largest = largest.max(sample_bytes);
            previous = Some(object.key);
            fingerprint.add(&object);
        }
        if (total, largest) != (contents.total_bytes, contents.max_bytes) {
            return Err(damaged("its totals are not those of its entries"));
        }
        let mut picked = Ok(());
        fingerprint.add_numbers(
            (0..self.picks()).map_while(|number| self.pick(number).map_err(|error| picked = Err(error)).ok()),
        );
        picked?;
        if fingerprint.finish() != self.file_fingerprint() {
            return Err(damaged("its fingerprint is not that of its entries"));
        }
        Ok(())
    }
}
