// SPDX-License-Identifier: Apache-2.0
//! Bounds of memory, for runs of any length.
//!
//! | what | at most |
//! |---|---|
//! | gradients that a rank retains | 4 rounds |
//! | packets that wait at a rank for one server | 4 times those of the plan |
//! | messages of a rank in one connection | 12 |
//! | messages of a server in one connection, without reports of waits | 16 |
//! | bytes of early contributions at a server | its budget |
//! | results that wait at a server | 4 times those of the plan, for each rank |

use std::collections::BTreeSet;

use foresee_grad_session::ServerMessage;

use crate::world::World;

const RETAINED_ROUNDS: usize = 4;
const REPEATS: u64 = 4;
const UP: usize = 12;
const DOWN: usize = 16;

impl World {
    pub(crate) fn check_bounds(&self) {
        let plans = self.plans.iter();
        let packets = |plan: &foresee_grad_queue::Plan| -> u64 {
            (0..plan.tensors())
                .map(|t| u64::from(plan.packets(foresee_grad_queue::TensorId(t)).unwrap_or(0)))
                .sum()
        };
        let packets = plans.map(|plan| packets(plan)).max().unwrap_or(0);
        for rank in &self.ranks {
            let rounds: BTreeSet<_> = rank.retained.iter().map(|(round, _)| round).collect();
            assert!(rounds.len() <= RETAINED_ROUNDS, "a rank retains {rounds:?}");
            for queue in &rank.queues {
                let waiting = queue.values().map(Vec::len).sum::<usize>() as u64;
                assert!(waiting <= REPEATS * packets, "{waiting} packets wait at a rank, of {packets}");
            }
        }
        for pair in self.pairs.iter().flatten().flatten() {
            assert!(pair.up.len() <= UP, "messages to a server: {:?}", pair.up);
            let is_report = |message: &&ServerMessage| matches!(message, ServerMessage::Waiting(_));
            let down = pair.down.iter().filter(|message| !is_report(message)).count();
            assert!(down <= DOWN, "messages to a rank: {:?}", pair.down);
        }
        for server in &self.servers {
            let most = REPEATS * packets * self.ranks.len() as u64;
            assert!(server.offers.len() as u64 <= most, "{} results wait at a server", server.offers.len());
            if let Some(slots) = &server.slots {
                assert!(slots.early_budget.peak() <= server.early_bytes, "early contributions have a budget");
            }
        }
    }
}
