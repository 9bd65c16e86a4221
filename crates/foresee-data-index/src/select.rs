// SPDX-License-Identifier: Apache-2.0
//! A selection of an index's samples, in an order of its own, for subsets of a data set.
//!
//! Entries stay those of the file, so that reads of several subsets of one data set are the same to every cache.

use foresee_units::{Bytes, SampleId};

use crate::error::IndexError;
use crate::fingerprint::Fingerprint;
use crate::index::Index;

/// Samples by their numbers in the file, in the order of the selection.
#[derive(Debug)]
pub(crate) struct Selection {
    samples: Box<[u64]>,
    fingerprint: [u8; 16],
    total_bytes: Bytes,
}

impl Selection {
    pub(crate) fn len(&self) -> u64 {
        self.samples.len() as u64
    }

    /// # Panics
    /// If `sample` is not below [`Self::len`]: a defect of the caller.
    pub(crate) fn get(&self, sample: SampleId) -> SampleId {
        SampleId(self.samples[usize::try_from(sample.0).expect("a place in memory")])
    }

    pub(crate) const fn fingerprint(&self) -> [u8; 16] {
        self.fingerprint
    }

    pub(crate) const fn total_bytes(&self) -> Bytes {
        self.total_bytes
    }

    pub(crate) fn memory(&self) -> Bytes {
        Bytes::new(size_of_val(&*self.samples) as u64)
    }
}

impl Index {
    /// An index of some of the samples: its sample `k` is sample `samples[k]` of this one. A sample may occur
    /// several times. Entries, classes and the file stay those of the whole.
    ///
    /// # Errors
    /// [`IndexError::NotSelectable`] for the first invalid number, and for an empty selection.
    pub fn select(&self, samples: &[i64]) -> Result<Self, IndexError> {
        let known = self.samples();
        let in_file = (0_u64..).zip(samples).map(|(place, &sample)| {
            let within = u64::try_from(sample).ok().filter(|&sample| sample < known);
            let not_selectable = IndexError::NotSelectable { place, sample, samples: known };
            within.map(|sample| self.in_file(SampleId(sample)).0).ok_or(not_selectable)
        });
        let samples = in_file.collect::<Result<Box<[u64]>, _>>()?;
        if samples.is_empty() {
            return Err(IndexError::NoneSelected { samples: known });
        }
        let (fingerprint, total_bytes) = (self.fingerprint_of(&samples), self.bytes_of(&samples));
        Ok(self.with_selection(Selection { samples, fingerprint, total_bytes }))
    }

    fn fingerprint_of(&self, samples: &[u64]) -> [u8; 16] {
        let mut fingerprint = Fingerprint::of_selection(self.file_fingerprint());
        fingerprint.add_numbers(samples.iter().copied());
        fingerprint.finish()
    }

    /// Bytes of the entries of `samples`, each counted once.
    fn bytes_of(&self, samples: &[u64]) -> Bytes {
        let parts = 0..self.parts();
        let entries =
            |&sample: &u64| parts.clone().map(move |part| self.entry_in_file(SampleId(sample), part));
        let mut entries: Vec<SampleId> = samples.iter().flat_map(entries).collect();
        entries.sort_unstable();
        entries.dedup();
        entries.into_iter().fold(Bytes::ZERO, |all, entry| all.saturating_add(self.size(entry)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use foresee_units::{Bytes, SampleId};

    use crate::{Index, IndexBuilder, IndexError, LayoutOptions, Listed};

    /// A table of four samples with two objects each, of 1, 2, 4, ... bytes; the last two samples share an object.
    fn table() -> Index {
        let mut builder = IndexBuilder::new("/d", LayoutOptions::Table { parts: 2 }, 0).expect("an index");
        for object in 0..7_u32 {
            let key = format!("{object}").into_bytes();
            builder.handle_listed(Listed { key, size: 1 << object, tag: Vec::new() }).expect("sound");
        }
        builder.handle_picks(vec![0, 1, 2, 3, 4, 5, 4, 6]);
        let mut file = Vec::new();
        builder.finish().expect("sound").write(&mut file).expect("memory");
        Index::open(Arc::new(file)).expect("an index")
    }

    fn entries(index: &Index) -> Vec<u64> {
        let samples = (0..index.samples()).map(SampleId);
        samples
            .flat_map(|sample| (0..index.parts()).map(move |part| index.entry_of(sample, part).0))
            .collect()
    }

    #[test]
    fn a_selection_has_the_entries_and_rows_of_its_samples_in_its_own_order() {
        let selected = table().select(&[3, 0, 2, 3]).expect("samples of the table");
        assert_eq!(selected.samples(), 4);
        assert_eq!(entries(&selected), [4, 6, 0, 1, 4, 5, 4, 6]);
        let rows: Vec<_> = (0..4).map(|sample| selected.sample_label(SampleId(sample))).collect();
        assert_eq!(rows, [Some(3), Some(0), Some(2), Some(3)]);
        assert!(selected.shares_entries());
        selected.verify().expect("the file is whole");
    }

    #[test]
    fn bytes_of_a_selection_count_each_entry_once() {
        let selected = table().select(&[2, 3, 3]).expect("samples of the table");
        assert_eq!(selected.total_bytes(), Bytes::new((1 << 4) + (1 << 5) + (1 << 6)));
        assert_eq!(selected.mean_size(), table().mean_size());
    }

    #[test]
    fn a_selection_of_a_selection_is_one_of_the_whole() {
        let nested = table().select(&[3, 1, 0]).and_then(|outer| outer.select(&[2, 0])).expect("samples");
        let direct = table().select(&[0, 3]).expect("samples of the table");
        assert_eq!(entries(&nested), entries(&direct));
        assert_eq!(nested.fingerprint(), direct.fingerprint());
        assert_eq!(nested.file(), direct.file());
    }

    #[test]
    fn other_samples_or_another_order_have_another_fingerprint() {
        let of = |samples: &[i64]| table().select(samples).expect("samples of the table").fingerprint();
        assert_ne!(of(&[0, 1]), of(&[1, 0]));
        assert_ne!(of(&[0, 1]), of(&[0, 2]));
        assert_ne!(of(&[0, 1, 2, 3]), table().fingerprint());
        assert_eq!(of(&[2, 1]), of(&[2, 1]));
    }

    #[test]
    fn an_invalid_number_is_reported_with_its_position() {
        for (samples, place, sample) in [(&[0, 4][..], 1, 4), (&[-1][..], 0, -1)] {
            let found = table().select(samples).expect_err("outside");
            assert!(
                matches!(found, IndexError::NotSelectable { place: p, sample: s, samples: 4 } if (p, s) == (place, sample)),
                "{found}"
            );
        }
        assert!(matches!(table().select(&[]), Err(IndexError::NoneSelected { samples: 4 })));
    }
}
