// SPDX-License-Identifier: Apache-2.0
//! Reads of the origin on the caller's thread, without plan and caches: of one sample, or of neighbours with one request.

use foresee_data_index::ByteRange;
use foresee_data_plan::{ObjectRange, read_together};
use foresee_data_tier::{ObjectReader, OriginError, Uri};
use foresee_units::{Bytes, SampleId};

use super::{Loader, fault};
use crate::errors::LoaderError;

impl Loader {
    /// Read one sample from the origin, without plan and caches, on the caller's thread; for a table, its objects in
    /// order.
    pub fn read(&self, sample: SampleId) -> Result<Vec<u8>, LoaderError> {
        self.check_process()?;
        self.check_inside(&[sample])?;
        let index = self.data.index();
        let reader = self.reader()?;
        let mut whole = Vec::new();
        for entry in (0..index.parts()).map(|part| index.entry_of(sample, part)) {
            let range = index.range(entry);
            // A whole object is read without a range, to detect one that has grown.
            let part = (range.len != index.object_size(entry).get())
                .then(|| range.start..range.start.saturating_add(range.len));
            let bytes = reader.read(index.key(entry), part)?;
            if bytes.len() as u64 != range.len {
                return Err(LoaderError::Changed {
                    sample,
                    uri: self.data.uri(entry),
                    found: Bytes::new(bytes.len() as u64),
                    indexed: Bytes::new(range.len),
                });
            }
            whole = if whole.is_empty() { bytes } else { [whole, bytes].concat() };
        }
        Ok(whole)
    }

    /// Divide samples into those that are worth one read each, for [`read_all`](Self::read_all).
    pub fn read_groups(&self, samples: &[SampleId]) -> Result<Vec<Vec<SampleId>>, LoaderError> {
        self.check_inside(samples)?;
        let index = self.data.index();
        if index.parts() > 1 {
            return Ok(samples.iter().map(|&sample| vec![sample]).collect());
        }
        let range_of = |&sample: &SampleId| {
            let entry = index.entry_of(sample, 0);
            let range = index.range(entry);
            ObjectRange { object: index.object(entry), start: range.start, len: range.len }
        };
        let ranges: Vec<ObjectRange> = samples.iter().map(range_of).collect();
        let groups = read_together(&ranges);
        let with_ids = |group: Vec<usize>| group.into_iter().map(|place| samples[place]).collect();
        Ok(groups.into_iter().map(with_ids).collect())
    }

    /// Read the samples of one of [`read_groups`](Self::read_groups) with one request, as [`read`](Self::read) does.
    pub fn read_all(&self, samples: &[SampleId]) -> Result<Vec<Vec<u8>>, LoaderError> {
        let index = self.data.index();
        let (&[first, _, ..], 1) = (samples, index.parts()) else {
            return samples.iter().map(|&sample| self.read(sample)).collect();
        };
        self.check_process()?;
        self.check_inside(samples)?;
        let ranges: Vec<_> = samples.iter().map(|&sample| index.range(index.entry_of(sample, 0))).collect();
        let start = ranges.iter().map(|range| range.start).min().unwrap_or(0);
        let end = ranges.iter().map(|range| range.start.saturating_add(range.len)).max().unwrap_or(0);
        let bytes = self.reader()?.read(index.key(index.entry_of(first, 0)), Some(start..end))?;
        let part = |(range, &sample): (&ByteRange, &SampleId)| {
            let from = usize::try_from(range.start - start).ok();
            let data =
                from.and_then(|from| bytes.get(from..from.checked_add(usize::try_from(range.len).ok()?)?));
            // An object that is shorter than indexed: the read of this sample alone reports what it finds.
            data.map_or_else(|| self.read(sample), |data| Ok(data.to_vec()))
        };
        ranges.iter().zip(samples).map(part).collect()
    }

    fn check_inside(&self, samples: &[SampleId]) -> Result<(), LoaderError> {
        let count = self.data.index().samples();
        samples.iter().find(|sample| sample.0 >= count).map_or(Ok(()), |sample| {
            Err(fault(&format!("sample {sample} is outside the data set of {count} samples")))
        })
    }

    fn reader(&self) -> Result<&ObjectReader, LoaderError> {
        if self.reader.get().is_none() {
            let uri = Uri::parse(&self.config.options.uri).map_err(OriginError::from)?;
            // Another thread may open one at the same time, and its connections are then used.
            let _ = self.reader.set(ObjectReader::open(&uri, &self.origin_options())?);
        }
        Ok(self.reader.get().expect("as set"))
    }
}
