// SPDX-License-Identifier: Apache-2.0
//! Flows that share an interface by bytes.

use std::collections::BTreeMap;

use foresee_testkit::property;
use proptest::prelude::*;

use super::super::{Connection, Flow};
use super::{OPEN, START, all, offer, rows, schedule, stream};

#[test]
fn flows_share_by_bytes_and_keep_their_own_order() {
    let mut schedule = schedule(OPEN, 100, 2);
    // Small urgent packets of one job and large ones of another: neither gets more than half.
    schedule.handle_offer(&offer(1, 7, 0, &[stream(0, 400, 10)]), START).unwrap();
    schedule.handle_offer(&offer(2, 8, 9, &[stream(1, 40, 100)]), START).unwrap();
    let mut sent = [0_i64; 2];
    for grant in all(&mut schedule) {
        sent[usize::from(grant.flow == Flow::new(8))] += i64::from(grant.bytes);
        assert!((sent[0] - sent[1]).abs() <= 200, "{sent:?}");
    }
    assert_eq!(sent, [4_000, 4_000]);
}

#[test]
fn a_flow_with_blocked_connections_takes_no_turn_of_the_others() {
    let mut schedule = schedule(OPEN, 100, 2);
    schedule.handle_offer(&offer(1, 7, 0, &[stream(0, 3, 100)]), START).unwrap();
    schedule.handle_offer(&offer(2, 8, 0, &[stream(1, 3, 100)]), START).unwrap();
    schedule.handle_blocked(Connection::new(0)).unwrap();
    assert_eq!(rows(&mut schedule), [(2, 1, 0), (2, 1, 1), (2, 1, 2)]);
    assert_eq!(schedule.backlog, 300);
}

#[test]
fn a_new_flow_does_not_inherit_the_debt_of_a_closed_one() {
    let mut schedule = schedule(OPEN, 100, 2);
    schedule.handle_offer(&offer(1, 7, 0, &[stream(0, 2, 99)]), START).unwrap();
    assert_eq!(rows(&mut schedule).len(), 2); // 198 bytes of a quantum of 100
    schedule.handle_closed(Connection::new(0)).unwrap();
    schedule.handle_open(Connection::new(0)).unwrap();
    schedule.handle_offer(&offer(2, 9, 0, &[stream(0, 4, 50)]), START).unwrap();
    schedule.handle_offer(&offer(3, 8, 0, &[stream(1, 4, 50)]), START).unwrap();
    let turns: Vec<u64> = rows(&mut schedule).into_iter().map(|(ticket, ..)| ticket).collect();
    assert_eq!(turns, [2, 2, 3, 3, 2, 2, 3, 3]);
}

proptest! {
    #![proptest_config(property(256))]

    #[test]
    fn flows_that_always_have_something_stay_within_a_quantum_and_a_packet(
        packet in 1_u32..300,
        offers in prop::collection::vec((0_u32..3, 0_u8..4, 0_u32..4, 1_u32..6, 1_u32..300), 3..60),
    ) {
        let mut schedule = schedule(OPEN, packet, 4);
        let mut largest = packet;
        for (ticket, &(flow, class, connection, packets, bytes)) in (0..).zip(&offers) {
            let streams = [stream(connection, packets, bytes)];
            schedule.handle_offer(&offer(ticket, flow, class, &streams), START).unwrap();
            largest = largest.max(bytes);
        }
        let mut offered = BTreeMap::new();
        for &(flow, .., packets, bytes) in &offers {
            *offered.entry(flow).or_insert(0) += u64::from(packets) * u64::from(bytes);
        }
        let mut sent: BTreeMap<u32, u64> = offered.keys().map(|&flow| (flow, 0)).collect();
        while sent.iter().all(|(flow, sent)| *sent < offered[flow]) {
            let mut next = schedule.poll_send(START);
            while let Some(grant) = next {
                *sent.get_mut(&grant.flow.get()).unwrap() += u64::from(grant.bytes);
                next = schedule.poll_more(START);
            }
            let (least, most) = (sent.values().min().unwrap(), sent.values().max().unwrap());
            prop_assert!(most - least <= 2 * u64::from(largest), "{sent:?}, quantum {largest}");
        }
    }
}
