// SPDX-License-Identifier: Apache-2.0
//! Admission of a machine's ranks to its hub, and what they send over their control connections.
//!
//! Ranks of other machines are refused, and a second process of one rank.

use std::sync::Arc;

use foresee_units::Rank;
use foresee_wire::{Arrival, Fault, FaultCode, Hello, Message, Purpose, Role, Wait, Welcome};

use super::fault;
use super::hub::Shared;
use super::seats::Seat;
use crate::control::{Control, Ear, End};

impl Shared {
    /// Takes a proved connection of a rank of this machine, or says why not.
    pub(super) fn admit(self: &Arc<Self>, arrival: Arrival) {
        let wait = Wait::within(self.options.timeouts.handshake);
        let rank = Rank(arrival.hello().rank);
        if let Err(fault) = self.expects(arrival.hello()) {
            // Whether the answer arrives is the other end's to notice.
            let _ = arrival.refuse(fault, wait);
            return;
        }
        let started = arrival.welcome(Welcome::default(), wait).and_then(|connection| {
            let ear = RankEar { shared: Arc::clone(self), rank };
            Control::start(&format!("machine-{rank}"), connection, self.options.timeouts, ear)
        });
        match started {
            Ok(control) => {
                let mut state = self.lock();
                if let Some(why) = &state.failed {
                    control.close(Message::Error(fault::told(why)));
                }
                if let Some(seat) = state.seats.0.get_mut(&rank) {
                    seat.control = Some(control);
                }
                drop(state);
                self.ring();
            }
            Err(_) => drop(self.lock().seats.0.remove(&rank)),
        }
    }

    fn expects(&self, hello: &Hello) -> Result<(), Fault> {
        let crate::options::MachineOptions { job, world, first, local, .. } = &self.options;
        let Hello { purpose, role, rank, .. } = hello;
        if (*purpose, *role) != (Purpose::Gradients, Role::Control) {
            return Err(Fault::new(FaultCode::Protocol, "this is where ranks of one machine meet"));
        }
        let is_ours = (first.0..first.0 + local).contains(rank);
        if hello.job != *job || hello.world != *world || !is_ours {
            let text = format!(
                "rank {rank} of {} of job '{}' is none of this machine's, which has ranks {first} to {} of {world} of job \
                 '{job}'; start equally many ranks on every machine, in the order of the machines, or pass \
                 hierarchical=False on all",
                hello.world,
                hello.job,
                first.0 + local - 1,
            );
            return Err(Fault::new(FaultCode::Plan, text));
        }
        let mut state = self.lock();
        if let Some(why) = &state.failed {
            return Err(fault::told(why));
        }
        if state.closed || state.seats.0.contains_key(&Rank(*rank)) {
            let text = format!("rank {rank} of job '{job}' is here already, in another process");
            return Err(Fault::new(FaultCode::Busy, text));
        }
        state.seats.0.insert(Rank(*rank), Seat { control: None, left: None });
        Ok(())
    }
}

/// Reads the messages of one rank.
struct RankEar {
    shared: Arc<Shared>,
    rank: Rank,
}

impl Ear for RankEar {
    fn hear(&mut self, message: Message) -> Result<(), Fault> {
        let Message::Plan(plan) = message else {
            let text = format!("rank {} sends {}, which is not for a hub", self.rank, message.kind());
            return Err(Fault::new(FaultCode::Protocol, text));
        };
        self.shared.lock().proposals.insert(self.rank, plan.body);
        self.shared.ring();
        Ok(())
    }

    fn ended(&mut self, end: End) {
        match end {
            End::Bye(reason) => {
                if let Some(seat) = self.shared.lock().seats.0.get_mut(&self.rank) {
                    seat.left = Some(reason);
                }
                self.shared.ring();
            }
            End::Fault(fault) => self.shared.fail(&fault::heard(fault)),
            End::Broken(why) => self.shared.lose(self.rank, why.to_string()),
            End::Silent(time) => self.shared.lose(self.rank, format!("it was silent for {time}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use foresee_grad_queue::Wire;
    use foresee_wire::{Secret, Timeouts};

    use super::*;
    use crate::options::MachineOptions;

    #[test]
    fn ranks_of_other_machines_and_second_processes_are_refused_with_the_reason() {
        let hub = Shared::new(MachineOptions {
            job: "job".into(),
            world: 4,
            first: Rank(2),
            local: 2,
            secret: Secret::from_text("a secret of 24 characters").unwrap(),
            timeouts: Timeouts::default(),
            wire: Wire::Own,
            timeline: 0,
        });
        let hello = |rank, world| Hello::new(Purpose::Gradients, Role::Control, "job", rank, world);
        for stranger in [hello(1, 4), hello(2, 5), Hello { job: "other".into(), ..hello(2, 4) }] {
            let fault = hub.expects(&stranger).unwrap_err();
            assert!(fault.code == FaultCode::Plan && fault.text.contains("hierarchical=False"), "{fault}");
        }
        assert_eq!(
            hub.expects(&Hello { role: Role::Data, ..hello(2, 4) }).unwrap_err().code,
            FaultCode::Protocol
        );
        hub.expects(&hello(3, 4)).unwrap();
        let fault = hub.expects(&hello(3, 4)).unwrap_err();
        assert!(fault.code == FaultCode::Busy && fault.text.contains("in another process"), "{fault}");
    }
}
