// SPDX-License-Identifier: Apache-2.0
//! Classes `GradientNode` and `GradientLeader`: ranks of one node that exchange as one, through the first of them.
//!
//! The ranks find their leader's address in Python.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use foresee_grad_exchange::{Hub, LocalRank, MachineOptions};
use foresee_units::Rank;
use pyo3::prelude::*;

use super::settings::{Link, address_of, rank_options, secret_of, timeouts_of, wire_of};
use super::{GradientExchange, GradientServer, patiently};
use crate::errors::of_exchange;
use crate::own::Own;

/// Settings that are equal on every rank of a node.
#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct GradientNode {
    options: MachineOptions,
}

#[pymethods]
impl GradientNode {
    #[new]
    #[pyo3(signature = (
        *, job, first, local, world, timeout_s, secret=None, secret_file=None, comm_dtype=None, timeline=0
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of the Python signature")]
    fn new(
        job: String,
        first: u32,
        local: u32,
        world: u32,
        timeout_s: f64,
        secret: Option<&str>,
        secret_file: Option<PathBuf>,
        comm_dtype: Option<&str>,
        timeline: usize,
    ) -> PyResult<Self> {
        let options = MachineOptions {
            job,
            world,
            first: Rank(first),
            local,
            secret: secret_of(secret, secret_file)?,
            timeouts: timeouts_of(timeout_s)?,
            wire: wire_of(comm_dtype)?,
            timeline,
        };
        Ok(Self { options })
    }

    fn listen(&self) -> PyResult<GradientLeader> {
        let options = self.options.clone();
        let hub = Hub::listen(options.clone()).map_err(|why| of_exchange(&why))?;
        Ok(GradientLeader { hub: Own::new(Arc::new(hub)), options })
    }

    #[pyo3(signature = (rank, address, *, leader=None))]
    fn join(
        &self,
        py: Python<'_>,
        rank: u32,
        address: &str,
        leader: Option<&GradientLeader>,
    ) -> PyResult<GradientExchange> {
        let options = self.options.clone();
        let hub = leader.map(|leader| leader.hub.get()).transpose()?.map(Arc::clone);
        let address = address_of(address)?;
        let what = || "the leader of this node".into();
        let joined = patiently(py, what, move || LocalRank::join(options, Rank(rank), address, hub))?;
        let joined = joined.map_err(|why| of_exchange(&why))?;
        Ok(GradientExchange { exchange: Own::new(Arc::new(joined)) })
    }
}

/// The exchange of a node, in the process of its first rank.
#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct GradientLeader {
    hub: Own<Arc<Hub>>,
    options: MachineOptions,
}

#[pymethods]
impl GradientLeader {
    #[getter]
    fn address(&self) -> PyResult<String> {
        Ok(self.hub.get()?.address().to_string())
    }

    #[pyo3(signature = (servers, *, policy="foresee", tls=false, packet_bytes=None, beside=None, recover=true))]
    #[expect(clippy::too_many_arguments, reason = "keywords of the Python signature")]
    fn connect(
        &self,
        py: Python<'_>,
        servers: Vec<String>,
        policy: &str,
        tls: bool,
        packet_bytes: Option<NonZeroU32>,
        beside: Option<&GradientServer>,
        recover: bool,
    ) -> PyResult<()> {
        let MachineOptions { job, world, first, local, secret, timeouts, wire, timeline } =
            self.options.clone();
        let link = Link { wire, policy, tls, packet_bytes, timeline, recover, survives: false };
        let rank = (first, world, local);
        let options = rank_options(servers, job, rank, timeouts, secret, &link, beside)?;
        let hub = Arc::clone(self.hub.get()?);
        let connected = patiently(py, || "the servers".into(), move || hub.connect(options))?;
        connected.map_err(|why| of_exchange(&why))
    }

    fn close(&self, py: Python<'_>) {
        if let Some(hub) = self.hub.here() {
            py.detach(|| hub.close(Duration::ZERO));
        }
    }
}
