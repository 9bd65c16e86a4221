// SPDX-License-Identifier: Apache-2.0
//! Reads ahead from data of Foresee's: loops of threads that need nothing of the caller.

use foresee_data_tier::SampleFiles;
use foresee_units::SampleId;

use super::{SampleCache, SampleCacheClient};
use crate::engine::Loader;

/// Requests for parts of a group that fail one after the other before the rest is given up: enough to find one damaged sample
/// among a million.
const FAILURES_MAX: u32 = 24;

/// A cache whose samples are read ahead: of this process, or of the parent process.
pub trait ReadAhead {
    /// Wait for the next samples to read together; none when reading ahead ends.
    fn next(&self) -> Vec<SampleId>;
    /// These samples were read.
    fn insert(&self, reads: &[(SampleId, &[u8])]);
    /// The sample that is inserted next was on the disk.
    fn note_disk_hit(&self);
    /// The read of a sample has failed.
    fn fail(&self, sample: SampleId);
}

/// Read the samples of `cache` ahead until that ends: from `files`, or else from `data`, whose samples have the same
/// numbers. What cannot be read is left to its request, which reads it again and reports the error.
pub fn read_ahead(cache: &impl ReadAhead, data: &Loader, files: Option<&SampleFiles>) {
    loop {
        let samples = cache.next();
        if samples.is_empty() {
            return;
        }
        let is_missing = |&sample: &SampleId| {
            let Some(bytes) = files.and_then(|files| files.get(sample)) else { return true };
            cache.note_disk_hit();
            cache.insert(&[(sample, &bytes)]);
            false
        };
        let missing: Vec<SampleId> = samples.into_iter().filter(is_missing).collect();
        match data.read_groups(&missing) {
            Ok(groups) => {
                for group in &groups {
                    read_group(cache, data, files, group);
                }
            }
            Err(_) => {
                for sample in missing {
                    cache.fail(sample);
                }
            }
        }
    }
}

/// Read samples with one request. If that fails, read each half: a fault that passes costs two requests, and of a range with a
/// damaged sample only that one fails. After some requests that have all failed the others are not tried.
fn read_group(cache: &impl ReadAhead, data: &Loader, files: Option<&SampleFiles>, group: &[SampleId]) {
    let (mut left, mut failed) = (vec![group], 0);
    while let Some(part) = left.pop() {
        let read = if failed < FAILURES_MAX { data.read_all(part).ok() } else { None };
        if let Some(read) = read {
            failed = 0;
            let reads: Vec<(SampleId, &[u8])> =
                part.iter().copied().zip(read.iter().map(Vec::as_slice)).collect();
            if let Some(files) = files {
                for &(sample, bytes) in &reads {
                    files.insert(sample, bytes);
                }
            }
            cache.insert(&reads);
            continue;
        }
        failed += 1;
        if part.len() > 1 && failed < FAILURES_MAX {
            let (first, second) = part.split_at(part.len() / 2);
            left.extend([second, first]);
        } else {
            for &sample in part {
                cache.fail(sample);
            }
        }
    }
}

macro_rules! reads_ahead {
    ($($cache:ty),*) => {$(
        impl ReadAhead for $cache {
            fn next(&self) -> Vec<SampleId> {
                self.next_fetch()
            }

            fn insert(&self, reads: &[(SampleId, &[u8])]) {
                self.insert_all(reads);
            }

            fn note_disk_hit(&self) {
                <$cache>::note_disk_hit(self);
            }

            fn fail(&self, sample: SampleId) {
                <$cache>::fail(self, sample);
            }
        }
    )*};
}

reads_ahead!(SampleCache, SampleCacheClient);
