// SPDX-License-Identifier: Apache-2.0
//! Class `Loader`: one rank's engine.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use foresee_data_loader as core;
use foresee_data_loader::{
    ConsumerWait, EpochSamples, LoaderError, LoaderOptions, Next, NextOffer, PeerPlace,
};
use foresee_data_order::Order;
use foresee_ledger::Cause;
use foresee_units::{Bytes, Epoch, Nanos, NodeIndex, SampleId, Step, World};
use numpy::PyReadonlyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyBytes, PyDict};

use crate::arguments::secret_of;
use crate::batch::{Batch, cause_times};
use crate::cache::Cache;
use crate::index::Index;
use crate::interrupt::{LOG_INTERVAL, TICK, warn};
use crate::{errors, stats};

#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct Loader {
    engine: Arc<core::Loader>,
}

impl Loader {
    /// The loader itself.
    pub(crate) fn engine(&self) -> &core::Loader {
        &self.engine
    }
}

#[pymethods]
impl Loader {
    #[new]
    #[pyo3(signature = (
        index, cache, *, uri, options, batch_size, drop_last, order, epochs, rank, world_size, local_rank,
        local_world_size, staging_bytes, threads, run_dir, listed, avoid=Vec::new(), node=None, peers=false
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of the Python signature")]
    fn new(
        index: &Index,
        cache: &Cache,
        uri: String,
        options: std::collections::BTreeMap<String, String>,
        batch_size: u64,
        drop_last: bool,
        order: Option<&Bound<'_, PyDict>>,
        epochs: Option<u64>,
        rank: u32,
        world_size: u32,
        local_rank: u32,
        local_world_size: u32,
        staging_bytes: Option<u64>,
        threads: Option<usize>,
        run_dir: Option<PathBuf>,
        listed: bool,
        avoid: Vec<u64>,
        node: Option<(String, String)>,
        peers: bool,
    ) -> PyResult<Self> {
        let world =
            |rank, size| World::new(rank, size).map_err(|error| PyValueError::new_err(error.to_string()));
        let options = LoaderOptions {
            uri,
            storage: options.into_iter().collect(),
            batch_size,
            drop_last,
            order: order.map(|order| order_of(order, index.index.samples())).transpose()?,
            avoid: avoid.into_iter().map(SampleId).collect(),
            epochs,
            world: world(rank, world_size)?,
            local_world: world(local_rank, local_world_size)?,
            staging: staging_bytes.map(Bytes::new),
            threads,
            run_dir,
            listed,
            node: node.map(|(job, version)| core::NodeIdentity { job, version }),
            peers,
        };
        let engine = core::Loader::new(index.index.clone(), Arc::clone(&cache.shared), options);
        Ok(Self { engine: Arc::new(engine.map_err(errors::of_loader)?) })
    }

    fn start(&self, py: Python<'_>) -> PyResult<()> {
        while !py.detach(|| self.engine.start(TICK)).map_err(errors::of_loader)? {
            py.check_signals()?;
        }
        Ok(())
    }

    #[pyo3(signature = (epoch, position, order=None))]
    fn begin_epoch(
        &self,
        py: Python<'_>,
        epoch: u64,
        position: u64,
        order: Option<(PyReadonlyArray1<'_, i64>, Option<PyReadonlyArray1<'_, i64>>)>,
    ) -> PyResult<()> {
        let Some((ids, lengths)) = order else {
            return self.engine.begin_epoch(Epoch(epoch), position, None).map_err(errors::of_loader);
        };
        let ids = naturals(&ids, "ids")?;
        let lengths = lengths.map(|lengths| naturals(&lengths, "lengths")).transpose()?;
        let order = EpochSamples { ids: &ids, lengths: lengths.as_deref() };
        py.detach(|| self.engine.begin_epoch(Epoch(epoch), position, Some(order))).map_err(errors::of_loader)
    }

    #[pyo3(signature = (*, timeout_ms=None))]
    fn next_batch(&self, py: Python<'_>, timeout_ms: Option<u64>) -> PyResult<Option<Batch>> {
        let mut logged = Nanos::ZERO;
        loop {
            let tick = timeout_ms.map_or(TICK, |limit| TICK.min(Duration::from_millis(limit)));
            let next = py.detach(|| self.engine.next_batch(tick)).map_err(errors::of_loader)?;
            for notice in self.engine.take_notices() {
                warn(py, notice)?;
            }
            let (waited, what) = match next {
                Next::Batch(batch) => return Ok(Some(Batch::new(batch))),
                Next::EpochEnd => return Ok(None),
                Next::Waiting { waited, what } => (waited, what),
            };
            py.check_signals()?;
            if let Some(limit) = timeout_ms.filter(|&limit| waited >= Nanos::from_millis(limit)) {
                let what = what.map(|what| format!(": waiting for {what}")).unwrap_or_default();
                return Err(errors::of_loader(LoaderError::Timeout { waited_ms: limit, what }));
            }
            if Duration::from(waited.saturating_sub(logged)) >= LOG_INTERVAL {
                logged = waited;
                let what = what.unwrap_or_else(|| "the driver".to_owned());
                warn(py, format!("no batch for {waited}: waiting for {what}"))?;
            }
        }
    }

    fn now(&self) -> u64 {
        self.engine.now().get()
    }

    fn turns(&self) -> Vec<(&'static str, u64)> {
        cause_times(&self.engine.wait_stages())
    }

    fn record_wait(
        &self,
        epoch: u64,
        step: u64,
        samples: u32,
        start: u64,
        end: u64,
        turns: Vec<(PyBackedStr, u64)>,
    ) -> PyResult<()> {
        self.engine.record_wait(&consumer_wait((epoch, step, samples), start, end, turns)?);
        Ok(())
    }

    fn read<'py>(&self, py: Python<'py>, sample: u64) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = py.detach(|| self.engine.read(SampleId(sample))).map_err(errors::of_loader)?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Divide samples into those that are worth one read each.
    fn read_groups(&self, py: Python<'_>, samples: Vec<u64>) -> PyResult<Vec<Vec<u64>>> {
        let samples: Vec<SampleId> = samples.into_iter().map(SampleId).collect();
        let groups = py.detach(|| self.engine.read_groups(&samples)).map_err(errors::of_loader)?;
        Ok(groups.into_iter().map(|group| group.into_iter().map(|sample| sample.0).collect()).collect())
    }

    /// Read the samples of a group with one request.
    fn read_all<'py>(&self, py: Python<'py>, samples: Vec<u64>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let samples: Vec<SampleId> = samples.into_iter().map(SampleId).collect();
        let read = py.detach(|| self.engine.read_all(&samples)).map_err(errors::of_loader)?;
        Ok(read.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }

    fn steps(&self, position: u64) -> PyResult<u64> {
        let steps = self.engine.steps(position).map_err(errors::of_loader)?;
        steps.ok_or_else(|| {
            PyValueError::new_err(
                "the run has no order, so its epochs may differ in length: count their batches",
            )
        })
    }

    fn first_in_flight(&self) -> PyResult<u32> {
        self.engine.first_in_flight().map_err(errors::of_loader)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        stats::to_python(py, &self.engine.stats())
    }

    /// The identity of the loader, the generation and the offer; `waiting`, `not ready`, `closed` or `not host` if there is none.
    #[pyo3(signature = (after, *, node, nodes, address, secret, timeout_ms))]
    #[expect(clippy::too_many_arguments, reason = "keywords of the Python signature")]
    fn peer_offer<'py>(
        &self,
        py: Python<'py>,
        after: Option<u32>,
        node: u16,
        nodes: u16,
        address: &str,
        secret: Option<&str>,
        timeout_ms: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let address = address.parse().map_err(|_| {
            PyValueError::new_err(format!(
                "the address of this node is {address:?}; an IP address is expected"
            ))
        })?;
        let secret = secret_of(secret, None)?;
        let place = PeerPlace { node: NodeIndex(node), nodes, address, secret };
        let tick = Duration::from_millis(timeout_ms);
        let next = py.detach(|| self.engine.peer_offer(after, &place, tick)).map_err(errors::of_peers)?;
        match next {
            NextOffer::Offer { loader, generation, bytes } => {
                let loader = format!("{:032x}", u128::from_be_bytes(loader));
                Ok((loader, generation, PyBytes::new(py, &bytes)).into_pyobject(py)?.into_any())
            }
            NextOffer::Waiting => Ok("waiting".into_pyobject(py)?.into_any()),
            NextOffer::NotReady => Ok("not ready".into_pyobject(py)?.into_any()),
            NextOffer::Closed => Ok("closed".into_pyobject(py)?.into_any()),
            NextOffer::NotHost => Ok("not host".into_pyobject(py)?.into_any()),
        }
    }

    fn join_peers(&self, py: Python<'_>, offers: Vec<Vec<u8>>) -> PyResult<()> {
        py.detach(|| self.engine.join_peers(&offers)).map_err(errors::of_peers)
    }

    fn expect_no_peers(&self) {
        self.engine.expect_no_peers();
    }

    fn generation(&self) -> Option<u32> {
        self.engine.generation()
    }

    fn host_events<'py>(&self, py: Python<'py>) -> PyResult<Vec<(&'static str, Bound<'py, PyDict>)>> {
        let event = |entry: core::HostLogEntry| {
            let fields = PyDict::new(py);
            for (name, value) in entry.fields {
                fields.set_item(name, value)?;
            }
            Ok((entry.event, fields))
        };
        self.engine.host_events().into_iter().map(event).collect()
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.engine.close());
    }
}

/// The wait for the batch of (epoch, step, samples), from Python's arguments.
pub(crate) fn consumer_wait(
    (epoch, step, samples): (u64, u64, u32),
    start: u64,
    end: u64,
    turns: Vec<(PyBackedStr, u64)>,
) -> PyResult<ConsumerWait> {
    let known = |(word, since): (PyBackedStr, u64)| {
        let cause = Cause::from_name(&word).ok_or_else(|| errors::defect("a cause of waiting"))?;
        Ok((cause, Nanos::new(since)))
    };
    Ok(ConsumerWait {
        epoch: Epoch(epoch),
        step: Step(step),
        samples,
        start: Nanos::new(start),
        end: Nanos::new(end),
        stages: turns.into_iter().map(known).collect::<PyResult<_>>()?,
    })
}

fn naturals(array: &PyReadonlyArray1<'_, i64>, name: &str) -> PyResult<Vec<u64>> {
    let natural = |&number: &i64| {
        u64::try_from(number)
            .map_err(|_| PyValueError::new_err(format!("{name} holds {number}; use 0 or more")))
    };
    array.as_array().iter().map(natural).collect()
}

/// The order of a run, from its fields in states and configurations.
pub(crate) fn order_of(fields: &Bound<'_, PyDict>, n: u64) -> PyResult<Order> {
    let name: String = field(fields, "name")?;
    let seed = || field::<i64>(fields, "seed").map(i64::cast_unsigned);
    let flag = |name: &str, default: bool| match fields.get_item(name)? {
        Some(value) => value.extract(),
        None => Ok(default),
    };
    let drop_last = flag("drop_last", false)?;
    match name.as_str() {
        "torch.distributed" => {
            Ok(Order::Distributed { n, seed: seed()?, shuffle: flag("shuffle", true)?, drop_last })
        }
        "sequential" => Ok(Order::Sequential { n, drop_last }),
        "keyed-1" => Ok(Order::Keyed { n, seed: seed()?, drop_last }),
        "accelerate.seedable" => {
            let batch_size = NonZeroU64::new(field(fields, "batch_size")?)
                .ok_or_else(|| PyValueError::new_err("batch_size is 0; use 1 or more"))?;
            let even_batches = flag("even_batches", true)?;
            Ok(Order::SeedableShard { n, seed: seed()?, batch_size, drop_last, even_batches })
        }
        _ => Err(PyValueError::new_err(format!(
            "order {name:?} is unknown; use torch.distributed, sequential, keyed-1 or accelerate.seedable"
        ))),
    }
}

fn field<'py, T: for<'a> FromPyObject<'a, 'py, Error = PyErr>>(
    fields: &Bound<'py, PyDict>,
    name: &str,
) -> PyResult<T> {
    fields
        .get_item(name)?
        .ok_or_else(|| PyValueError::new_err(format!("the order lacks {name:?}")))?
        .extract()
}
