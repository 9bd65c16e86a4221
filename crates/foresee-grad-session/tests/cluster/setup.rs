// SPDX-License-Identifier: Apache-2.0
//! What a run is made of, and the settings and plans that follow.

use foresee_grad_queue::{Dtype, Op, Pattern, Plan, PlanConfig, ServerId, TensorSpec, Wire};
use foresee_grad_session::{JobSettings, RankSettings};
use foresee_testkit::Dice;
use foresee_units::{Nanos, Rank};

pub(crate) const HEARTBEAT: Nanos = Nanos::from_secs(1);
pub(crate) const RECONNECT: Nanos = Nanos::from_secs(3);
pub(crate) const TIMEOUT: Nanos = Nanos::from_secs(30);

/// What a run is made of.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    pub(crate) ranks: u32,
    pub(crate) servers: u16,
    pub(crate) rounds: u64,
    /// Bytes that a server may hold for contributions out of turn.
    pub(crate) park: u64,
    pub(crate) survives: bool,
    /// Connections that break, both of a pair or the data connection alone.
    pub(crate) breaks: u32,
    /// Servers that are killed and replaced.
    pub(crate) replacements: u32,
    /// Ranks that are killed.
    pub(crate) losses: u32,
}

pub(crate) fn server_id(server: usize) -> ServerId {
    ServerId(u16::try_from(server).expect("there are few"))
}

pub(crate) fn job_settings(setup: &Setup, server: usize) -> JobSettings {
    JobSettings {
        name: "run".into(),
        server: server_id(server),
        world: setup.ranks,
        local: 1,
        survives: setup.survives,
        heartbeat: HEARTBEAT,
        reconnect: RECONNECT,
        look: TIMEOUT,
    }
}

pub(crate) fn rank_settings(setup: &Setup, rank: u32) -> RankSettings {
    RankSettings {
        rank: Rank(rank),
        world: setup.ranks,
        local: 1,
        servers: (0..setup.servers).map(|server| format!("10.0.0.{server}:1")).collect(),
        beside: 0,
        recover: true,
        survives: setup.survives,
        timeout: TIMEOUT,
        heartbeat: HEARTBEAT,
        handshake: Nanos::from_secs(10),
        reconnect: RECONNECT,
    }
}

pub(crate) fn draw_plan(dice: &mut Dice, servers: u16) -> Plan {
    let tensors = 1 + dice.below(4);
    // 16 floats a packet: none, a part of one, several with a short last one.
    let spec = |(index, elements): (usize, u64)| TensorSpec {
        name: format!("t{index}"),
        dtype: Dtype::F32,
        shape: vec![elements],
        strides: vec![1],
        class: 0,
        op: Op::Mean,
    };
    let sizes: Vec<u64> = (0..tensors).map(|_| dice.pick(&[0, 3, 16, 40, 70])).collect();
    let shares: Vec<u32> = (0..servers).map(|_| 1 + u32::from(dice.one_in(2))).collect();
    let pattern = Pattern::new(&shares).expect("there are servers");
    let config = PlanConfig { packet_bytes: 64, wire: Wire::Own, pattern };
    Plan::new(config, sizes.into_iter().enumerate().map(spec).collect()).expect("it is a plan")
}
