// SPDX-License-Identifier: Apache-2.0
//! Comparison of the plans that ranks propose.
//!
//! Servers compare the proposals of all ranks, and the leader of a node those of its members.

use std::collections::BTreeMap;

use foresee_grad_queue::Plan;
use foresee_units::Rank;

use crate::{Refusal, RefusalCode};

/// The error text for a rank that proposes a plan while another is in a later round of the current plan.
pub fn out_of_step(proposer: Rank, other: Rank) -> String {
    format!(
        "rank {proposer} proposes a plan while rank {other} continues with another round; pass the same overlap= on all \
         ranks, and call add_param_group() on all of them"
    )
}

/// Return the plan of the first rank, if the others propose the same tensors. Packet size, order and classes may
/// differ: the first rank's values apply.
///
/// # Errors
/// [`RefusalCode::Plan`] if a proposal cannot be decoded, or two ranks differ. The text names both, the first
/// difference and the remedy.
///
/// # Panics
/// If there are no proposals.
pub fn common(proposals: &BTreeMap<Rank, Vec<u8>>) -> Result<Plan, Refusal> {
    let mut plans = Vec::with_capacity(proposals.len());
    for (rank, body) in proposals {
        let plan = Plan::decode(body).map_err(|why| {
            let text = format!("rank {rank} proposes a plan that cannot be decoded: {why}");
            Refusal::new(RefusalCode::Plan, text).about(*rank)
        })?;
        plans.push((*rank, plan));
    }
    let mut plans = plans.into_iter();
    let (first, plan) = plans.next().expect("there is a proposal");
    for (other, theirs) in plans {
        if let Some(difference) = plan.difference(&theirs) {
            let text = difference.between(&format!("on rank {first}"), &format!("on rank {other}"));
            return Err(Refusal::new(RefusalCode::Plan, format!("{text}; {}", difference.remedy())));
        }
    }
    Ok(plan)
}
