// SPDX-License-Identifier: Apache-2.0
//! Class `NodeHost`, the host of a node's cache as a service, and the status of any host of this node.

use std::path::PathBuf;
use std::time::Duration;

use foresee_data_loader as core;
use foresee_data_node::{
    AddressValues, AnswerCount, ConnectOptions, ConsumerStatus, NodeAddress, NodeDiscovery, NodeError,
    NodeStatus, PeerStatus,
};
use foresee_units::Bytes;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::interrupt::TICK;

/// Time for each step of a request for the status.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);

#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct NodeHost {
    host: core::NodeHost,
}

#[pymethods]
impl NodeHost {
    #[new]
    #[pyo3(signature = (*, socket, ram_bytes, disk_dir, disk_bytes, allow_uids))]
    fn new(
        py: Python<'_>,
        socket: Option<PathBuf>,
        ram_bytes: u64,
        disk_dir: Option<PathBuf>,
        disk_bytes: u64,
        allow_uids: Vec<u32>,
    ) -> PyResult<Self> {
        let options = core::NodeHostOptions {
            address: address(socket)?,
            ram: Bytes::new(ram_bytes),
            disk: disk_dir.map(|dir| (dir, Bytes::new(disk_bytes))),
            allow_uids,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ranks: 1,
            others: core::OtherNodes::Apart,
            probes_listed: true,
            huge_pages: true,
        };
        let host = py.detach(|| core::NodeHost::start(options)).map_err(|error| failed(&error))?;
        Ok(Self { host })
    }

    /// The path of its socket.
    #[getter]
    fn socket(&self) -> PathBuf {
        self.host.path().to_owned()
    }

    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        to_python(py, &self.host.status())
    }

    fn next_event<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let next = py.detach(|| self.host.next_event(TICK));
        py.check_signals()?;
        let entry = match next {
            Ok(Some(entry)) => entry,
            Ok(None) => return Ok(None),
            Err(ended) => return Err(PyOSError::new_err(ended.to_string())),
        };
        let event = PyDict::new(py);
        event.set_item("event", entry.event)?;
        event.set_item("consumer", entry.consumer)?;
        for (name, value) in entry.fields {
            event.set_item(name, value)?;
        }
        Ok(Some(event))
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.host.close());
    }
}

/// The status of the host at `socket`, or at its usual path.
#[pyfunction]
pub(crate) fn node_status(py: Python<'_>, socket: Option<PathBuf>) -> PyResult<Bound<'_, PyDict>> {
    let address = address(socket)?;
    let options = ConnectOptions { allow_uids: address.trusted_uids(), timeout: STATUS_TIMEOUT };
    let status = py.detach(|| NodeStatus::query(&address, &options)).map_err(|error| failed(&error))?;
    to_python(py, &status)
}

fn address(socket: Option<PathBuf>) -> PyResult<NodeAddress> {
    let refused = |error: NodeError| PyValueError::new_err(error.to_string());
    if let Some(socket) = socket {
        let socket = std::path::absolute(&socket)?;
        return NodeAddress::explicit(socket).map_err(refused);
    }
    match AddressValues::from_environment().service().map_err(refused)? {
        NodeDiscovery::At(address) => Ok(address),
        NodeDiscovery::Off => Err(PyValueError::new_err(
            "the cache of the node is off in the environment; unset FORESEE_OFF and FORESEE_NODE, or name the socket",
        )),
    }
}

fn failed(error: &NodeError) -> PyErr {
    PyOSError::new_err(error.to_string())
}

pub(crate) fn to_python<'py>(py: Python<'py>, status: &NodeStatus) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    all.set_item("foresee", &status.foresee)?;
    all.set_item("pid", status.pid)?;
    all.set_item("uptime_seconds", status.uptime_seconds)?;
    for (name, tier) in [("memory", &status.memory), ("disk", &status.disk)] {
        let values = PyDict::new(py);
        values.set_item("capacity_bytes", tier.capacity)?;
        values.set_item("used_bytes", tier.used)?;
        all.set_item(name, values)?;
    }
    let origin = PyDict::new(py);
    origin.set_item("requests", status.origin.requests)?;
    origin.set_item("bytes", status.origin.bytes)?;
    origin.set_item("retries", status.origin.retries)?;
    origin.set_item("throttles", status.origin.throttles)?;
    origin.set_item("hedges", status.origin.hedges)?;
    all.set_item("origin", origin)?;
    let peers = status.peers.as_ref().map(|peers| peers_to_python(py, peers)).transpose()?;
    all.set_item("peers", peers)?;
    let consumers = status.consumers.iter().map(|consumer| consumer_to_python(py, consumer));
    all.set_item("consumers", consumers.collect::<PyResult<Vec<_>>>()?)?;
    all.set_item("omitted_consumers", status.omitted_consumers)?;
    Ok(all)
}

fn peers_to_python<'py>(py: Python<'py>, peers: &PeerStatus) -> PyResult<Bound<'py, PyDict>> {
    let one = PyDict::new(py);
    one.set_item("received", count_to_python(py, &peers.received)?)?;
    one.set_item("sent", count_to_python(py, &peers.sent)?)?;
    one.set_item("missing", peers.missing)?;
    one.set_item("late", peers.late)?;
    one.set_item("silent", peers.silent)?;
    Ok(one)
}

fn count_to_python<'py>(py: Python<'py>, count: &AnswerCount) -> PyResult<Bound<'py, PyDict>> {
    let one = PyDict::new(py);
    one.set_item("samples", count.samples)?;
    one.set_item("bytes", count.bytes)?;
    Ok(one)
}

fn consumer_to_python<'py>(py: Python<'py>, consumer: &ConsumerStatus) -> PyResult<Bound<'py, PyDict>> {
    let one = PyDict::new(py);
    one.set_item("number", consumer.number)?;
    one.set_item("pid", consumer.pid)?;
    one.set_item("uid", consumer.uid)?;
    one.set_item("job", &consumer.job)?;
    one.set_item("rank", consumer.rank)?;
    one.set_item("local_rank", consumer.local_rank)?;
    one.set_item("data_set", &consumer.data_set)?;
    let ConsumerStatus { memory, disk, peers, origin, .. } = consumer;
    for (name, count) in [("memory", memory), ("disk", disk), ("peers", peers), ("origin", origin)] {
        one.set_item(name, count_to_python(py, count)?)?;
    }
    one.set_item("waiting", consumer.waiting)?;
    one.set_item("idle_ns", consumer.idle_nanos)?;
    Ok(one)
}
