// SPDX-License-Identifier: Apache-2.0
//! Class `Trial` and the functions about links: one repeat of one measurement.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::Builder;
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

use crate::errors;
use crate::index::Index;

/// Between two looks for Ctrl-C.
const LOOK: Duration = Duration::from_millis(50);
/// The longest time that an argument may ask for.
const SECONDS_MAX: f64 = 86_400.0;

#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct Trial {
    subject: Arc<Subject>,
}

enum Subject {
    Memory(MemoryProbe),
    Disk(DiskProbe),
    Origin(OriginProbe),
}

/// Bytes moved, seconds, and the median time of one operation in seconds.
type Measured = (u64, f64, f64);

#[pymethods]
impl Trial {
    #[staticmethod]
    fn memory(py: Python<'_>) -> PyResult<Self> {
        let memory = watched(py, |_| Ok(MemoryProbe::new()))?;
        Ok(Self { subject: Arc::new(Subject::Memory(memory)) })
    }

    #[staticmethod]
    #[pyo3(signature = (folder, *, bytes_max, seconds))]
    fn disk(py: Python<'_>, folder: PathBuf, bytes_max: u64, seconds: f64) -> PyResult<Self> {
        let within = time(seconds)?;
        let disk = watched(py, move |stop| DiskProbe::create(&folder, Bytes::new(bytes_max), within, stop))?;
        Ok(Self { subject: Arc::new(Subject::Disk(disk)) })
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
        let origin = watched(py, move |_| OriginProbe::open(index, &uri, storage))?;
        Ok(Self { subject: Arc::new(Subject::Origin(origin)) })
    }

    #[pyo3(signature = (work, *, threads, seconds))]
    fn measure(&self, py: Python<'_>, work: &str, threads: usize, seconds: f64) -> PyResult<Measured> {
        let threads = NonZeroUsize::new(threads)
            .ok_or_else(|| PyValueError::new_err("threads is 0; a whole number of 1 or more"))?;
        let lasts = time(seconds)?;
        let subject = Arc::clone(&self.subject);
        let work = Work::named(&subject, work)?;
        watched(py, move |stop| work.measure(&subject, threads, lasts, stop)).map(plain)
    }

    fn facts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let facts = PyDict::new(py);
        match &*self.subject {
            Subject::Memory(memory) => facts.set_item("pool_bytes", memory.pool().get())?,
            Subject::Disk(disk) => {
                facts.set_item("direct", disk.is_direct())?;
                facts.set_item("in_memory", disk.is_in_memory())?;
                facts.set_item("bytes", disk.file_bytes().get())?;
                facts.set_item("room", disk.free_bytes().map_err(errors::of_calibrate)?.get())?;
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
        let subject = Arc::clone(&self.subject);
        let read = watched(py, move |stop| match &*subject {
            Subject::Origin(origin) => origin.samples(count, Bytes::new(bytes_max), stop),
            Subject::Memory(_) | Subject::Disk(_) => Ok(Vec::new()),
        })?;
        Ok(read.iter().map(|sample| PyBytes::new(py, sample)).collect())
    }
}

/// A work of one of the subjects.
#[derive(Clone, Copy)]
enum Work {
    Memory(MemoryWork),
    Disk(DiskWork),
    Origin(OriginWork),
}

impl Work {
    fn named(subject: &Subject, name: &str) -> PyResult<Self> {
        let known: &[(&str, Self)] = match subject {
            Subject::Memory(_) => &[
                ("copy", Self::Memory(MemoryWork::Copy)),
                ("checksum", Self::Memory(MemoryWork::Checksum)),
                ("tier_read", Self::Memory(MemoryWork::TierRead)),
                ("tier_small_read", Self::Memory(MemoryWork::TierSmallRead)),
                ("tier_write", Self::Memory(MemoryWork::TierWrite)),
            ],
            Subject::Disk(_) => &[
                ("read", Self::Disk(DiskWork::Read)),
                ("small_read", Self::Disk(DiskWork::SmallRead)),
                ("cached_read", Self::Disk(DiskWork::CachedRead)),
                ("write", Self::Disk(DiskWork::Write)),
            ],
            Subject::Origin(_) => &[
                ("read", Self::Origin(OriginWork::Read)),
                ("small_read", Self::Origin(OriginWork::SmallRead)),
                ("cached_read", Self::Origin(OriginWork::CachedRead)),
            ],
        };
        known.iter().find(|(known, _)| *known == name).map(|&(_, work)| work).ok_or_else(|| {
            let known: Vec<_> = known.iter().map(|(name, _)| *name).collect();
            PyValueError::new_err(format!("work is {name:?}; one of {}", known.join(", ")))
        })
    }

    fn measure(
        self,
        subject: &Subject,
        threads: NonZeroUsize,
        lasts: Duration,
        stop: &AtomicBool,
    ) -> Result<Repeat, CalibrateError> {
        match (subject, self) {
            (Subject::Memory(memory), Self::Memory(work)) => memory.measure(work, threads, lasts, stop),
            (Subject::Disk(disk), Self::Disk(work)) => disk.measure(work, threads, lasts, stop),
            (Subject::Origin(origin), Self::Origin(work)) => origin.measure(work, threads, lasts, stop),
            _ => unreachable!("a work is looked up by its subject"),
        }
    }
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
) -> PyResult<Vec<(u32, Measured, Measured)>> {
    let (address, secret) = (place(address)?, shared(secret)?);
    let (lasts, within) = (time(seconds)?, time(wait_s)?);
    let measured =
        watched(py, move |stop| core::measure_links(address, world, &secret, repeats, lasts, within, stop))?;
    Ok(measured.into_iter().map(|link| (link.rank, plain(link.sent), plain(link.rounds))).collect())
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
    let (address, secret, within) = (place(address)?, shared(secret)?, time(wait_s)?);
    watched(py, move |stop| core::answer_links(address, rank, world, &secret, within, stop))
}

/// Runs `work` on a thread of its own, since only the one that Python called hears Ctrl-C. Then the flag is raised, and
/// the thread ends by itself: it holds nothing that has a name.
fn watched<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&AtomicBool) -> Result<T, CalibrateError> + Send + 'static,
) -> PyResult<T> {
    let stop = Arc::new(AtomicBool::new(false));
    let (done, ended) = sync_channel(1);
    let flag = Arc::clone(&stop);
    Builder::new().name("foresee-trial".to_owned()).spawn(move || {
        // After Ctrl-C nobody waits for it.
        let _ = done.send(work(&flag));
    })?;
    py.detach(move || {
        loop {
            match ended.recv_timeout(LOOK) {
                Ok(measured) => break measured.map_err(errors::of_calibrate),
                Err(RecvTimeoutError::Timeout) => Python::attach(|py| {
                    py.check_signals().inspect_err(|_| stop.store(true, Ordering::Relaxed))
                })?,
                Err(RecvTimeoutError::Disconnected) => {
                    break Err(errors::defect("the measurement has failed"));
                }
            }
        }
    })
}

fn plain(repeat: Repeat) -> Measured {
    (repeat.bytes.get(), repeat.took.as_secs_f64(), repeat.latency.as_secs_f64())
}

fn time(seconds: f64) -> PyResult<Duration> {
    if (0.0..=SECONDS_MAX).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err(PyValueError::new_err(format!("{seconds} s; 0 to {SECONDS_MAX} seconds")))
}

fn place(address: &str) -> PyResult<SocketAddr> {
    address.parse().map_err(|_| PyValueError::new_err(format!("address {address:?}; ip:port expected")))
}

fn shared(secret: &str) -> PyResult<Secret> {
    Secret::from_text(secret).map_err(|why| errors::of_wire(&why))
}
