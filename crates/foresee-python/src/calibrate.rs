// SPDX-License-Identifier: Apache-2.0
//! Class `Trial` and the functions about links: one repeat of one measurement.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use foresee_calibrate as core;
use foresee_calibrate::{
    CalibrateError, DiskProbe, DiskWork, MemoryProbe, MemoryWork, OriginProbe, OriginWork, Repeat,
};
use foresee_units::Bytes;
use foresee_wire::Secret;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::index::Index;
use crate::{errors, interrupt};

/// The longest time of an argument.
const SECONDS_MAX: f64 = 86_400.0;

#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct Trial {
    subject: Subject,
}

enum Subject {
    Memory(Arc<MemoryProbe>),
    Disk(Arc<DiskProbe>),
    Origin(Arc<OriginProbe>),
}

const MEMORY_WORKS: [(&str, MemoryWork); 5] = [
    ("copy", MemoryWork::Copy),
    ("checksum", MemoryWork::Checksum),
    ("tier_read", MemoryWork::TierRead),
    ("tier_small_read", MemoryWork::TierSmallRead),
    ("tier_write", MemoryWork::TierWrite),
];
const DISK_WORKS: [(&str, DiskWork); 4] = [
    ("read", DiskWork::Read),
    ("small_read", DiskWork::SmallRead),
    ("cached_read", DiskWork::CachedRead),
    ("write", DiskWork::Write),
];
const ORIGIN_WORKS: [(&str, OriginWork); 3] = [
    ("read", OriginWork::Read),
    ("small_read", OriginWork::SmallRead),
    ("cached_read", OriginWork::CachedRead),
];

/// Bytes moved, seconds, and the median time of one operation in seconds.
type Measurement = (u64, f64, f64);

#[pymethods]
impl Trial {
    #[staticmethod]
    fn memory(py: Python<'_>) -> PyResult<Self> {
        let memory = run_cancellable(py, |_| Ok(MemoryProbe::new()))?;
        Ok(Self { subject: Subject::Memory(Arc::new(memory)) })
    }

    #[staticmethod]
    #[pyo3(signature = (folder, *, bytes_max, seconds))]
    fn disk(py: Python<'_>, folder: PathBuf, bytes_max: u64, seconds: f64) -> PyResult<Self> {
        let within = duration_of(seconds)?;
        let disk =
            run_cancellable(py, move |stop| DiskProbe::create(&folder, Bytes::new(bytes_max), within, stop))?;
        Ok(Self { subject: Subject::Disk(Arc::new(disk)) })
    }

    #[staticmethod]
    #[pyo3(signature = (index, uri, *, options=None))]
    fn origin(
        py: Python<'_>,
        index: &Index,
        uri: String,
        options: Option<std::collections::BTreeMap<String, String>>,
    ) -> PyResult<Self> {
        let index = index.index.clone();
        let storage = options.unwrap_or_default().into_iter().collect();
        let origin = run_cancellable(py, move |_| OriginProbe::open(index, &uri, storage))?;
        Ok(Self { subject: Subject::Origin(Arc::new(origin)) })
    }

    #[pyo3(signature = (work, *, threads, seconds))]
    fn measure(&self, py: Python<'_>, work: &str, threads: usize, seconds: f64) -> PyResult<Measurement> {
        let threads = NonZeroUsize::new(threads)
            .ok_or_else(|| PyValueError::new_err("threads is 0; a whole number of 1 or more"))?;
        let lasts = duration_of(seconds)?;
        match &self.subject {
            Subject::Memory(memory) => {
                let (memory, work) = (Arc::clone(memory), find(&MEMORY_WORKS, work)?);
                run_cancellable(py, move |stop| memory.measure(work, threads, lasts, stop))
            }
            Subject::Disk(disk) => {
                let (disk, work) = (Arc::clone(disk), find(&DISK_WORKS, work)?);
                run_cancellable(py, move |stop| disk.measure(work, threads, lasts, stop))
            }
            Subject::Origin(origin) => {
                let (origin, work) = (Arc::clone(origin), find(&ORIGIN_WORKS, work)?);
                run_cancellable(py, move |stop| origin.measure(work, threads, lasts, stop))
            }
        }
        .map(measurement)
    }

    fn facts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let facts = PyDict::new(py);
        match &self.subject {
            Subject::Memory(memory) => facts.set_item("pool_bytes", memory.pool().get())?,
            Subject::Disk(disk) => {
                facts.set_item("direct", disk.is_direct())?;
                facts.set_item("in_memory", disk.is_in_memory())?;
                facts.set_item("bytes", disk.file_bytes().get())?;
                facts.set_item("free_bytes", disk.free_bytes().map_err(errors::of_calibrate)?.get())?;
            }
            Subject::Origin(origin) => {
                facts.set_item("pages", origin.has_pages())?;
                facts.set_item("in_memory", origin.is_in_memory())?;
            }
        }
        Ok(facts)
    }

    #[pyo3(signature = (count, *, bytes_max))]
    fn samples<'py>(
        &self,
        py: Python<'py>,
        count: usize,
        bytes_max: u64,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let Subject::Origin(origin) = &self.subject else { return Ok(Vec::new()) };
        let origin = Arc::clone(origin);
        let read = run_cancellable(py, move |stop| origin.samples(count, Bytes::new(bytes_max), stop))?;
        Ok(read.iter().map(|sample| PyBytes::new(py, sample)).collect())
    }
}

fn find<W: Copy>(works: &[(&str, W)], name: &str) -> PyResult<W> {
    works.iter().find(|(known, _)| *known == name).map(|&(_, work)| work).ok_or_else(|| {
        let known: Vec<_> = works.iter().map(|(name, _)| *name).collect();
        PyValueError::new_err(format!("work is {name:?}; one of {}", known.join(", ")))
    })
}

#[pyfunction]
#[pyo3(signature = (address, *, world, secret, repeats, seconds, wait_s))]
pub(crate) fn links_measure(
    py: Python<'_>,
    address: &str,
    world: u32,
    secret: &str,
    repeats: u32,
    seconds: f64,
    wait_s: f64,
) -> PyResult<Vec<(u32, Measurement, Measurement)>> {
    let (address, secret) = (socket_address(address)?, secret_of(secret)?);
    let (lasts, within) = (duration_of(seconds)?, duration_of(wait_s)?);
    let measured = run_cancellable(py, move |stop| {
        core::measure_links(address, world, &secret, repeats, lasts, within, stop)
    })?;
    Ok(measured
        .into_iter()
        .map(|link| (link.rank, measurement(link.sent), measurement(link.rounds)))
        .collect())
}

#[pyfunction]
#[pyo3(signature = (address, *, rank, world, secret, wait_s))]
pub(crate) fn links_answer(
    py: Python<'_>,
    address: &str,
    rank: u32,
    world: u32,
    secret: &str,
    wait_s: f64,
) -> PyResult<()> {
    let (address, secret, within) = (socket_address(address)?, secret_of(secret)?, duration_of(wait_s)?);
    run_cancellable(py, move |stop| core::answer_links(address, rank, world, &secret, within, stop))
}

fn run_cancellable<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&AtomicBool) -> Result<T, CalibrateError> + Send + 'static,
) -> PyResult<T> {
    interrupt::run(py, "foresee-trial", work, |_| Ok(()))?.map_err(errors::of_calibrate)
}

fn measurement(repeat: Repeat) -> Measurement {
    (repeat.bytes.get(), repeat.took.as_secs_f64(), repeat.latency.as_secs_f64())
}

fn duration_of(seconds: f64) -> PyResult<Duration> {
    if (0.0..=SECONDS_MAX).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err(PyValueError::new_err(format!("{seconds} s; 0 to {SECONDS_MAX} seconds")))
}

fn socket_address(address: &str) -> PyResult<SocketAddr> {
    address.parse().map_err(|_| PyValueError::new_err(format!("address {address:?}; ip:port expected")))
}

fn secret_of(text: &str) -> PyResult<Secret> {
    Secret::from_text(text).map_err(errors::of_wire)
}
