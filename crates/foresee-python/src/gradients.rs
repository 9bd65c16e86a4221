// SPDX-License-Identifier: Apache-2.0
//! Classes `GradientExchange` and `GradientServer`: a rank's end of the exchange of gradients, and a server.
//!
//! Every call releases the interpreter before it takes a lock of the exchange. So no destructor of Python runs under
//! such a lock: what any thread drops meanwhile is freed when a call takes the interpreter again.

#[cfg(target_os = "linux")]
mod node;
mod settings;

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use foresee_grad_exchange::{
    Event, EventKind, Exchange, Gradient, InterfaceStats, Interfaces, Server, ServerOptions, Waited,
};
use foresee_grad_queue::{PACKET_BYTES_MIN, TensorId, packet_bytes};
use foresee_units::{Bytes, BytesPerSecond, Rank};
use foresee_wire::TlsServer;
use numpy::ndarray::ArrayView1;
use numpy::{Element, PyArray1};
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{self, of_exchange, of_setting, of_wire};
use crate::own::Own;
#[cfg(target_os = "linux")]
pub(crate) use node::{GradientLeader, GradientNode};
use settings::{
    Link, Spec, address_of, nanos_of, policy_of, rank_options, secret_of, spec_of, timeouts_of, wire_of,
};

/// How long a wait goes on before Python's signals are looked at: Ctrl-C is answered within this.
const TICK: Duration = Duration::from_millis(100);
/// After each of these the log says what is being waited for.
const SAY_EVERY: Duration = Duration::from_secs(30);

/// Names of the kinds of events, by their numbers in the column `kind` of a timeline.
pub(crate) fn timeline_kinds() -> [&'static str; EventKind::ALL.len()] {
    EventKind::ALL.map(EventKind::name)
}

#[pyfunction]
pub(crate) fn gradient_packet_bytes(bytes_per_s: u64) -> u32 {
    packet_bytes(BytesPerSecond::new(bytes_per_s)).get()
}

#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct GradientExchange {
    exchange: Own<Arc<dyn foresee_grad_exchange::GradientExchange>>,
}

/// Owner of the memory of an array that `received` returns.
#[pyclass(frozen, module = "foresee._native")]
struct ReceiveBuffer {
    _memory: foresee_grad_exchange::Received,
}

#[pymethods]
impl GradientExchange {
    #[staticmethod]
    #[pyo3(signature = (
        servers, *, job, rank, world, timeout_s, secret=None, secret_file=None, comm_dtype=None, policy="foresee", tls=false,
        packet_bytes=None, timeline=0, beside=None, recover=true, survives=false
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
        beside: Option<&GradientServer>,
        recover: bool,
        survives: bool,
    ) -> PyResult<Self> {
        let link =
            Link { wire: wire_of(comm_dtype)?, policy, tls, packet_bytes, timeline, recover, survives };
        let rank = (Rank(rank), world, 1);
        let options = rank_options(
            servers,
            job,
            rank,
            timeouts_of(timeout_s)?,
            secret_of(secret, secret_file)?,
            &link,
            beside,
        )?;
        let opened = patiently(py, || "the servers".into(), move || Exchange::open(options))?;
        let opened = opened.map_err(|why| of_exchange(&why))?;
        Ok(Self { exchange: Own::new(Arc::new(opened)) })
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
    fn agree(&self, py: Python<'_>, tensors: Vec<Spec>, limit_s: Option<f64>) -> PyResult<()> {
        let limit = limit_s.map(nanos_of).transpose()?.map(Duration::from);
        let specs = tensors.into_iter().map(spec_of).collect::<PyResult<Vec<_>>>()?;
        let exchange = Arc::clone(self.exchange.get()?);
        let what = || {
            let all = "all ranks to agree on their tensors".to_owned();
            self.exchange
                .here()
                .map_or_else(Vec::new, |exchange| exchange.waits())
                .into_iter()
                .fold(all, |text, waits| format!("{text}; {waits}"))
        };
        match patiently_within(py, limit, what, move || exchange.agree(specs)) {
            Ok(Some(agreed)) => agreed.map_err(|why| of_exchange(&why)),
            Ok(None) => {
                let exchange = self.exchange.get()?;
                let waits = py.detach(|| exchange.waits());
                py.detach(|| exchange.close());
                Err(PyTimeoutError::new_err(waits.join("; ")))
            }
            Err(interrupted) => {
                // The thread that asks ends with the exchange. Half of an agreement is none.
                let exchange = self.exchange.get()?;
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
        // SAFETY: the caller's promise: `keepalive` owns the memory, which nobody writes to while it lives.
        let gradient = unsafe {
            Gradient::new(std::ptr::with_exposed_provenance(data_ptr), nbytes, Box::new(keepalive))
        };
        py.detach(|| exchange.push(TensorId(tensor_id), gradient)).map_err(|why| of_exchange(&why))
    }

    fn end_round(&self, py: Python<'_>) -> PyResult<u64> {
        let exchange = self.exchange.get()?;
        let mut clock = Clock::new();
        loop {
            let ended = py.detach(|| exchange.end_round(TICK)).map_err(|why| of_exchange(&why))?;
            say_notices(py, exchange)?;
            if let Some(round) = ended {
                return Ok(round.0);
            }
            py.check_signals()?;
            clock.say(py, || exchange.missing())?;
        }
    }

    fn wait(&self, py: Python<'_>, ids: Vec<u32>, on_interrupt: &Bound<'_, PyAny>) -> PyResult<()> {
        let exchange = self.exchange.get()?;
        let tensors: Vec<_> = ids.into_iter().map(TensorId).collect();
        let mut clock = Clock::new();
        loop {
            let waited = py.detach(|| exchange.wait(&tensors, TICK)).map_err(|why| of_exchange(&why))?;
            if waited == Waited::Landed {
                return Ok(());
            }
            py.check_signals()?;
            on_interrupt.call0()?;
            say_notices(py, exchange)?;
            clock.say(py, || exchange.missing())?;
        }
    }

    fn count_received(&self, py: Python<'_>, ids: Vec<u32>) -> PyResult<usize> {
        let exchange = self.exchange.get()?;
        let tensors: Vec<_> = ids.into_iter().map(TensorId).collect();
        py.detach(|| exchange.landed(&tensors)).map_err(|why| of_exchange(&why))
    }

    fn wait_all(&self, py: Python<'_>, limit_s: f64) -> PyResult<bool> {
        let exchange = self.exchange.get()?;
        let limit = Duration::from(nanos_of(limit_s)?);
        let until = Instant::now() + limit;
        loop {
            let waited = py.detach(|| exchange.wait_all(TICK)).map_err(|why| of_exchange(&why))?;
            if waited == Waited::Landed || Instant::now() >= until {
                return Ok(waited == Waited::Landed);
            }
            py.check_signals()?;
        }
    }

    fn used(&self, py: Python<'_>, tensor_id: u32) -> PyResult<Option<bool>> {
        let exchange = self.exchange.get()?;
        py.detach(|| exchange.used(TensorId(tensor_id))).map_err(|why| of_exchange(&why))
    }

    fn received<'py>(&self, py: Python<'py>, tensor_id: u32) -> PyResult<Bound<'py, PyArray1<u8>>> {
        let exchange = self.exchange.get()?;
        let received =
            py.detach(|| exchange.received(TensorId(tensor_id))).map_err(|why| of_exchange(&why))?;
        let (start, len) = (received.pointer().cast_const(), received.len());
        let buffer = Bound::new(py, ReceiveBuffer { _memory: received })?;
        // SAFETY: the memory is initialised and stays where it is while `buffer` lives, which the array holds. Until the
        // tensor's next push nobody but the caller touches it.
        unsafe {
            let view = ArrayView1::from_shape_ptr(len, start);
            Ok(PyArray1::borrow_from_array(&view, buffer.into_any()))
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
        dict.set_item("servers_back", stats.servers_back)?;
        dict.set_item("reconnects", stats.reconnects)?;
        dict.set_item("ranks_lost", stats.ranks_lost)?;
        set_interfaces(&dict, &stats.interfaces)?;
        Ok(dict)
    }

    fn timeline<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyDict>, u64)> {
        let exchange = self.exchange.get()?;
        let (events, left_out) = py.detach(|| exchange.take_timeline());
        Ok((columns(py, &events)?, left_out))
    }

    fn tensors(&self, py: Python<'_>) -> PyResult<Vec<(String, u64)>> {
        let exchange = self.exchange.get()?;
        let tensors = py.detach(|| exchange.tensors());
        Ok(tensors.into_iter().map(|(name, bytes)| (name, bytes.get())).collect())
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        // A child has nothing to close.
        let Some(exchange) = self.exchange.here() else { return Ok(()) };
        py.detach(|| exchange.close());
        say_notices(py, exchange)
    }
}

#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct GradientServer {
    server: Own<Server>,
    interfaces: Own<Interfaces>,
}

#[pymethods]
impl GradientServer {
    #[staticmethod]
    #[pyo3(signature = (
        bind, *, timeout_s, early_buffer_bytes, secret=None, secret_file=None, policy="foresee", tls_cert=None, tls_key=None,
        timeline=0, beside_rank=false
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
        beside_rank: bool,
    ) -> PyResult<Self> {
        let tls = match (tls_cert, tls_key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some(TlsServer::from_files(&cert, &key).map_err(|why| of_wire(&why))?),
            _ => return Err(of_setting("TLS needs a certificate and its key; give both or neither".into())),
        };
        let policy = policy_of(policy)?;
        // Beside a rank both send through one interface, whose schedule is the rank's.
        let rules = if beside_rank { policy.push() } else { policy.pull() };
        let interfaces = Interfaces::new(rules, PACKET_BYTES_MIN);
        let options = ServerOptions {
            tls,
            timeouts: timeouts_of(timeout_s)?,
            policy,
            park: Bytes::new(early_buffer_bytes),
            timeline,
            interfaces: Some(interfaces.clone()),
            ..ServerOptions::new(address_of(bind)?, secret_of(secret, secret_file)?)
        };
        let server = py.detach(|| Server::start(options)).map_err(|why| of_exchange(&why))?;
        Ok(Self { server: Own::new(server), interfaces: Own::new(interfaces) })
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
        dict.set_item("parked_peak_bytes", stats.parked_peak.get())?;
        set_interfaces(&dict, &stats.interfaces)?;
        Ok(dict)
    }

    fn timeline<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyDict>, u64)> {
        let server = self.server.get()?;
        let (events, left_out) = py.detach(|| server.take_timeline());
        Ok((columns(py, &events)?, left_out))
    }

    fn close(&self, py: Python<'_>) {
        if let Some(server) = self.server.here() {
            py.detach(|| server.close());
        }
    }
}

/// Says in the log, now and then, what a wait is about.
struct Clock {
    said: Instant,
    began: Instant,
}

impl Clock {
    fn new() -> Self {
        let now = Instant::now();
        Self { said: now, began: now }
    }

    fn say(&mut self, py: Python<'_>, what: impl FnOnce() -> String + Send) -> PyResult<()> {
        if self.said.elapsed() < SAY_EVERY {
            return Ok(());
        }
        self.said = Instant::now();
        let what = py.detach(what);
        warn(py, format!("{} s without gradients: waiting for {what}", self.began.elapsed().as_secs()))
    }
}

/// Says in the log what was lost and is back.
fn say_notices(py: Python<'_>, exchange: &Arc<dyn foresee_grad_exchange::GradientExchange>) -> PyResult<()> {
    py.detach(|| exchange.take_notices()).into_iter().try_for_each(|notice| warn(py, notice))
}

fn warn(py: Python<'_>, text: String) -> PyResult<()> {
    let log = py.import("logging")?.call_method1("getLogger", ("foresee",))?;
    // The text is no format: it may have a percent sign.
    log.call_method1("warning", ("%s", text))?;
    Ok(())
}

/// Does `work` in a thread, so that Python's signals are looked at meanwhile.
///
/// # Errors
/// What a signal's handler raised. The work goes on then, and its result is dropped.
fn patiently<T: Send + 'static>(
    py: Python<'_>,
    what: impl Fn() -> String + Send + Sync,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    patiently_within(py, None, what, work)?.ok_or_else(|| errors::defect("waiting without a limit"))
}

/// The same, and `None` once the limit is over. The work goes on then, too.
fn patiently_within<T: Send + 'static>(
    py: Python<'_>,
    limit: Option<Duration>,
    what: impl Fn() -> String + Send + Sync,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<Option<T>> {
    let (give, mut take) = mpsc::sync_channel(1);
    let spawned = thread::Builder::new().name("foresee-ask".into()).spawn(move || drop(give.send(work())));
    spawned?;
    let mut clock = Clock::new();
    loop {
        let answer;
        (answer, take) = py.detach(move || (take.recv_timeout(TICK), take));
        match answer {
            Ok(result) => return Ok(Some(result)),
            Err(mpsc::RecvTimeoutError::Disconnected) => return Err(errors::defect("asking the servers")),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        py.check_signals()?;
        if limit.is_some_and(|limit| clock.began.elapsed() > limit) {
            return Ok(None);
        }
        clock.say(py, &what)?;
    }
}

/// Events as columns.
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
