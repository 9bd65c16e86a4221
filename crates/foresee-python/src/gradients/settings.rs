// SPDX-License-Identifier: Apache-2.0
//! Settings of ranks and servers of gradients, from Python's words to the core's.
//!
//! A wrong word is a `ConfigError` that names it. Nothing is opened here.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use foresee_grad_exchange::RankOptions;
use foresee_grad_queue::{Dtype, Op, Pattern, Policy, PolicyError, TensorSpec, Wire};
use foresee_units::{Nanos, Rank};
use foresee_wire::{LinkOptions, Secret, Timeouts, TlsClient};
use pyo3::prelude::*;

use super::GradientServer;
use crate::errors::{of_exchange, of_setting, of_wire};

/// Name, dtype, shape, strides, class, operation.
pub(super) type Spec = (String, String, Vec<u64>, Vec<i64>, u8, String);

/// What is said of the way to servers.
pub(super) struct Link<'a> {
    pub(super) wire: Wire,
    pub(super) policy: &'a str,
    pub(super) tls: bool,
    pub(super) packet_bytes: Option<NonZeroU32>,
    pub(super) timeline: usize,
    pub(super) recover: bool,
    pub(super) survives: bool,
}

/// Of a rank, which exchanges for as many of its machine as the last of `rank` says.
pub(super) fn rank_options(
    servers: Vec<String>,
    job: String,
    (rank, world, local): (Rank, u32, u32),
    timeouts: Timeouts,
    secret: Secret,
    link: &Link<'_>,
    beside: Option<&GradientServer>,
) -> PyResult<RankOptions> {
    let servers: Vec<_> = servers.iter().map(|server| address_of(server)).collect::<PyResult<_>>()?;
    let machines = world / local.max(1);
    let shares = match beside {
        Some(_) => shares_beside(machines, servers.len())?,
        None => Vec::new(),
    };
    Ok(RankOptions {
        job,
        rank,
        world,
        local,
        servers,
        shares,
        secret,
        tls: if link.tls { Some(TlsClient::by_secret().map_err(|why| of_wire(&why))?) } else { None },
        timeouts,
        policy: policy_of(link.policy)?,
        packet_bytes: link.packet_bytes,
        wire: link.wire,
        timeline: link.timeline,
        link: LinkOptions::default(),
        interfaces: beside.map(|server| server.interfaces.get().cloned()).transpose()?,
        // More ranks than that have no shares.
        beside: beside.map_or(0, |_| u16::try_from(machines).unwrap_or(u16::MAX)),
        recover: link.recover,
        survives: link.survives,
    })
}

/// Shares of servers of which there is one beside each rank, by rank, and then the others.
fn shares_beside(world: u32, servers: usize) -> PyResult<Vec<u32>> {
    let counts = u16::try_from(world).ok().zip(servers.checked_sub(world as usize));
    let counts = counts.and_then(|(ranks, extra)| Some((ranks, u16::try_from(extra).ok()?)));
    let Some((ranks, extra)) = counts else {
        return Err(of_setting(format!(
            "{servers} servers for {world} ranks, one beside each; 1 to 65535 of either"
        )));
    };
    let pattern = Pattern::mixed(ranks, extra).map_err(|why| of_exchange(&why.into()))?;
    Ok(pattern.shares().to_vec())
}

pub(super) fn spec_of((name, dtype, shape, strides, class, op): Spec) -> PyResult<TensorSpec> {
    let Some(dtype) = Dtype::ALL.into_iter().find(|one| one.name() == dtype) else {
        let names = Dtype::ALL.map(Dtype::name).join(", ");
        return Err(of_setting(format!("tensor '{name}' is {dtype}; one of {names}")));
    };
    let Some(op) = [Op::Mean, Op::Sum].into_iter().find(|one| one.name() == op) else {
        return Err(of_setting(format!("tensor '{name}' asks for a {op}; a mean or a sum")));
    };
    Ok(TensorSpec { name, dtype, shape, strides, class, op })
}

pub(super) fn address_of(text: &str) -> PyResult<SocketAddr> {
    text.parse().map_err(|_| of_setting(format!("{text:?} is no address; ip:port or [ip6]:port")))
}

pub(super) fn policy_of(text: &str) -> PyResult<Policy> {
    text.parse().map_err(|why: PolicyError| of_setting(why.to_string()))
}

pub(super) fn wire_of(name: Option<&str>) -> PyResult<Wire> {
    match name {
        None | Some("f32") => Ok(Wire::Own),
        Some("bf16") => Ok(Wire::Bf16),
        Some("f16") => Ok(Wire::F16),
        Some(other) => Err(of_setting(format!("comm_dtype {other:?}; one of f32, f16, bf16"))),
    }
}

pub(super) fn secret_of(text: Option<&str>, file: Option<PathBuf>) -> PyResult<Secret> {
    let secret = match (text, file) {
        (Some(text), _) => Secret::from_text(text),
        (None, Some(file)) => Secret::from_file(file),
        (None, None) => Secret::from_env(),
    };
    secret.map_err(|why| of_wire(&why))
}

pub(super) fn timeouts_of(seconds: f64) -> PyResult<Timeouts> {
    Timeouts::new(nanos_of(seconds)?).map_err(|why| of_wire(&why))
}

pub(super) fn nanos_of(seconds: f64) -> PyResult<Nanos> {
    let time = Duration::try_from_secs_f64(seconds);
    Ok(time.map_err(|_| of_setting(format!("{seconds} s; a number of seconds, 0 or more")))?.into())
}
