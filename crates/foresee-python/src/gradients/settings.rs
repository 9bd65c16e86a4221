// SPDX-License-Identifier: Apache-2.0
//! Conversion of Python's settings of ranks and servers to options of the core. A wrong value is a `ConfigError`.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use foresee_grad_exchange::{ExchangeError, RankOptions};
use foresee_grad_queue::{Dtype, Op, Pattern, Policy, PolicyError, TensorSpec, Wire};
use foresee_units::Rank;
use foresee_wire::{LinkOptions, Secret, Timeouts, TlsClient};
use pyo3::prelude::*;

use super::GradientServer;
use crate::errors::{config_error, of_exchange, of_wire};

/// Name, dtype, shape, strides, class, operation.
pub(super) type TensorArguments = (String, String, Vec<u64>, Vec<i64>, u8, String);

/// Arguments of the connections to servers.
pub(super) struct LinkArguments<'a> {
    pub(super) wire: Wire,
    pub(super) policy: &'a str,
    pub(super) tls: bool,
    pub(super) packet_bytes: Option<NonZeroU32>,
    pub(super) timeline: usize,
    pub(super) recover: bool,
    pub(super) continue_on_rank_loss: bool,
}

/// Options of a rank; `rank`: the rank, the world, and the number of ranks of its node for which it exchanges.
pub(super) fn rank_options(
    servers: Vec<String>,
    job: String,
    (rank, world, local_world): (Rank, u32, u32),
    timeouts: Timeouts,
    secret: Secret,
    link: &LinkArguments<'_>,
    colocated_server: Option<&GradientServer>,
) -> PyResult<RankOptions> {
    let servers: Vec<_> = servers.iter().map(|server| address_of(server)).collect::<PyResult<_>>()?;
    // One server per node, or per rank that exchanges by itself.
    let colocated = colocated_server.map_or(0, |_| world / local_world.max(1));
    let shares =
        if colocated_server.is_some() { server_shares(colocated, servers.len())? } else { Vec::new() };
    Ok(RankOptions {
        job,
        rank,
        world,
        local_world,
        servers,
        shares,
        secret,
        tls: if link.tls { Some(TlsClient::by_secret().map_err(of_wire)?) } else { None },
        timeouts,
        policy: policy_of(link.policy)?,
        packet_bytes: link.packet_bytes,
        wire: link.wire,
        timeline: link.timeline,
        link: LinkOptions::default(),
        interfaces: colocated_server.map(|server| server.interfaces.get().cloned()).transpose()?,
        // `server_shares` has refused larger numbers.
        colocated: u16::try_from(colocated).unwrap_or(u16::MAX),
        recover: link.recover,
        continue_on_rank_loss: link.continue_on_rank_loss,
    })
}

/// Shares of servers: one colocated with each of `world` ranks, by rank, and then the others.
fn server_shares(world: u32, servers: usize) -> PyResult<Vec<u32>> {
    let counts = u16::try_from(world).ok().zip(servers.checked_sub(world as usize));
    let counts = counts.and_then(|(ranks, extra)| Some((ranks, u16::try_from(extra).ok()?)));
    let Some((ranks, extra)) = counts else {
        return Err(config_error(format!(
            "{servers} servers for {world} ranks, one colocated with each; 1 to 65535 of either"
        )));
    };
    let pattern = Pattern::mixed(ranks, extra).map_err(|why| of_exchange(ExchangeError::from(why)))?;
    Ok(pattern.shares().to_vec())
}

pub(super) fn spec_of((name, dtype, shape, strides, class, op): TensorArguments) -> PyResult<TensorSpec> {
    let Some(dtype) = Dtype::ALL.into_iter().find(|one| one.name() == dtype) else {
        let names = Dtype::ALL.map(Dtype::name).join(", ");
        return Err(config_error(format!("tensor '{name}' is {dtype}; one of {names}")));
    };
    let Some(op) = [Op::Mean, Op::Sum].into_iter().find(|one| one.to_string() == op) else {
        return Err(config_error(format!("tensor '{name}' asks for a {op}; a mean or a sum")));
    };
    Ok(TensorSpec { name, dtype, shape, strides, class, op })
}

pub(super) fn address_of(text: &str) -> PyResult<SocketAddr> {
    text.parse().map_err(|_| config_error(format!("{text:?} is no address; ip:port or [ip6]:port")))
}

pub(super) fn policy_of(text: &str) -> PyResult<Policy> {
    text.parse().map_err(|why: PolicyError| config_error(why.to_string()))
}

pub(super) fn wire_of(name: Option<&str>) -> PyResult<Wire> {
    match name {
        None | Some("f32") => Ok(Wire::Own),
        Some("bf16") => Ok(Wire::Bf16),
        Some("f16") => Ok(Wire::F16),
        Some(other) => Err(config_error(format!("comm_dtype {other:?}; one of f32, f16, bf16"))),
    }
}

pub(super) fn timeouts_of(seconds: f64) -> PyResult<Timeouts> {
    Timeouts::new(duration_of(seconds)?.into()).map_err(of_wire)
}

pub(super) fn duration_of(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| config_error(format!("{seconds} s; a number of seconds, 0 or more")))
}
