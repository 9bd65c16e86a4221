// SPDX-License-Identifier: Apache-2.0
//! The ranks of a node at their leader: admission, messages and departures.
//!
//! Ranks of other nodes are refused, and a second process of one rank.

use std::collections::BTreeMap;
use std::sync::Arc;

use foresee_units::Rank;
use foresee_wire::{Arrival, Fault, FaultCode, Hello, Message, Purpose, Role, Wait, Welcome};

use super::fault::{from_fault, to_fault};
use super::leader::LeaderCore;
use crate::control::{Control, ControlEnd, ControlHandler};
use crate::options::NodeOptions;

/// The ranks that were admitted.
#[derive(Debug, Default)]
pub(super) struct Members(BTreeMap<Rank, Member>);

#[derive(Debug, Default)]
struct Member {
    control: Option<Control>,
    /// The reason with which it left.
    goodbye: Option<String>,
}

impl Members {
    /// The connections of ranks that have not left.
    pub(super) fn controls(&self) -> Vec<Control> {
        let present = self.0.values().filter(|member| member.goodbye.is_none());
        present.filter_map(|member| member.control.clone()).collect()
    }

    /// Whether any admitted rank has not left.
    pub(super) fn is_any_present(&self) -> bool {
        self.0.values().any(|member| member.goodbye.is_none())
    }

    /// The ranks that have left, with the cause to report if others need them.
    pub(super) fn departed(&self) -> impl Iterator<Item = (Rank, String)> + '_ {
        self.0.iter().filter_map(|(rank, member)| {
            let reason = member.goodbye.as_ref()?;
            let why = format!(
                "it has left ({reason}) while others go on; every rank must take the same number of steps"
            );
            Some((*rank, why))
        })
    }
}

impl LeaderCore {
    /// Admit an authenticated connection of a rank of this node, or refuse it.
    pub(super) fn admit(self: &Arc<Self>, arrival: Arrival) {
        let wait = Wait::within(self.options.timeouts.handshake);
        let rank = Rank(arrival.hello().rank);
        if let Err(fault) = self.check(arrival.hello()) {
            // If the refusal does not arrive, the other end times out.
            let _ = arrival.refuse(fault, wait);
            return;
        }
        let started = arrival.welcome(Welcome::default(), wait).and_then(|connection| {
            let handler = MemberHandler { core: Arc::clone(self), rank };
            Control::start(&format!("node-{rank}"), connection, self.options.timeouts, handler)
        });
        match started {
            Ok(control) => {
                let mut state = self.lock();
                if let Some(why) = &state.failed {
                    control.close(Message::Error(to_fault(why)));
                }
                if let Some(member) = state.members.0.get_mut(&rank) {
                    member.control = Some(control);
                }
                drop(state);
                self.wake();
            }
            Err(_) => drop(self.lock().members.0.remove(&rank)),
        }
    }

    /// Check a HELLO, and reserve its rank.
    fn check(&self, hello: &Hello) -> Result<(), Fault> {
        let NodeOptions { job, world, first, local_world, .. } = &self.options;
        let Hello { purpose, role, rank, .. } = hello;
        if (*purpose, *role) != (Purpose::Gradients, Role::Control) {
            return Err(Fault::new(FaultCode::Protocol, "this address is for ranks of one node"));
        }
        let is_ours = (first.0..first.0 + local_world).contains(rank);
        if hello.job != *job || hello.world != *world || !is_ours {
            let text = format!(
                "rank {rank} of {} of job '{}' is not of this node, which has ranks {first} to {} of {world} of job '{job}'; \
                 start equally many ranks on every node, in the order of the nodes, or pass hierarchical=False on all",
                hello.world,
                hello.job,
                first.0 + local_world - 1,
            );
            return Err(Fault::new(FaultCode::Plan, text));
        }
        let mut state = self.lock();
        if let Some(why) = &state.failed {
            return Err(to_fault(why));
        }
        if state.is_closed || state.members.0.contains_key(&Rank(*rank)) {
            let text = format!("rank {rank} of job '{job}' is here already, in another process");
            return Err(Fault::new(FaultCode::Busy, text));
        }
        state.members.0.insert(Rank(*rank), Member::default());
        Ok(())
    }
}

/// Handler of one rank's messages.
struct MemberHandler {
    core: Arc<LeaderCore>,
    rank: Rank,
}

impl ControlHandler for MemberHandler {
    fn on_message(&mut self, message: Message) -> Result<(), Fault> {
        let Message::Plan(plan) = message else {
            let text = format!("rank {} sends {}, which is not for a leader", self.rank, message.kind());
            return Err(Fault::new(FaultCode::Protocol, text));
        };
        self.core.lock().proposals.insert(self.rank, plan.body);
        self.core.wake();
        Ok(())
    }

    fn on_end(&mut self, end: ControlEnd) {
        match end {
            ControlEnd::Goodbye(reason) => {
                if let Some(member) = self.core.lock().members.0.get_mut(&self.rank) {
                    member.goodbye = Some(reason);
                }
                self.core.wake();
            }
            ControlEnd::Fault(fault) => self.core.fail(&from_fault(fault)),
            ControlEnd::Broken(why) => self.core.lose(self.rank, why.to_string()),
            ControlEnd::Silent(time) => self.core.lose(self.rank, format!("it was silent for {time}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use foresee_grad_queue::Wire;
    use foresee_wire::{Secret, Timeouts};

    use super::*;

    #[test]
    fn ranks_of_other_nodes_and_second_processes_of_a_rank_are_refused() {
        let leader = LeaderCore::new(NodeOptions {
            job: "job".into(),
            world: 4,
            first: Rank(2),
            local_world: 2,
            secret: Secret::from_text("a secret of 24 characters").unwrap(),
            timeouts: Timeouts::default(),
            wire: Wire::Own,
            timeline: 0,
        });
        let hello = |rank, world| Hello::new(Purpose::Gradients, Role::Control, "job", rank, world);
        for stranger in [hello(1, 4), hello(2, 5), Hello { job: "other".into(), ..hello(2, 4) }] {
            let fault = leader.check(&stranger).unwrap_err();
            assert!(fault.code == FaultCode::Plan && fault.text.contains("hierarchical=False"), "{fault}");
        }
        assert_eq!(
            leader.check(&Hello { role: Role::Data, ..hello(2, 4) }).unwrap_err().code,
            FaultCode::Protocol
        );
        leader.check(&hello(3, 4)).unwrap();
        let fault = leader.check(&hello(3, 4)).unwrap_err();
        assert!(fault.code == FaultCode::Busy && fault.text.contains("in another process"), "{fault}");
    }
}
