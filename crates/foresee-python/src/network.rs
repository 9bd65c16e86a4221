// SPDX-License-Identifier: Apache-2.0
//! The model of `foresee-model` for a step whose gradients cross a network, with arrays.
//!
//! `foresee.network.model` is its public module. Every `ModelError` is a `foresee.ConfigError`. The interpreter is
//! released during long computations.

use foresee_model::{
    Framing, GradientStep, Layer, Link, ModelError, Policy, ServerMix, Transfer, packet_delay,
};
use foresee_units::Bytes;
use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arguments::compat_of;
use crate::errors::config_error;

/// A checked step: layers in order of first use.
#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct NetworkStep(GradientStep);

#[pymethods]
impl NetworkStep {
    #[new]
    fn new(
        sizes: PyReadonlyArray1<'_, u64>,
        backward: PyReadonlyArray1<'_, f64>,
        forward: PyReadonlyArray1<'_, f64>,
        update: PyReadonlyArray1<'_, f64>,
    ) -> PyResult<Self> {
        let (sizes, backward) = (sizes.as_slice()?, backward.as_slice()?);
        let (forward, update) = (forward.as_slice()?, update.as_slice()?);
        if [backward.len(), forward.len(), update.len()] != [sizes.len(); 3] {
            let (backward, forward, update) = (backward.len(), forward.len(), update.len());
            let layers = sizes.len();
            return Err(config_error(format!(
                "{layers} sizes for {backward} backward, {forward} forward and {update} update times; pass one of \
                 each per layer"
            )));
        }
        let layers = (0..sizes.len()).map(|at| Layer {
            bytes: Bytes::new(sizes[at]),
            backward: backward[at],
            forward: forward[at],
            update: update[at],
        });
        GradientStep::new(layers).map(Self).map_err(to_python)
    }

    fn __len__(&self) -> usize {
        self.0.layers().len()
    }

    #[getter]
    fn total_bytes(&self) -> u64 {
        self.0.bytes().get()
    }

    #[getter]
    fn oracle(&self) -> f64 {
        self.0.oracle()
    }

    #[pyo3(signature = (policies, bandwidths, *, efficiency=1.0, compat="physical"))]
    fn times<'py>(
        &self,
        py: Python<'py>,
        policies: Vec<String>,
        bandwidths: PyReadonlyArray1<'py, f64>,
        efficiency: f64,
        compat: &str,
    ) -> PyResult<Bound<'py, PyArray2<f64>>> {
        let policies: Vec<Policy> =
            policies.iter().map(|name| policy(name, compat)).collect::<PyResult<_>>()?;
        let bandwidths = bandwidths.as_slice()?;
        let times = py.detach(|| {
            let mut times = Vec::with_capacity(policies.len() * bandwidths.len());
            for policy in &policies {
                for bandwidth in bandwidths {
                    times.push(self.0.time(*policy, Link::new(*bandwidth, efficiency)?)?);
                }
            }
            Ok(times)
        });
        times.map_err(to_python)?.into_pyarray(py).reshape([policies.len(), bandwidths.len()])
    }

    #[pyo3(signature = (policy, bandwidth, *, efficiency=1.0, compat="physical"))]
    fn timeline<'py>(
        &self,
        py: Python<'py>,
        policy: &str,
        bandwidth: f64,
        efficiency: f64,
        compat: &str,
    ) -> PyResult<Bound<'py, PyDict>> {
        let policy = self::policy(policy, compat)?;
        let timeline = py.detach(|| self.0.timeline(policy, Link::new(bandwidth, efficiency)?));
        let timeline = timeline.map_err(to_python)?;
        let dict = PyDict::new(py);
        dict.set_item("t_iter", timeline.time())?;
        dict.set_item("uplink", transfers(py, &timeline.uplink))?;
        dict.set_item("downlink", transfers(py, &timeline.downlink))?;
        dict.set_item("backward", timeline.backward.into_pyarray(py))?;
        dict.set_item("push", timeline.push.into_pyarray(py))?;
        dict.set_item("pull", timeline.pull.into_pyarray(py))?;
        dict.set_item("forward", timeline.forward.into_pyarray(py))?;
        Ok(dict)
    }

    #[pyo3(signature = (policy, goal, *, efficiency=1.0, compat="physical"))]
    fn required_bandwidth(
        &self,
        py: Python<'_>,
        policy: &str,
        goal: f64,
        efficiency: f64,
        compat: &str,
    ) -> PyResult<Option<f64>> {
        let policy = self::policy(policy, compat)?;
        let need = py.detach(|| self.0.required_bandwidth(policy, goal, efficiency));
        Ok(need.map_err(to_python)?.bytes_per_second())
    }

    #[pyo3(signature = (bandwidth, *, efficiency=1.0))]
    fn barrier_cost(&self, bandwidth: f64, efficiency: f64) -> PyResult<f64> {
        Link::new(bandwidth, efficiency).and_then(|link| self.0.barrier_cost(link)).map_err(to_python)
    }

    fn linear_scaling(&self, ranks: u32, batch: u32) -> f64 {
        self.0.linear_scaling(ranks, batch)
    }
}

/// The share of its link that a rank gets, and the shares of all bytes that a colocated and a dedicated server sum.
#[pyfunction]
#[pyo3(signature = (ranks, servers, *, dedicated_only=false))]
pub(crate) fn network_servers(ranks: u32, servers: u32, dedicated_only: bool) -> PyResult<(f64, f64, f64)> {
    let mix = if dedicated_only { ServerMix::dedicated_only } else { ServerMix::best };
    let mix = mix(ranks, servers).map_err(to_python)?;
    Ok((mix.share_of_link(), mix.colocated(), mix.dedicated()))
}

/// Share of the link that gradients get in packets of `packet` bytes.
#[pyfunction]
pub(crate) fn network_goodput(packet: u64) -> PyResult<f64> {
    Framing::default().goodput(Bytes::new(packet)).map_err(to_python)
}

/// The most that packets and a window of these sizes add to a step, in seconds.
#[pyfunction]
#[pyo3(signature = (window, packet, bandwidth, *, efficiency=1.0))]
pub(crate) fn network_packet_delay(
    window: u64,
    packet: u64,
    bandwidth: f64,
    efficiency: f64,
) -> PyResult<f64> {
    Link::new(bandwidth, efficiency)
        .and_then(|link| packet_delay(Bytes::new(window), Bytes::new(packet), link))
        .map_err(to_python)
}

/// Layers, starts and ends as three arrays.
type Transfers<'py> = (Bound<'py, PyArray1<u64>>, Bound<'py, PyArray1<f64>>, Bound<'py, PyArray1<f64>>);

fn transfers<'py>(py: Python<'py>, transfers: &[Transfer]) -> Transfers<'py> {
    let layers: Vec<u64> = transfers.iter().map(|transfer| transfer.layer as u64).collect();
    let starts: Vec<f64> = transfers.iter().map(|transfer| transfer.start).collect();
    let ends: Vec<f64> = transfers.iter().map(|transfer| transfer.end).collect();
    (layers.into_pyarray(py), starts.into_pyarray(py), ends.into_pyarray(py))
}

fn policy(name: &str, compat: &str) -> PyResult<Policy> {
    let compat = compat_of(compat)?;
    Policy::named(name, compat).ok_or_else(|| {
        let known = Policy::all(compat).map(Policy::name).join(", ");
        config_error(format!("policy={name:?}; one of {known} expected"))
    })
}

fn to_python(error: ModelError) -> PyErr {
    config_error(error.to_string())
}
