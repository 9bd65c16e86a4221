// SPDX-License-Identifier: Apache-2.0
//! Reads in flight: at most one for each sample, and an estimate of the bytes that they will need.

use std::collections::BTreeMap;

use foresee_units::Bytes;

/// A party that reads samples, such as a process. Its reads end with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReaderId(pub u32);

/// Reads in flight, by sample.
#[derive(Debug, Default)]
pub(super) struct Flights {
    readers: BTreeMap<u32, ReaderId>,
    /// Samples read so far, and their bytes.
    count: u64,
    bytes: Bytes,
}

impl Flights {
    pub(super) fn contains(&self, sample: u32) -> bool {
        self.readers.contains_key(&sample)
    }

    pub(super) fn start(&mut self, sample: u32, reader: ReaderId) {
        let before = self.readers.insert(sample, reader);
        debug_assert!(before.is_none(), "sample {sample} is read twice");
    }

    /// End a read, with the size if it was successful; return whether there was one.
    pub(super) fn end(&mut self, sample: u32, size: Option<Bytes>) -> bool {
        let was_reading = self.readers.remove(&sample).is_some();
        if let Some(size) = size.filter(|_| was_reading) {
            self.count += 1;
            self.bytes += size;
        }
        was_reading
    }

    /// End the reads of a reader; return their samples.
    pub(super) fn end_all(&mut self, reader: ReaderId) -> Vec<u32> {
        let of_reader = |&(_, &one): &(&u32, &ReaderId)| one == reader;
        let ended: Vec<u32> = self.readers.iter().filter(of_reader).map(|(&sample, _)| sample).collect();
        self.readers.retain(|_, one| *one != reader);
        ended
    }

    /// Mean size of a sample, rounded up; `None` before the first.
    pub(super) fn mean_size(&self) -> Option<Bytes> {
        (self.count > 0).then(|| Bytes::new(self.bytes.get().div_ceil(self.count)))
    }

    /// Bytes that the reads in flight and one more will need, by the mean size.
    pub(super) fn expected_bytes(&self) -> Bytes {
        let mean = self.mean_size().unwrap_or(Bytes::ZERO);
        Bytes::new(mean.get().saturating_mul(self.readers.len() as u64 + 1))
    }
}
