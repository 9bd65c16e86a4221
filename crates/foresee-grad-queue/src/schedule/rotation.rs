// SPDX-License-Identifier: Apache-2.0
//! Deficit round robin among flows, in bytes.
//!
//! The flow at the front sends while its balance is above zero, so it may overdraw by one packet; then it
//! receives a quantum and goes to the back. A quantum is at least as large as any packet, so the flow behind it
//! can always send, and the choice visits two flows at most. Two flows that can both always send stay within one
//! quantum and one packet of each other.
//!
//! Source: Shreedhar and Varghese, "Efficient Fair Queuing Using Deficit Round Robin", 1995. The overdraft
//! (surplus round robin) makes the size of the next packet irrelevant.

use super::ring::{Links, Ring};

#[derive(Clone, Copy, Debug, Default)]
struct Member {
    /// Bytes that the flow may still send; after an overdraft it is at most zero and above `-quantum`.
    balance: i64,
    waiting: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Rotation {
    members: Vec<Member>,
    links: Links,
    ring: Ring,
    quantum: i64,
}

impl Rotation {
    /// Raise the quantum to at least `bytes`, the size of a packet or of a batch.
    pub(super) fn admit(&mut self, bytes: u32) {
        self.quantum = self.quantum.max(i64::from(bytes));
    }

    /// Set whether `flow` can send. A flow that returns loses its unused balance, and keeps its debt.
    pub(super) fn set(&mut self, flow: u32, waiting: bool) {
        if self.members.len() <= flow as usize {
            self.members.resize(flow as usize + 1, Member::default());
        }
        let member = &mut self.members[flow as usize];
        if member.waiting == waiting {
            return;
        }
        member.waiting = waiting;
        if waiting {
            member.balance = member.balance.min(0) + self.quantum;
            self.links.push_back(&mut self.ring, flow);
        } else {
            self.links.remove(&mut self.ring, flow);
        }
    }

    /// Remove `flow` with its debt.
    pub(super) fn forget(&mut self, flow: u32) {
        self.set(flow, false);
        self.members[flow as usize] = Member::default();
    }

    /// The flow that sends next.
    pub(super) fn front(&mut self) -> Option<u32> {
        loop {
            super::effort::step();
            let front = self.ring.head()?;
            let member = &mut self.members[front as usize];
            if member.balance > 0 {
                return Some(front);
            }
            member.balance += self.quantum;
            self.links.remove(&mut self.ring, front);
            self.links.push_back(&mut self.ring, front);
        }
    }

    pub(super) fn charge(&mut self, flow: u32, bytes: u32) {
        self.members[flow as usize].balance -= i64::from(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foresee_testkit::property;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(property(256))]

        #[test]
        fn flows_that_can_always_send_stay_within_a_quantum_and_a_packet(
            sizes in prop::collection::vec(1_u32..1_000, 2..200), flows in 2_u32..5, quantum in 1_u32..3_000,
        ) {
            let mut rotation = Rotation::default();
            let largest = sizes.iter().copied().max().unwrap_or(1);
            rotation.admit(largest);
            rotation.admit(quantum);
            for flow in 0..flows {
                rotation.set(flow, true);
            }
            let mut sent = vec![0_u64; flows as usize];
            for bytes in sizes {
                let flow = rotation.front().unwrap();
                rotation.charge(flow, bytes);
                sent[flow as usize] += u64::from(bytes);
                let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
                prop_assert!(most - least <= u64::from(quantum.max(largest)) + u64::from(largest));
            }
        }
    }

    #[test]
    fn a_flow_that_returns_keeps_its_debt() {
        let mut rotation = Rotation::default();
        rotation.admit(100);
        rotation.set(0, true);
        rotation.set(1, true);
        assert_eq!(rotation.front(), Some(0));
        rotation.charge(0, 100);
        rotation.charge(0, 90); // a batch: 90 owed
        rotation.set(0, false);
        rotation.set(0, true);
        assert_eq!(rotation.front(), Some(1));
        rotation.charge(1, 100);
        assert_eq!(rotation.front(), Some(0));
        rotation.charge(0, 10); // a quantum less the debt
        assert_eq!(rotation.front(), Some(1));
    }
}
