// SPDX-License-Identifier: Apache-2.0
//! Class `SampleCache`: encoded samples of a Python dataset, in the memory of its process. Class `SampleCacheClient`: the same
//! cache in a worker process.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use foresee_data_loader::{
    ConsumerId, DataSet, RemoteAnswer, SampleAnswer, SampleCache as Core, SampleCacheClient as Client,
    SampleCacheCounts, SampleCacheHost, SampleGrouping, SharedOutcome, read_ahead,
};
use foresee_units::{Bytes, SampleId};
use numpy::PyReadonlyArray1;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyByteArray, PyDict};

use crate::errors;
use crate::fork_guard::ForkGuard;
use crate::index::Index;
use crate::interrupt::TICK;
use crate::loader::Loader;
use crate::sample_files::SampleFiles;

/// Bytes of those samples that are cached, and the samples that the caller reads.
type SeveralAnswers<'py> = (Vec<Option<Bound<'py, PyByteArray>>>, Vec<u64>);

#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct SampleCache {
    // A forked child cannot use the lock, which a thread of the parent may have held.
    core: ForkGuard<Arc<Core>>,
    host: ForkGuard<Mutex<Option<SampleCacheHost>>>,
}

#[pymethods]
impl SampleCache {
    #[new]
    #[pyo3(signature = (*, capacity_bytes, reads_batches = false, index = None, has_peers = false))]
    fn new(capacity_bytes: u64, reads_batches: bool, index: Option<&Index>, has_peers: bool) -> Self {
        let grouping = match index {
            Some(index) => {
                let data = Box::new(DataSet::new(index.index.clone(), ""));
                SampleGrouping::Neighbours { data, has_peers }
            }
            None if reads_batches => SampleGrouping::InOrder,
            None => SampleGrouping::Single,
        };
        let core = Arc::new(Core::with_grouping(Bytes::new(capacity_bytes), grouping));
        Self { core: ForkGuard::new(core), host: ForkGuard::new(Mutex::new(None)) }
    }

    #[getter]
    fn capacity_bytes(&self) -> PyResult<u64> {
        Ok(self.core()?.capacity().get())
    }

    /// Attach a consumer without accesses; `is_reading`: whether it is known to request its samples here.
    #[pyo3(signature = (consumer, *, is_reading))]
    fn attach(&self, py: Python<'_>, consumer: u32, is_reading: bool) -> PyResult<()> {
        let core = self.core()?;
        py.detach(|| core.attach(ConsumerId(consumer), is_reading));
        Ok(())
    }

    /// End a consumer and its announcements.
    fn detach(&self, py: Python<'_>, consumer: u32) -> PyResult<()> {
        let core = self.core()?;
        py.detach(|| core.detach(ConsumerId(consumer)));
        Ok(())
    }

    /// Announce the next accesses of a consumer.
    fn announce(&self, py: Python<'_>, consumer: u32, samples: Vec<u64>) -> PyResult<()> {
        let core = self.core()?;
        py.detach(|| core.announce(ConsumerId(consumer), &mut samples.into_iter().map(SampleId)));
        Ok(())
    }

    /// Further accesses that the consumer is expected to make.
    fn expect(&self, py: Python<'_>, consumer: u32, samples: PyReadonlyArray1<'_, u64>) -> PyResult<()> {
        let (core, samples) = (self.core()?, samples.as_slice()?);
        py.detach(|| core.expect(ConsumerId(consumer), &mut samples.iter().copied().map(SampleId)));
        Ok(())
    }

    /// The consumer's first `count` announced accesses of all so far were handed out. It takes less time than to get the
    /// interpreter lock again.
    fn hand_out(&self, consumer: u32, count: u64) -> PyResult<()> {
        self.core()?.hand_out(ConsumerId(consumer), count);
        Ok(())
    }

    /// Return a copy of a sample's bytes, after a wait if it is being read; None: the caller reads it, and then calls
    /// `insert` or `fail`.
    fn request<'py>(&self, py: Python<'py>, sample: u64) -> PyResult<Option<Bound<'py, PyByteArray>>> {
        let (core, sample) = (self.core()?, SampleId(sample));
        // A copy takes less time than to get the interpreter lock again.
        let mut answer = core.request(sample, false);
        loop {
            match answer {
                SampleAnswer::Bytes(bytes) => return Ok(Some(PyByteArray::new(py, &bytes))),
                SampleAnswer::Read => return Ok(None),
                SampleAnswer::Join(read) => {
                    answer = loop {
                        match py.detach(|| core.wait(&read, TICK)) {
                            SharedOutcome::Read(bytes) => break SampleAnswer::Bytes(bytes),
                            SharedOutcome::Failed => break py.detach(|| core.request(sample, true)),
                            SharedOutcome::InFlight => py.check_signals()?,
                        }
                    };
                }
            }
        }
    }

    /// Request several samples: return those that are cached, with None for the others, and those that the caller reads.
    fn request_all<'py>(&self, py: Python<'py>, samples: Vec<u64>) -> PyResult<SeveralAnswers<'py>> {
        let core = self.core()?;
        let samples: Vec<SampleId> = samples.into_iter().map(SampleId).collect();
        let cached = core.request_cached(&samples);
        let missing = missing(&samples, &cached);
        let claimed = if missing.is_empty() { Vec::new() } else { py.detach(|| core.claim(&missing)) };
        let to_python = |bytes: Option<_>| bytes.map(|bytes: Arc<[u8]>| PyByteArray::new(py, &bytes));
        let found = cached.into_iter().map(to_python).collect();
        Ok((found, claimed.into_iter().map(|sample| sample.0).collect()))
    }

    /// Several samples were read: cache copies of their bytes, as far as there is space.
    fn insert_all(&self, py: Python<'_>, samples: Vec<u64>, data: Vec<PyBackedBytes>) -> PyResult<()> {
        let core = self.core()?;
        let reads: Vec<(SampleId, &[u8])> =
            samples.into_iter().map(SampleId).zip(data.iter().map(|bytes| &**bytes)).collect();
        py.detach(|| core.insert_all(&reads));
        Ok(())
    }

    /// A sample was read: cache a copy of its bytes, if there is space for it.
    fn insert(&self, py: Python<'_>, sample: u64, data: &[u8]) -> PyResult<()> {
        let core = self.core()?;
        py.detach(|| core.insert(SampleId(sample), data));
        Ok(())
    }

    /// The sample that is inserted next was on the disk.
    fn note_disk_hit(&self) -> PyResult<()> {
        self.core()?.note_disk_hit();
        Ok(())
    }

    /// The read of a sample has failed.
    fn fail(&self, py: Python<'_>, sample: u64) -> PyResult<()> {
        let core = self.core()?;
        py.detach(|| core.fail(SampleId(sample)));
        Ok(())
    }

    /// Wait for the next samples to read ahead together; none after `close`.
    fn next_fetch(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        let core = self.core()?;
        Ok(py.detach(|| core.next_fetch()).into_iter().map(|sample| sample.0).collect())
    }

    /// Read ahead on this thread until `close`, from `files`, or else from `data`.
    #[pyo3(signature = (data, files = None))]
    fn read_ahead(&self, py: Python<'_>, data: &Loader, files: Option<&SampleFiles>) -> PyResult<()> {
        let (core, files) = (self.core()?, files.map(SampleFiles::core).transpose()?.flatten());
        py.detach(|| read_ahead(&*core, data.engine(), files.as_deref()));
        Ok(())
    }

    /// Accesses of a consumer that were handed out and not requested, and those passed over for good.
    fn outstanding(&self, consumer: u32) -> PyResult<Option<(u64, u64)>> {
        Ok(self.core()?.outstanding(ConsumerId(consumer)))
    }

    /// Mean bytes of the samples read so far; None before the first.
    fn mean_size(&self) -> PyResult<Option<u64>> {
        Ok(self.core()?.mean_size().map(Bytes::get))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let core = self.core()?;
        let counts = py.detach(|| core.counts());
        stats(py, &counts)
    }

    /// Let worker processes use the cache, for a dataset of `samples` samples; return the path of its socket.
    fn share(&self, py: Python<'_>, samples: u64) -> PyResult<PathBuf> {
        let (core, host) = (self.core()?, self.host.get()?);
        py.detach(|| {
            let mut host = host.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(host) = &*host {
                return Ok(host.path().to_owned());
            }
            SampleCacheHost::start(core, samples).map(|started| host.insert(started).path().to_owned())
        })
        .map_err(|error| PyOSError::new_err(error.to_string()))
    }

    /// End the waits of `next_fetch`, and the use by worker processes; without effect in a forked child.
    fn close(&self, py: Python<'_>) {
        if let (Some(core), Some(host)) = (self.core.get_in_owner(), self.host.get_in_owner()) {
            py.detach(|| {
                core.close();
                drop(host.lock().unwrap_or_else(PoisonError::into_inner).take());
            });
        }
    }
}

impl SampleCache {
    fn core(&self) -> PyResult<Arc<Core>> {
        let core = self.core.get_in_owner();
        core.map(Arc::clone)
            .ok_or_else(|| errors::defect("a forked child used the sample cache of its parent"))
    }
}

#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct SampleCacheClient {
    client: ForkGuard<Client>,
}

#[pymethods]
impl SampleCacheClient {
    #[new]
    #[pyo3(signature = (path, *, samples))]
    #[expect(clippy::needless_pass_by_value, reason = "an argument of Python")]
    fn new(py: Python<'_>, path: PathBuf, samples: u64) -> PyResult<Self> {
        let client = py.detach(|| Client::connect(&path, samples));
        let client = client.map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(Self { client: ForkGuard::new(client) })
    }

    /// Why the cache is of no use any more; None while it is.
    #[getter]
    fn fault(&self) -> PyResult<Option<String>> {
        Ok(self.client.get()?.fault())
    }

    /// Return a copy of a sample's bytes, after a wait if it is being read; None: the caller reads it, and then calls
    /// `insert` or `fail`.
    fn request<'py>(&self, py: Python<'py>, sample: u64) -> PyResult<Option<Bound<'py, PyByteArray>>> {
        let (client, sample) = (self.client.get()?, SampleId(sample));
        if let Some(bytes) = py.detach(|| client.copy(sample)) {
            return Ok(Some(PyByteArray::new(py, &bytes)));
        }
        let Some(request) = py.detach(|| client.request(sample)) else { return Ok(None) };
        loop {
            match py.detach(|| client.wait(&request, TICK)) {
                Some(RemoteAnswer::Bytes(bytes)) => return Ok(Some(PyByteArray::new(py, &bytes))),
                Some(RemoteAnswer::Read) => return Ok(None),
                None => py.check_signals()?,
            }
        }
    }

    /// Request several samples: return those that are cached, with None for the others, and those that the caller reads.
    fn request_all<'py>(&self, py: Python<'py>, samples: Vec<u64>) -> PyResult<SeveralAnswers<'py>> {
        let client = self.client.get()?;
        let samples: Vec<SampleId> = samples.into_iter().map(SampleId).collect();
        let copies: Vec<_> = py.detach(|| samples.iter().map(|&sample| client.copy(sample)).collect());
        let missing = missing(&samples, &copies);
        let claimed = if missing.is_empty() { Vec::new() } else { py.detach(|| client.claim(&missing)) };
        let to_python = |copy: Option<_>| copy.map(|bytes: Vec<u8>| PyByteArray::new(py, &bytes));
        let found = copies.into_iter().map(to_python).collect();
        Ok((found, claimed.into_iter().map(|sample| sample.0).collect()))
    }

    /// Several samples were read: cache copies of their bytes, as far as there is space.
    fn insert_all(&self, py: Python<'_>, samples: Vec<u64>, data: Vec<PyBackedBytes>) -> PyResult<()> {
        let client = self.client.get()?;
        let reads: Vec<(SampleId, &[u8])> =
            samples.into_iter().map(SampleId).zip(data.iter().map(|bytes| &**bytes)).collect();
        py.detach(|| client.insert_all(&reads));
        Ok(())
    }

    /// A sample was read: cache a copy of its bytes, if there is space for it.
    fn insert(&self, py: Python<'_>, sample: u64, data: &[u8]) -> PyResult<()> {
        let client = self.client.get()?;
        py.detach(|| client.insert(SampleId(sample), data));
        Ok(())
    }

    /// The sample that is inserted next was on the disk.
    fn note_disk_hit(&self, py: Python<'_>) -> PyResult<()> {
        let client = self.client.get()?;
        py.detach(|| client.note_disk_hit());
        Ok(())
    }

    /// The read of a sample has failed.
    fn fail(&self, py: Python<'_>, sample: u64) -> PyResult<()> {
        let client = self.client.get()?;
        py.detach(|| client.fail(SampleId(sample)));
        Ok(())
    }

    /// Wait for the next samples to read ahead together; none after `close`, or without a host.
    fn next_fetch(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        let client = self.client.get()?;
        Ok(py.detach(|| client.next_fetch()).into_iter().map(|sample| sample.0).collect())
    }

    /// Read ahead on this thread until `close`, or the end of the host; from `files`, or else from `data`.
    #[pyo3(signature = (data, files = None))]
    fn read_ahead(&self, py: Python<'_>, data: &Loader, files: Option<&SampleFiles>) -> PyResult<()> {
        let (client, files) = (self.client.get()?, files.map(SampleFiles::core).transpose()?.flatten());
        py.detach(|| read_ahead(client, data.engine(), files.as_deref()));
        Ok(())
    }

    /// Counts over all processes that share the cache.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let client = self.client.get()?;
        stats(py, &py.detach(|| client.counts()).unwrap_or_default())
    }

    /// End the waits of `next_fetch`; without effect in a forked child.
    fn close(&self, py: Python<'_>) {
        if let Some(client) = self.client.get_in_owner() {
            py.detach(|| client.close());
        }
    }
}

/// The samples without a copy.
fn missing<T>(samples: &[SampleId], copies: &[Option<T>]) -> Vec<SampleId> {
    let without = samples.iter().zip(copies).filter(|(_, copy)| copy.is_none());
    without.map(|(&sample, _)| sample).collect()
}

fn stats<'py>(py: Python<'py>, counts: &SampleCacheCounts) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    for (name, value) in [
        ("hits", counts.hits),
        ("joins", counts.joins),
        ("misses", counts.misses),
        ("fetches", counts.fetches),
        ("evictions", counts.evictions),
        ("bypasses", counts.bypasses),
        ("disk_hits", counts.disk_hits),
        ("samples", counts.samples),
        ("bytes", counts.bytes),
        ("capacity_bytes", counts.capacity),
    ] {
        out.set_item(name, value)?;
    }
    Ok(out)
}
