// SPDX-License-Identifier: Apache-2.0
//! Data sets with known bytes, loaders over them, and a consumer that checks its batches.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use foresee_data_index::{Exclude, Index, LayoutOptions};
use foresee_data_loader::{Batch, Cache, Loader, LoaderError, LoaderOptions, Next, build_index};
use foresee_data_order::Order;
use foresee_ledger::Op;
use foresee_testkit::WATCHDOG;
use foresee_units::{Bytes, Epoch, GAMMA, SampleId, Source, World};
use tempfile::TempDir;

/// A folder of samples and its index.
pub(crate) struct DataSet {
    pub(crate) dir: TempDir,
    pub(crate) sizes: Vec<u64>,
    pub(crate) index: Index,
    pub(crate) uri: String,
}

impl DataSet {
    /// One file per sample.
    pub(crate) fn files(sizes: &[u64]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        for (id, &size) in (0..).zip(sizes) {
            write_sample(dir.path(), id, size);
        }
        let uri = dir.path().display().to_string();
        let index = index_of(&uri, LayoutOptions::Flat { extensions: Vec::new() }, None);
        Self { dir, sizes: sizes.to_vec(), index, uri }
    }

    /// `files` files of `rows` samples of `size` bytes each.
    pub(crate) fn rows(files: u64, rows: u64, size: u64) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        for file in 0..files {
            let bytes: Vec<u8> = (0..rows).flat_map(|row| bytes_of(file * rows + row, size)).collect();
            fs::write(dir.path().join(format!("{file:06}.bin")), bytes).expect("a file");
        }
        let uri = dir.path().display().to_string();
        let layout = LayoutOptions::Bin { row_bytes: size, extensions: vec![".bin".to_owned()] };
        let index = index_of(&uri, layout, None);
        Self { dir, sizes: vec![size; usize::try_from(files * rows).expect("few")], index, uri }
    }

    pub(crate) fn len(&self) -> u64 {
        self.sizes.len() as u64
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.sizes.iter().sum()
    }

    pub(crate) fn size(&self, id: u64) -> u64 {
        self.sizes[usize::try_from(id).expect("an index")]
    }

    pub(crate) fn path(&self, id: u64) -> PathBuf {
        self.dir.path().join(key_of(id))
    }

    /// Options of a single rank, with one epoch of torch's order and batches of four.
    pub(crate) fn options(&self) -> LoaderOptions {
        LoaderOptions {
            uri: self.uri.clone(),
            storage: Vec::new(),
            batch_size: 4,
            drop_last: false,
            order: Some(self.shuffled(7)),
            avoid: Vec::new(),
            epochs: Some(1),
            world: World::ALONE,
            local_world: World::ALONE,
            staging: None,
            threads: Some(4),
            run_dir: None,
            node: None,
            peers: false,
            listed: false,
        }
    }

    pub(crate) fn shuffled(&self, seed: u64) -> Order {
        Order::Distributed { n: self.len(), seed, shuffle: true, drop_last: false }
    }

    pub(crate) fn loader(&self, cache: &Arc<Cache>, options: LoaderOptions) -> Loader {
        Loader::new(self.index.clone(), Arc::clone(cache), options).expect("a configuration that fits")
    }

    /// Memory for staging, tables (40 bytes per sample), the listing and `samples` bytes of cache. Sets the minimal staging
    /// buffer if `options` has none.
    pub(crate) fn ram_for(&self, options: &mut LoaderOptions, samples: u64) -> u64 {
        let largest = self.sizes.iter().max().copied().unwrap_or(0);
        let three = 3 * (largest * options.batch_size).min(self.bytes());
        let staging = options.staging.get_or_insert(Bytes::new(three));
        staging.get() + 40 * self.len() + self.listing() + samples
    }

    /// Memory of the listing: its index, and 190 bytes per object.
    pub(crate) fn listing(&self) -> u64 {
        self.index.memory().get() + 190 * self.len()
    }

    /// Check that `batch` has the bytes of its ids, and zeros for faults.
    pub(crate) fn check(&self, batch: &Batch) {
        assert_eq!(batch.offsets.len(), batch.ids.len() + 1);
        assert_eq!(batch.labels, vec![-1; batch.ids.len()]);
        for (place, id) in batch.ids.iter().enumerate() {
            let faulty = batch.faults.iter().any(|fault| fault.index == place);
            let expected = if faulty {
                vec![0; usize::try_from(self.size(id.0)).expect("small")]
            } else {
                bytes_of(id.0, self.size(id.0))
            };
            assert!(sample_of(batch, place) == expected, "bytes of sample {id}, fault: {faulty}");
        }
    }
}

/// The bytes of the sample at `place`.
pub(crate) fn sample_of(batch: &Batch, place: usize) -> &[u8] {
    let at = |place: usize| usize::try_from(batch.offsets[place]).expect("small");
    &batch.bytes()[at(place)..at(place + 1)]
}

pub(crate) fn ids_of(batch: &Batch) -> Vec<u64> {
    batch.ids.iter().map(|id| id.0).collect()
}

pub(crate) fn key_of(id: u64) -> String {
    format!("{id:06}")
}

pub(crate) fn write_sample(folder: &Path, id: u64, size: u64) {
    fs::write(folder.join(key_of(id)), bytes_of(id, size)).expect("a file");
}

/// The bytes of a sample: different for each sample and each offset.
pub(crate) fn bytes_of(id: u64, size: u64) -> Vec<u8> {
    let mut state = id.wrapping_mul(GAMMA) | 1;
    let word = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let words = usize::try_from(size.div_ceil(8)).expect("small");
    let mut bytes: Vec<u8> = std::iter::repeat_with(word).take(words).flatten().collect();
    bytes.truncate(usize::try_from(size).expect("small"));
    bytes
}

pub(crate) fn index_of(uri: &str, layout: LayoutOptions, keys: Option<&[Vec<u8>]>) -> Index {
    let (index, _) = build_index(
        uri,
        Vec::new(),
        layout,
        false,
        keys,
        &Exclude::default(),
        &|_| {},
        &AtomicBool::new(false),
    )
    .expect("an index");
    index
}

/// A budget of memory only.
pub(crate) fn ram(bytes: u64) -> Arc<Cache> {
    cache(bytes, None, 0)
}

pub(crate) fn cache(ram: u64, dir: Option<&Path>, disk: u64) -> Arc<Cache> {
    let dir = dir.map(Path::to_path_buf);
    Arc::new(Cache::new(Bytes::new(ram), dir, Bytes::new(disk)).expect("a budget below that of the host"))
}

/// The batches of one rank's epoch from a global position on, computed from the order.
pub(crate) fn expected(options: &LoaderOptions, epoch: u64, position: u64) -> Vec<Vec<u64>> {
    let order = options.order.expect("an order of the run").epoch(Epoch(epoch)).expect("an epoch");
    let rank = order.rank(options.world, position).expect("a valid position");
    let ids: Vec<u64> = rank.iter().map(|id| id.0).collect();
    let size = usize::try_from(options.batch_size).expect("small");
    ids.chunks(size).filter(|batch| !options.drop_last || batch.len() == size).map(<[u64]>::to_vec).collect()
}

/// The next batch, or `None` at the epoch's end.
pub(crate) fn next(loader: &Loader) -> Result<Option<Batch>, LoaderError> {
    match loader.next_batch(WATCHDOG)? {
        Next::Batch(batch) => Ok(Some(*batch)),
        Next::EpochEnd => Ok(None),
        Next::Waiting { waited, what } => panic!("no batch within {waited}: waiting for {what:?}"),
    }
}

/// The rest of the epoch, every byte checked, no faults.
pub(crate) fn epoch(set: &DataSet, loader: &Loader) -> Vec<Vec<u64>> {
    let batch = || next(loader).expect("a batch or the end");
    std::iter::from_fn(batch)
        .map(|batch| {
            set.check(&batch);
            assert!(batch.faults.is_empty(), "{:?}", batch.faults);
            ids_of(&batch)
        })
        .collect()
}

/// Run all epochs, and check them against the order.
pub(crate) fn run(set: &DataSet, loader: &Loader, options: &LoaderOptions) {
    for number in 0..options.epochs.expect("a run that ends") {
        assert_eq!(epoch(set, loader), expected(options, number, 0), "epoch {number}");
    }
}

/// Options of a run of `epochs` epochs, whose staging buffer holds half of the data or three batches.
pub(crate) fn epochs(set: &DataSet, epochs: u64) -> LoaderOptions {
    let three = 12 * set.sizes.iter().max().copied().unwrap_or(0);
    let staging = Some(Bytes::new(three.max(set.bytes() / 2)));
    LoaderOptions { epochs: Some(epochs), staging, ..set.options() }
}

/// Samples read from a source, by the metrics.
pub(crate) fn read_from(loader: &Loader, source: Source) -> u64 {
    loader.stats().totals.done(Op::Read, source).map_or(0, |tally| tally.samples)
}

pub(crate) fn sample_ids(ids: &[Vec<u64>]) -> Vec<SampleId> {
    ids.iter().flatten().map(|&id| SampleId(id)).collect()
}
