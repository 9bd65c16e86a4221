// SPDX-License-Identifier: Apache-2.0
//! Whose turn it is among flows: deficit round robin in bytes.
//!
//! A flow at the front sends while its balance is above zero, so it may overdraw by one packet; then it
//! gets a quantum and goes to the back. As a quantum is no smaller than any packet, the flow behind it can
//! always send: the choice looks at two flows at most. Two flows that both could send all the time are
//! never further apart than one quantum and one packet.
//!
//! Source: Shreedhar and Varghese, "Efficient Fair Queuing Using Deficit Round Robin", 1995; the overdraft
//! (surplus round robin) spares the question how large the next packet is.

use super::ring::{Links, Ring};

#[derive(Clone, Copy, Debug, Default)]
struct Member {
    /// Bytes it may still send; at or below zero, more than `-quantum`, after an overdraft.
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
    /// Turns are long enough for packets, and batches of packets, of `bytes`.
    pub(super) fn admit(&mut self, bytes: u32) {
        self.quantum = self.quantum.max(i64::from(bytes));
    }

    /// `flow` can send, or cannot. Who comes back has lost what it had saved, and still owes what it owed.
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

    /// `flow` is gone, its debt with it.
    pub(super) fn forget(&mut self, flow: u32) {
        self.set(flow, false);
        self.members[flow as usize] = Member::default();
    }

    /// Who sends next.
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
    fn leaving_and_coming_back_pays_no_debt() {
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
