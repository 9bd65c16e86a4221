// SPDX-License-Identifier: Apache-2.0
//! Comparison of the plans that ranks propose.
//!
//! Servers compare those of all ranks, and the leader of a node those of the ranks of its node.

use std::collections::BTreeMap;

use foresee_grad_queue::{Difference, Field, Plan};
use foresee_units::Rank;

use crate::{Refusal, RefusalCode};

/// The reason why a rank that proposes a plan and one in a later round of the last plan cannot go on.
pub fn out_of_step(proposer: Rank, other: Rank) -> String {
    format!(
        "rank {proposer} agrees on tensors anew while rank {other} goes on to another round; pass the same overlap= on all \
         ranks, and call add_param_group() on all of them"
    )
}

/// The plan of the first rank, if the others propose the same tensors.
///
/// Packet size, order and classes may differ: those of the first rank hold.
///
/// # Errors
/// [`RefusalCode::Plan`]: a proposal is no plan, or two ranks differ. The text names both, the first difference and the
/// remedy.
///
/// # Panics
/// If there are no proposals.
pub fn common(proposals: &BTreeMap<Rank, Vec<u8>>) -> Result<Plan, Refusal> {
    let refused = |why: &dyn std::fmt::Display| Refusal::new(RefusalCode::Plan, why);
    let mut plans = Vec::with_capacity(proposals.len());
    for (rank, body) in proposals {
        let plan = Plan::decode(body).map_err(|why| {
            refused(&format_args!("rank {rank} proposes a plan that cannot be read: {why}")).about(*rank)
        })?;
        plans.push((*rank, plan));
    }
    let mut plans = plans.into_iter();
    let (first, plan) = plans.next().expect("there is a proposal");
    for (other, theirs) in plans {
        if let Some(difference) = difference(&plan, &theirs) {
            let text = difference.between(&format!("on rank {first}"), &format!("on rank {other}"));
            return Err(refused(&format_args!("{text}; {}", difference.remedy())));
        }
    }
    Ok(plan)
}

/// Why two proposals cannot lead to one plan; `None` if they can.
pub(crate) fn difference(one: &Plan, other: &Plan) -> Option<Difference> {
    let setting =
        one.differs(other).filter(|difference| matches!(difference.field, Field::Wire | Field::Shares));
    setting.or_else(|| one.align(other).err())
}
