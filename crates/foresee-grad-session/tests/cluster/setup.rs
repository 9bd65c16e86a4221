// SPDX-License-Identifier: Apache-2.0
//! The setup of a run, and its settings and plans.

use foresee_grad_queue::{Dtype, Op, Pattern, Plan, PlanConfig, ServerId, TensorSpec, Wire};
use foresee_grad_session::{JobSettings, RankSettings};
use foresee_testkit::Dice;
use foresee_units::{Nanos, Rank};

use crate::faults::Fault;

pub(crate) const HEARTBEAT: Nanos = Nanos::from_secs(1);
pub(crate) const RECONNECT: Nanos = Nanos::from_secs(3);
pub(crate) const TIMEOUT: Nanos = Nanos::from_secs(30);

/// The setup of a run.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub(crate) struct Setup {
    pub(crate) ranks: u32,
    pub(crate) servers: u16,
    /// Plans that ranks agree on, one after the other.
    pub(crate) plans: u32,
    /// Rounds of each plan.
    pub(crate) rounds: u64,
    /// The budget of a server for early contributions.
    pub(crate) early_bytes: u64,
    pub(crate) continues_after_loss: bool,
    /// Whether broken connections are re-established.
    pub(crate) recovers: bool,
    /// Whether servers are co-located with ranks, and are not replaced.
    pub(crate) colocated: bool,
    /// Whether every rank uses and pushes all tensors in every round.
    pub(crate) is_dense: bool,
    /// The rank whose messages arrive after most packets.
    pub(crate) slow: Option<usize>,
    /// Whether ranks start one after the other.
    pub(crate) is_late: bool,
    /// The rank that closes without waiting for the results of its last round.
    pub(crate) hasty: Option<usize>,
    /// Faults, in random order.
    pub(crate) faults: Vec<Fault>,
}

impl Setup {
    /// Draw a job without faults.
    pub(crate) fn draw(dice: &mut Dice) -> Self {
        Self {
            ranks: 1 + u32::try_from(dice.below(4)).expect("it is small"),
            servers: 1 + u16::try_from(dice.below(3)).expect("it is small"),
            plans: 1 + u32::from(dice.one_in(3)) + u32::from(dice.one_in(6)),
            rounds: 1 + dice.below(5) as u64,
            early_bytes: dice.pick(&[0, 63, 64, 200, 1 << 20]),
            continues_after_loss: dice.one_in(2),
            recovers: true,
            colocated: false,
            is_dense: false,
            slow: None,
            is_late: dice.one_in(4),
            hasty: None,
            faults: Vec::new(),
        }
    }

    /// Add up to `most` faults of a kind.
    pub(crate) fn with(mut self, dice: &mut Dice, fault: Fault, most: usize) -> Self {
        for _ in 0..dice.below(most + 1) {
            let at = dice.below(self.faults.len() + 1);
            self.faults.insert(at, fault);
        }
        self
    }
}

pub(crate) fn server_id(server: usize) -> ServerId {
    ServerId(u16::try_from(server).expect("there are few"))
}

pub(crate) fn job_settings(setup: &Setup, server: usize) -> JobSettings {
    JobSettings {
        name: "run".into(),
        server: server_id(server),
        world: setup.ranks,
        node_ranks: 1,
        continues_after_loss: setup.continues_after_loss,
        heartbeat: HEARTBEAT,
        grace_period: RECONNECT,
        wait_check_interval: TIMEOUT,
    }
}

pub(crate) fn rank_settings(setup: &Setup, rank: u32) -> RankSettings {
    RankSettings {
        rank: Rank(rank),
        world: setup.ranks,
        node_ranks: 1,
        servers: (0..setup.servers).map(|server| format!("10.0.0.{server}:1")).collect(),
        colocated: if setup.colocated { setup.servers } else { 0 },
        recovers: setup.recovers,
        continues_after_loss: setup.continues_after_loss,
        timeout: TIMEOUT,
        heartbeat: HEARTBEAT,
        handshake: Nanos::from_secs(10),
        grace_period: RECONNECT,
    }
}

pub(crate) fn draw_plan(dice: &mut Dice, servers: u16) -> Plan {
    let tensors = 1 + dice.below(4);
    // 16 floats per packet: no packet, a short one, and several with a short last one.
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
