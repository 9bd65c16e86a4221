// SPDX-License-Identifier: Apache-2.0
//! Whether what ranks propose is one plan: asked by servers of all ranks, and by the hub of a machine of its own.
//!
//! Refuses to mend: two ranks that differ are told where.

use std::collections::BTreeMap;

use foresee_grad_queue::{Field, Plan, QueueError};
use foresee_units::Rank;
use foresee_wire::{Fault, FaultCode};

/// Why neither goes on: one rank asks for a plan, another is in a round of the last one.
pub(crate) fn out_of_step(proposer: Rank, other: Rank) -> String {
    format!(
        "rank {proposer} agrees on tensors anew while rank {other} goes on to another round; pass the same overlap= on all \
         ranks, and call add_param_group() on all of them"
    )
}

/// The first rank's plan, which all others share but for packet size, order and classes: there the first one's hold.
pub(crate) fn common(proposals: &BTreeMap<Rank, Vec<u8>>) -> Result<Plan, Fault> {
    let refused = |why: &dyn std::fmt::Display| Fault::new(FaultCode::Plan, why.to_string());
    let mut plans = Vec::with_capacity(proposals.len());
    for (rank, body) in proposals {
        plans.push((*rank, Plan::decode(body).map_err(|why| refused(&why))?));
    }
    let mut plans = plans.into_iter();
    let (first, plan) = plans.next().expect("somebody has proposed");
    for (other, theirs) in plans {
        let setting = plan
            .differs(&theirs)
            .filter(|difference| matches!(difference.field, Field::Wire | Field::Shares));
        if let Some(difference) = setting.or_else(|| plan.align(&theirs).err()) {
            let why = QueueError::PlansDiffer(difference);
            return Err(refused(&format_args!(
                "rank {first} (first) and rank {other} (other) differ: {why}"
            )));
        }
    }
    Ok(plan)
}
