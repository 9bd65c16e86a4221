// SPDX-License-Identifier: Apache-2.0
//! The loader's counters as dictionaries. Missing values are None, never 0.

use foresee_data_loader::{CopyCount, LoaderStats, NodeStats, Recorder};
use foresee_ledger::{Cause, Op, Tally, Totals};
use foresee_units::Source;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::node;

pub(crate) fn to_python<'py>(py: Python<'py>, stats: &LoaderStats) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    out.set_item("elapsed_s", stats.elapsed.as_secs_f64())?;
    out.set_item("waits", waits(py, &stats.totals)?)?;
    out.set_item("operations", operations(py, stats)?)?;
    out.set_item("origin", origin(py, stats)?)?;
    out.set_item("tiers", tiers(py, stats)?)?;
    let (batches, bytes) = stats.driver.staged;
    let staging = PyDict::new(py);
    staging.set_item("batches", batches)?;
    staging.set_item("bytes", bytes.get())?;
    staging.set_item("ready", stats.ready)?;
    staging.set_item("reads", stats.driver.reads)?;
    staging.set_item("lent_bytes", stats.lent.get())?;
    out.set_item("staging", staging)?;
    let plan = PyDict::new(py);
    plan.set_item("table_bytes", stats.driver.tables.get())?;
    plan.set_item("hash", format!("{:016x}", stats.driver.plan_hash))?;
    out.set_item("plan", plan)?;
    out.set_item("ledger_lost", stats.ledger_failure.as_deref())?;
    out.set_item("node", stats.driver.node.as_ref().map(|node| node_cache(py, node)).transpose()?)?;
    Ok(out)
}

/// The cache of the node; asks the host for its state.
fn node_cache<'py>(py: Python<'py>, node: &NodeStats) -> PyResult<Bound<'py, PyDict>> {
    let cache = &node.host.cache;
    let out = PyDict::new(py);
    out.set_item("role", cache.role.name())?;
    out.set_item("socket", node.host.address.path().as_os_str())?;
    out.set_item("attached", node.is_attached)?;
    out.set_item("ram_bytes", cache.ram.get())?;
    out.set_item("disk_bytes", cache.disk.get())?;
    let sources = PyDict::new(py);
    for (source, CopyCount { samples, bytes }) in node.copied.each() {
        let count = PyDict::new(py);
        count.set_item("samples", samples)?;
        count.set_item("bytes", bytes)?;
        sources.set_item(source.name(), count)?;
    }
    out.set_item("sources", sources)?;
    let status = py.detach(|| node.status());
    out.set_item("host", status.map(|status| node::to_python(py, &status)).transpose()?)?;
    Ok(out)
}

/// As [`to_python`], for a loader that reads nothing.
pub(crate) fn of_recorder<'py>(py: Python<'py>, recorder: &Recorder) -> PyResult<Bound<'py, PyDict>> {
    let (totals, ledger_lost) = recorder.sums();
    let out = PyDict::new(py);
    out.set_item("elapsed_s", recorder.now().as_secs_f64())?;
    out.set_item("waits", waits(py, &totals)?)?;
    out.set_item("ledger_lost", ledger_lost)?;
    Ok(out)
}

fn waits<'py>(py: Python<'py>, totals: &Totals) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    // Gradients have their own ledgers.
    for &cause in Cause::ALL.iter().filter(|cause| !matches!(cause, Cause::Gradient | Cause::Peer)) {
        out.set_item(cause.name(), tally(py, totals.wait(cause))?)?;
    }
    Ok(out)
}

/// `{source: {operation: {"ok": tally, "failed": tally}}}`.
fn operations<'py>(py: Python<'py>, stats: &LoaderStats) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    for source in [Source::Ram, Source::Disk, Source::Staging, Source::Origin] {
        let by_op = PyDict::new(py);
        for op in [Op::Open, Op::Read, Op::Write] {
            let tallies = PyDict::new(py);
            tallies.set_item("ok", tally(py, stats.totals.done(op, source))?)?;
            tallies.set_item("failed", tally(py, stats.totals.failed(op, source))?)?;
            by_op.set_item(op.name(), tallies)?;
        }
        out.set_item(source.name(), by_op)?;
    }
    Ok(out)
}

fn tally<'py>(py: Python<'py>, tally: Option<&Tally>) -> PyResult<Option<Bound<'py, PyDict>>> {
    let Some(tally) = tally else { return Ok(None) };
    let out = PyDict::new(py);
    out.set_item("count", tally.count)?;
    out.set_item("samples", tally.samples)?;
    out.set_item("bytes", tally.bytes.get())?;
    out.set_item("seconds", tally.time.as_secs_f64())?;
    for (name, permille) in [("p50_s", 500), ("p95_s", 950), ("p99_s", 990), ("max_s", 1000)] {
        let quantile = tally.durations.quantile(permille);
        out.set_item(name, quantile.map(foresee_units::Nanos::as_secs_f64))?;
    }
    Ok(Some(out))
}

fn origin<'py>(py: Python<'py>, stats: &LoaderStats) -> PyResult<Bound<'py, PyDict>> {
    let queue = &stats.driver.origin;
    let out = PyDict::new(py);
    out.set_item("in_flight", queue.in_flight)?;
    out.set_item("limit", queue.limit)?;
    out.set_item("queued", queue.queued)?;
    out.set_item("retries", queue.retries)?;
    out.set_item("hedges", queue.hedges)?;
    out.set_item("hedge_wins", queue.hedge_wins)?;
    out.set_item("hedged_bytes", queue.hedged_bytes.get())?;
    out.set_item("throttles", queue.throttles)?;
    Ok(out)
}

fn tiers<'py>(py: Python<'py>, stats: &LoaderStats) -> PyResult<Bound<'py, PyList>> {
    let out = PyList::empty(py);
    for (facts, planned) in &stats.driver.tiers {
        let tier = PyDict::new(py);
        tier.set_item("place", &facts.place)?;
        tier.set_item("capacity_bytes", facts.capacity.get())?;
        tier.set_item("used_bytes", facts.used.get())?;
        tier.set_item("planned_bytes", planned.get())?;
        out.append(tier)?;
    }
    Ok(out)
}
