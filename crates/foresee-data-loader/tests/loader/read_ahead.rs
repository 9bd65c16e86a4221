// SPDX-License-Identifier: Apache-2.0
//! Threads that read the announced samples of a cache ahead from data of Foresee's.

use std::fs;

use foresee_data_loader::{
    ConsumerId, DataSet as Source, SampleAnswer, SampleCache, SampleGrouping, read_ahead,
};
use foresee_data_tier::{OriginIdentity, SampleFiles, SampleFilesConfig};
use foresee_testkit::wait_until;
use foresee_units::{Bytes, SampleId};

use crate::support::{DataSet, bytes_of, ram};

const CONSUMER: ConsumerId = ConsumerId(0);

/// Read all samples of `set` ahead, from `files` first; return the counts (fetches, samples in the cache, disk hits).
fn read_all(set: &DataSet, files: Option<&SampleFiles>, whole: u64) -> (u64, u64, u64) {
    let mut options = set.options();
    let loader = set.loader(&ram(set.ram_for(&mut options, 0)), options);
    let grouping =
        SampleGrouping::Neighbours { data: Box::new(Source::new(set.index.clone(), "")), has_peers: false };
    let cache = SampleCache::with_grouping(Bytes::new(1 << 20), grouping);
    cache.attach(CONSUMER, true);
    cache.announce(CONSUMER, &mut (0..set.len()).map(SampleId));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| read_ahead(&cache, &loader, files));
        }
        wait_until("all samples that can be read", || cache.counts().samples == whole);
        cache.close();
    });
    for id in 0..set.len() {
        match cache.request(SampleId(id), false) {
            SampleAnswer::Bytes(bytes) => assert_eq!(*bytes, *bytes_of(id, set.size(id))),
            SampleAnswer::Read => cache.fail(SampleId(id)),
            SampleAnswer::Join(_) => panic!("nothing is being read"),
        }
    }
    let counts = cache.counts();
    (counts.fetches, counts.samples, counts.disk_hits)
}

#[test]
fn files_and_rows_are_read_ahead_with_their_bytes() {
    assert_eq!(read_all(&DataSet::files(&[500; 30]), None, 30), (30, 30, 0));
    assert_eq!(read_all(&DataSet::rows(2, 40, 64), None, 80), (80, 80, 0));
}

#[test]
fn a_sample_that_cannot_be_read_leaves_the_others() {
    let set = DataSet::files(&[500; 30]);
    fs::remove_file(set.path(17)).expect("a file");
    assert_eq!(read_all(&set, None, 29).1, 29);
    // Rows of a file that has become shorter: the whole ones are there.
    let rows = DataSet::rows(1, 40, 64);
    let path = rows.dir.path().join("000000.bin");
    fs::write(&path, &fs::read(&path).expect("a file")[..30 * 64]).expect("a file");
    assert_eq!(read_all(&rows, None, 30).1, 30);
}

#[test]
fn samples_are_stored_on_the_disk_and_found_there() {
    let set = DataSet::rows(2, 40, 64);
    let dir = tempfile::tempdir().expect("a temporary folder");
    let config = SampleFilesConfig {
        dir: dir.path().join("cache"),
        capacity: Bytes::new(16 << 20),
        identity: OriginIdentity::of_key("rows", "bytes"),
        samples: set.len(),
    };
    for disk_hits in [0, 80] {
        let files = SampleFiles::open(&config).expect("a directory");
        assert_eq!(read_all(&set, Some(&files), 80), (80, 80, disk_hits));
    }
}
