// SPDX-License-Identifier: Apache-2.0
//! Classes `GradientNode` and `GradientLeader`: ranks of one node that exchange as one, through the first of them.
//!
//! Python distributes the leader's address.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use foresee_grad_exchange::{NodeLeader, NodeMember, NodeOptions};
use foresee_units::Rank;
use pyo3::prelude::*;

use super::settings::{LinkArguments, address_of, rank_options, timeouts_of, wire_of};
use super::{GradientExchange, GradientServer, run_logged};
use crate::arguments::secret_of;
use crate::errors::of_exchange;
use crate::fork_guard::ForkGuard;

/// Settings that are equal on every rank of a node.
#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct GradientNode {
    options: NodeOptions,
}

#[pymethods]
impl GradientNode {
    #[new]
    #[pyo3(signature = (
        *, job, first, local_world, world, timeout_s, secret=None, secret_file=None, comm_dtype=None, timeline=0
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of the Python signature")]
    fn new(
        job: String,
        first: u32,
        local_world: u32,
        world: u32,
        timeout_s: f64,
        secret: Option<&str>,
        secret_file: Option<PathBuf>,
        comm_dtype: Option<&str>,
        timeline: usize,
    ) -> PyResult<Self> {
        let options = NodeOptions {
            job,
            world,
            first: Rank(first),
            local_world,
            secret: secret_of(secret, secret_file)?,
            timeouts: timeouts_of(timeout_s)?,
            wire: wire_of(comm_dtype)?,
            timeline,
        };
        Ok(Self { options })
    }

    fn listen(&self) -> PyResult<GradientLeader> {
        let options = self.options.clone();
        let leader = NodeLeader::listen(options.clone()).map_err(of_exchange)?;
        Ok(GradientLeader { leader: ForkGuard::new(Arc::new(leader)), options })
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
        let leader = leader.map(|leader| leader.leader.get().cloned()).transpose()?;
        let address = address_of(address)?;
        let join = move || NodeMember::join(options, Rank(rank), address, leader);
        let member = run_logged(py, "the leader of this node", join)?;
        Ok(GradientExchange { exchange: ForkGuard::new(Arc::new(member)) })
    }
}

/// The exchange of a node, in the process of its first rank.
#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct GradientLeader {
    leader: ForkGuard<Arc<NodeLeader>>,
    options: NodeOptions,
}

#[pymethods]
impl GradientLeader {
    #[getter]
    fn address(&self) -> PyResult<String> {
        Ok(self.leader.get()?.address().to_string())
    }

    #[pyo3(signature = (servers, *, policy="foresee", tls=false, packet_bytes=None, colocated_server=None, recover=true))]
    #[expect(clippy::too_many_arguments, reason = "keywords of the Python signature")]
    fn connect(
        &self,
        py: Python<'_>,
        servers: Vec<String>,
        policy: &str,
        tls: bool,
        packet_bytes: Option<NonZeroU32>,
        colocated_server: Option<&GradientServer>,
        recover: bool,
    ) -> PyResult<()> {
        let NodeOptions { job, world, first, local_world, secret, timeouts, wire, timeline } =
            self.options.clone();
        let link = LinkArguments {
            wire,
            policy,
            tls,
            packet_bytes,
            timeline,
            recover,
            continue_on_rank_loss: false,
        };
        let rank = (first, world, local_world);
        let options = rank_options(servers, job, rank, timeouts, secret, &link, colocated_server)?;
        let leader = Arc::clone(self.leader.get()?);
        run_logged(py, "the servers", move || leader.connect(options))
    }

    fn close(&self, py: Python<'_>) {
        if let Some(leader) = self.leader.get_in_owner() {
            py.detach(|| leader.close(Duration::ZERO));
        }
    }
}
