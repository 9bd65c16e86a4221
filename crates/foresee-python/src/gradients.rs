// SPDX-License-Identifier: Apache-2.0
//! Classes `GradientExchange` and `GradientServer`: a rank's exchange of gradients, and a server.
//!
//! Every call releases the interpreter before it takes a lock of the exchange, so that no Python destructor runs under
//! such a lock. Python objects that other threads drop meanwhile are freed when a call takes the interpreter again.

#[cfg(target_os = "linux")]
mod node;
mod settings;

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use foresee_grad_exchange::{
    Event, ExchangeError, Gradient, InterfaceStats, Interfaces, Server, ServerExchange, ServerOptions,
    WaitOutcome,
};
use foresee_grad_queue::{PACKET_BYTES_MIN, TensorId, packet_bytes};
use foresee_units::{Bytes, BytesPerSecond, Rank};
use foresee_wire::TlsServer;
use numpy::ndarray::ArrayView1;
use numpy::{Element, PyArray1};
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arguments::secret_of;
use crate::errors::{config_error, of_exchange, of_wire};
use crate::fork_guard::ForkGuard;
use crate::interrupt::{self, TICK, WaitLog, warn};
#[cfg(target_os = "linux")]
pub(crate) use node::{GradientLeader, GradientNode};
use settings::{
    LinkArguments, TensorArguments, address_of, duration_of, policy_of, rank_options, spec_of, timeouts_of,
    wire_of,
};

#[pyfunction]
pub(crate) fn gradient_packet_bytes(bytes_per_s: u64) -> u32 {
    packet_bytes(BytesPerSecond::new(bytes_per_s)).get()
}

#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct GradientExchange {
    exchange: ForkGuard<Arc<dyn foresee_grad_exchange::GradientExchange>>,
}

/// Owner of the memory of an array that `received` returns.
#[pyclass(frozen, module = "foresee._native")]
struct ReceiveBuffer {
    _buffer: Arc<foresee_grad_exchange::ReceiveBuffer>,
}

#[pymethods]
impl GradientExchange {
    #[staticmethod]
    #[pyo3(signature = (
        servers, *, job, rank, world, timeout_s, secret=None, secret_file=None, comm_dtype=None, policy="foresee", tls=false,
        packet_bytes=None, timeline=0, colocated_server=None, recover=true, continue_on_rank_loss=false
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of the Python signature")]
    fn open(
        py: Python<'_>,
        servers: Vec<String>,
        job: String,
        rank: u32,
        world: u32,
        timeout_s: f64,
        secret: Option<&str>,
        secret_file: Option<PathBuf>,
        comm_dtype: Option<&str>,
        policy: &str,
        tls: bool,
        packet_bytes: Option<NonZeroU32>,
        timeline: usize,
        colocated_server: Option<&GradientServer>,
        recover: bool,
        continue_on_rank_loss: bool,
    ) -> PyResult<Self> {
        let wire = wire_of(comm_dtype)?;
        let link =
            LinkArguments { wire, policy, tls, packet_bytes, timeline, recover, continue_on_rank_loss };
        let rank = (Rank(rank), world, 1);
        let options = rank_options(
            servers,
            job,
            rank,
            timeouts_of(timeout_s)?,
            secret_of(secret, secret_file)?,
            &link,
            colocated_server,
        )?;
        let opened = run_logged(py, "the servers", move || ServerExchange::open(options))?;
        Ok(Self { exchange: ForkGuard::new(Arc::new(opened)) })
    }

    #[getter]
    fn rank(&self) -> PyResult<u32> {
        Ok(self.exchange.get()?.rank().0)
    }

    #[getter]
    fn world(&self) -> PyResult<u32> {
        Ok(self.exchange.get()?.world())
    }

    #[pyo3(signature = (tensors, *, limit_s=None))]
    fn agree(&self, py: Python<'_>, tensors: Vec<TensorArguments>, limit_s: Option<f64>) -> PyResult<()> {
        let limit = limit_s.map(duration_of).transpose()?;
        let specs = tensors.into_iter().map(spec_of).collect::<PyResult<Vec<_>>>()?;
        let exchange = self.exchange.get()?;
        let (agreeing, mut log) = (Arc::clone(exchange), WaitLog::new());
        let awaited = || {
            let all = "all ranks to agree on their tensors".to_owned();
            exchange.waits().into_iter().fold(all, |text, waits| format!("{text}; {waits}"))
        };
        let on_tick = |py: Python<'_>| {
            if limit.is_some_and(|limit| log.elapsed() > limit) {
                return Err(PyTimeoutError::new_err(py.detach(|| exchange.waits()).join("; ")));
            }
            log.tick(py, awaited)
        };
        match interrupt::run(py, "foresee-agree", move |_| agreeing.agree(specs), on_tick) {
            Ok(agreed) => agreed.map(drop).map_err(of_exchange),
            Err(interrupted) => {
                // An agreement cannot be resumed; the thread ends with the exchange.
                py.detach(|| exchange.close());
                Err(interrupted)
            }
        }
    }

    fn push(
        &self,
        py: Python<'_>,
        tensor_id: u32,
        data_ptr: usize,
        nbytes: usize,
        keepalive: Py<PyAny>,
    ) -> PyResult<()> {
        let exchange = self.exchange.get()?;
        // SAFETY: the caller promises that `keepalive` owns the memory, which is not written to while it lives.
        let gradient = unsafe {
            Gradient::new(std::ptr::with_exposed_provenance(data_ptr), nbytes, Box::new(keepalive))
        };
        py.detach(|| exchange.push(TensorId(tensor_id), gradient)).map_err(of_exchange)
    }

    fn end_round(&self, py: Python<'_>) -> PyResult<u64> {
        let exchange = self.exchange.get()?;
        let mut log = WaitLog::new();
        loop {
            let ended = py.detach(|| exchange.end_round(TICK)).map_err(of_exchange)?;
            log_notices(py, exchange)?;
            if let Some(round) = ended {
                return Ok(round.0);
            }
            py.check_signals()?;
            log.tick(py, || exchange.missing())?;
        }
    }

    fn wait(&self, py: Python<'_>, ids: Vec<u32>, on_interrupt: &Bound<'_, PyAny>) -> PyResult<()> {
        let exchange = self.exchange.get()?;
        let tensors: Vec<_> = ids.into_iter().map(TensorId).collect();
        let mut log = WaitLog::new();
        loop {
            let outcome = py.detach(|| exchange.wait(&tensors, TICK)).map_err(of_exchange)?;
            if outcome == WaitOutcome::Received {
                return Ok(());
            }
            py.check_signals()?;
            on_interrupt.call0()?;
            log_notices(py, exchange)?;
            log.tick(py, || exchange.missing())?;
        }
    }

    fn count_received(&self, py: Python<'_>, ids: Vec<u32>) -> PyResult<usize> {
        let exchange = self.exchange.get()?;
        let tensors: Vec<_> = ids.into_iter().map(TensorId).collect();
        py.detach(|| exchange.count_received(&tensors)).map_err(of_exchange)
    }

    fn wait_all(&self, py: Python<'_>, limit_s: f64) -> PyResult<bool> {
        let exchange = self.exchange.get()?;
        let until = Instant::now() + duration_of(limit_s)?;
        loop {
            let outcome = py.detach(|| exchange.wait_all(TICK)).map_err(of_exchange)?;
            if outcome == WaitOutcome::Received || Instant::now() >= until {
                return Ok(outcome == WaitOutcome::Received);
            }
            py.check_signals()?;
        }
    }

    fn used(&self, py: Python<'_>, tensor_id: u32) -> PyResult<Option<bool>> {
        let exchange = self.exchange.get()?;
        py.detach(|| exchange.used(TensorId(tensor_id))).map_err(of_exchange)
    }

    fn received<'py>(&self, py: Python<'py>, tensor_id: u32) -> PyResult<Bound<'py, PyArray1<u8>>> {
        let exchange = self.exchange.get()?;
        let average = py.detach(|| exchange.average(TensorId(tensor_id))).map_err(of_exchange)?;
        let (start, len) = (average.pointer().cast_const(), average.len());
        let owner = Bound::new(py, ReceiveBuffer { _buffer: average })?;
        // SAFETY: the memory is initialised and does not move while `owner` lives, which the array holds. Until the
        // tensor's next push only the caller accesses it.
        unsafe {
            let view = ArrayView1::from_shape_ptr(len, start);
            Ok(PyArray1::borrow_from_array(&view, owner.into_any()))
        }
    }

    #[getter]
    fn first(&self, py: Python<'_>) -> PyResult<u32> {
        let exchange = self.exchange.get()?;
        Ok(py.detach(|| exchange.first()).0)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let exchange = self.exchange.get()?;
        let stats = py.detach(|| exchange.stats());
        let dict = PyDict::new(py);
        dict.set_item("servers_back", stats.servers_replaced)?;
        dict.set_item("reconnects", stats.reconnects)?;
        dict.set_item("ranks_lost", stats.ranks_lost)?;
        set_interfaces(&dict, &stats.interfaces)?;
        Ok(dict)
    }

    fn timeline<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyDict>, u64)> {
        let exchange = self.exchange.get()?;
        let (events, dropped) = py.detach(|| exchange.take_timeline());
        Ok((columns(py, &events)?, dropped))
    }

    fn tensors(&self, py: Python<'_>) -> PyResult<Vec<(String, u64)>> {
        let exchange = self.exchange.get()?;
        // Empty before a plan was agreed on.
        let Ok(plan) = py.detach(|| exchange.plan()) else { return Ok(Vec::new()) };
        let bytes = |tensor| plan.bytes(tensor).unwrap_or_default().get();
        Ok((0..plan.tensors()).map(TensorId).map(|tensor| (plan.name(tensor), bytes(tensor))).collect())
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        // A forked child has nothing to close.
        let Some(exchange) = self.exchange.get_in_owner() else { return Ok(()) };
        py.detach(|| exchange.close());
        log_notices(py, exchange)
    }
}

#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct GradientServer {
    server: ForkGuard<Server>,
    interfaces: ForkGuard<Interfaces>,
}

#[pymethods]
impl GradientServer {
    #[staticmethod]
    #[pyo3(signature = (
        bind, *, timeout_s, early_buffer_bytes, secret=None, secret_file=None, policy="foresee", tls_cert=None, tls_key=None,
        timeline=0, colocated=false
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of the Python signature")]
    fn start(
        py: Python<'_>,
        bind: &str,
        timeout_s: f64,
        early_buffer_bytes: u64,
        secret: Option<&str>,
        secret_file: Option<PathBuf>,
        policy: &str,
        tls_cert: Option<PathBuf>,
        tls_key: Option<PathBuf>,
        timeline: usize,
        colocated: bool,
    ) -> PyResult<Self> {
        let tls = match (tls_cert, tls_key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some(TlsServer::from_files(&cert, &key).map_err(of_wire)?),
            _ => {
                return Err(config_error("TLS needs a certificate and its key; give both or neither".into()));
            }
        };
        let policy = policy_of(policy)?;
        // A rank and its colocated server send through one interface, whose schedule is the rank's.
        let rules = if colocated { policy.push() } else { policy.pull() };
        let interfaces = Interfaces::new(rules, PACKET_BYTES_MIN);
        let options = ServerOptions {
            tls,
            timeouts: timeouts_of(timeout_s)?,
            policy,
            early_buffer: Bytes::new(early_buffer_bytes),
            timeline,
            interfaces: Some(interfaces.clone()),
            ..ServerOptions::new(address_of(bind)?, secret_of(secret, secret_file)?)
        };
        let server = py.detach(|| Server::start(options)).map_err(of_exchange)?;
        Ok(Self { server: ForkGuard::new(server), interfaces: ForkGuard::new(interfaces) })
    }

    #[getter]
    fn address(&self) -> PyResult<String> {
        Ok(self.server.get()?.address().to_string())
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let server = self.server.get()?;
        let stats = py.detach(|| server.stats());
        let dict = PyDict::new(py);
        dict.set_item("jobs", stats.jobs)?;
        dict.set_item("parked_peak_bytes", stats.early_buffer_peak.get())?;
        set_interfaces(&dict, &stats.interfaces)?;
        Ok(dict)
    }

    fn timeline<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyDict>, u64)> {
        let server = self.server.get()?;
        let (events, dropped) = py.detach(|| server.take_timeline());
        Ok((columns(py, &events)?, dropped))
    }

    fn close(&self, py: Python<'_>) {
        if let Some(server) = self.server.get_in_owner() {
            py.detach(|| server.close());
        }
    }
}

/// Log lost and replaced peers.
fn log_notices(py: Python<'_>, exchange: &Arc<dyn foresee_grad_exchange::GradientExchange>) -> PyResult<()> {
    py.detach(|| exchange.take_notices()).into_iter().try_for_each(|notice| warn(py, notice))
}

/// Run `work` interruptibly, and log that it waits for `awaited`.
fn run_logged<T: Send + 'static>(
    py: Python<'_>,
    awaited: &'static str,
    work: impl FnOnce() -> Result<T, ExchangeError> + Send + 'static,
) -> PyResult<T> {
    let mut log = WaitLog::new();
    interrupt::run(py, "foresee-connect", |_| work(), |py| log.tick(py, || awaited.to_owned()))?
        .map_err(of_exchange)
}

/// Convert events to columns.
fn columns<'py>(py: Python<'py>, events: &[Event]) -> PyResult<Bound<'py, PyDict>> {
    fn column<'py, T: Element>(
        py: Python<'py>,
        events: &[Event],
        of: impl Fn(&Event) -> T,
    ) -> Bound<'py, PyArray1<T>> {
        PyArray1::from_iter(py, events.iter().map(of))
    }
    let dict = PyDict::new(py);
    dict.set_item("at_ns", column(py, events, |event| event.at.get()))?;
    dict.set_item("kind", column(py, events, |event| event.kind as u8))?;
    dict.set_item("round", column(py, events, |event| event.round.0))?;
    dict.set_item("tensor", column(py, events, |event| event.tensor.0))?;
    dict.set_item("packet", column(py, events, |event| event.packet.map_or(-1, i64::from)))?;
    dict.set_item("peer", column(py, events, |event| event.peer.map_or(-1, i64::from)))?;
    Ok(dict)
}

fn set_interfaces(dict: &Bound<'_, PyDict>, interfaces: &[InterfaceStats]) -> PyResult<()> {
    let network = InterfaceStats::of_network(interfaces);
    let sum = |of: fn(&InterfaceStats) -> u64| network.iter().map(of).sum::<u64>();
    let local = interfaces.iter().filter(|interface| interface.is_local);
    dict.set_item("local_bytes", local.map(|interface| interface.sent.get()).sum::<u64>())?;
    dict.set_item("sent_bytes", sum(|interface| interface.sent.get()))?;
    dict.set_item("sent_packets", sum(|interface| interface.packets))?;
    dict.set_item("writes", sum(|interface| interface.writes))?;
    dict.set_item("window_bytes", sum(|interface| interface.window.get()))?;
    dict.set_item("rate_bytes_per_s", sum(|interface| interface.rate))
}
