// SPDX-License-Identifier: Apache-2.0
//! One rank, step by step: what it waits for, what it may do, and which messages it sends.

use super::*;
use crate::{DiscardReason, Dtype, Op, PacketId, Pattern, PlanConfig, TensorSpec, Wire};

const A: TensorId = TensorId(0);
const B: TensorId = TensorId(1);
const S0: ServerId = ServerId(0);

/// Two tensors of 3 packets each on one or more servers.
fn collect(servers: u16) -> Collector {
    collect_of(servers, 64, 40)
}

fn collect_of(servers: u16, packet_bytes: u32, elements: u64) -> Collector {
    let tensor = |name: &str| TensorSpec {
        name: name.to_owned(),
        dtype: Dtype::F32,
        shape: vec![elements],
        strides: vec![1],
        class: 0,
        op: Op::Mean,
    };
    let pattern = Pattern::new(&vec![1; usize::from(servers)]).unwrap();
    let config = PlanConfig { packet_bytes, wire: Wire::Own, pattern };
    let plan = Plan::new(config, vec![tensor("a"), tensor("b")]).unwrap();
    Collector::new(Arc::new(plan), Rank(3), 0, Round(0))
}

fn set(tensors: &[TensorId]) -> TensorSet {
    let mut set = TensorSet::none(2);
    for tensor in tensors {
        assert!(set.insert(*tensor));
    }
    set
}

fn header(collect: &Collector, round: u64, tensor: TensorId, packet: u32) -> SumHeader {
    let packet = PacketId { tensor, packet };
    let (server, _) = collect.plan.server(packet).unwrap();
    let (_, bytes) = collect.plan.range(packet).unwrap();
    SumHeader {
        server,
        generation: collect.generation(),
        round: Round(round),
        packet,
        bytes: u64::from(bytes),
    }
}

fn receive(collect: &mut Collector, round: u64, tensor: TensorId, packet: u32) -> Completion {
    let header = header(collect, round, tensor, packet);
    match collect.admit(header).unwrap() {
        Arrival::Read(claim) => collect.receive(claim),
        other => panic!("expected to read, got {other:?}"),
    }
}

fn actions(collect: &mut Collector) -> Vec<CollectorAction> {
    std::iter::from_fn(|| collect.poll_action()).collect()
}

#[test]
fn a_round_is_pushed_ended_received_and_confirmed() {
    let mut collect = collect(1);
    collect.handle_push(B);
    assert!(!receive(&mut collect, 0, B, 0).tensor, "a sum may come before the round is ended");
    collect.handle_push(A);
    collect.handle_end();
    assert_eq!(actions(&mut collect), [CollectorAction::End(S0, Round(0))]);
    assert!(!collect.may_push(A) && !collect.may_end());
    assert_eq!(collect.waiting(Round(0)).collect::<Vec<_>>(), [(A, 3), (B, 2)]);
    for packet in [2, 0, 1] {
        assert_eq!(receive(&mut collect, 0, A, packet).tensor, packet == 1);
    }
    assert!(collect.may_push(A) && !collect.may_push(B));
    receive(&mut collect, 0, B, 1);
    assert_eq!(receive(&mut collect, 0, B, 2), Completion { tensor: true, round: false });
    assert!(!collect.may_end() && actions(&mut collect).is_empty(), "what the round used is not known");
    collect.handle_used(S0, Round(0), &set(&[A, B])).unwrap();
    assert!(collect.may_end() && collect.is_round_settled(Round(0)));
    assert_eq!(actions(&mut collect), [CollectorAction::Got(S0, Round(0))]);
    assert_eq!(collect.retained(Round(0)), Some(&set(&[A, B])));
    collect.handle_done(S0, Round(0)).unwrap();
    assert_eq!((collect.oldest_retained(), collect.retained(Round(0))), (Round(1), None));
}

#[test]
fn sums_beyond_2_to_the_32_bytes_have_the_right_offset() {
    // 2^34 bytes and a packet of one element, in packets of 64 KiB; with two servers, indices differ from
    // offsets.
    let (packet_bytes, whole) = (1 << 16, 1_u64 << 18);
    let mut collect = collect_of(2, packet_bytes, (1 << 32) + 1);
    collect.handle_push(A);
    collect.handle_end();
    for packet in [whole, whole - 1, (1 << 16) + 1, 1 << 16, 0] {
        let header = header(&collect, 0, A, u32::try_from(packet).unwrap());
        assert_eq!(header.bytes, if packet == whole { 4 } else { u64::from(packet_bytes) });
        let Arrival::Read(claim) = collect.admit(header).unwrap() else { panic!("it was not received yet") };
        assert_eq!(claim.offset(), Some(packet << 16));
        assert!(!collect.receive(claim).tensor);
    }
    let missing: Vec<_> = collect.waiting(Round(0)).collect();
    assert_eq!(missing, [(A, u32::try_from(whole + 1 - 5).unwrap())]);
}

#[test]
fn a_server_gets_a_round_end_only_after_it_reported_what_the_last_round_used() {
    let mut collect = collect(2);
    let two = ServerId(1);
    collect.handle_end();
    assert_eq!(actions(&mut collect).len(), 2);
    assert!(collect.has_sent_end(Round(0)));
    collect.handle_used(S0, Round(0), &set(&[])).unwrap();
    assert_eq!(actions(&mut collect).len(), 2, "got, by what one of them says");
    assert!(collect.may_end());
    collect.handle_end();
    assert_eq!(actions(&mut collect), [CollectorAction::End(S0, Round(1))]);
    assert!(!collect.has_sent_end(Round(1)));
    collect.handle_used(two, Round(0), &set(&[])).unwrap();
    assert_eq!(actions(&mut collect), [CollectorAction::End(two, Round(1))]);
    assert!(collect.has_sent_end(Round(1)));
}

#[test]
fn a_rank_that_skips_a_tensor_waits_for_the_report_whether_others_used_it() {
    let mut collect = collect(1);
    collect.handle_end();
    assert_eq!(collect.skipped(Round(0)), Some(set(&[A, B])));
    assert!(!collect.is_settled(A, Round(1)) && collect.is_used(Round(0), A).is_none());
    for packet in 0..3 {
        assert!(!receive(&mut collect, 0, A, packet).tensor, "there, but not known to be wanted");
    }
    collect.handle_used(S0, Round(0), &set(&[A])).unwrap();
    assert!(collect.is_settled(A, Round(1)) && collect.is_settled(B, Round(1)));
    assert_eq!((collect.is_used(Round(0), A), collect.is_used(Round(0), B)), (Some(true), Some(false)));
    assert!(collect.is_round_settled(Round(0)));
}

#[test]
fn repeated_sums_are_dropped_and_abandoned_ones_can_be_read_again() {
    let mut collect = collect(1);
    collect.handle_push(A);
    let first = header(&collect, 0, A, 0);
    let Arrival::Read(claim) = collect.admit(first).unwrap() else { panic!("the first of its kind") };
    assert_eq!(claim.offset(), Some(0));
    assert!(matches!(collect.admit(first), Ok(Arrival::Discard(DiscardReason::Repeated))));
    collect.abandon(claim);
    receive(&mut collect, 0, A, 0);
    assert!(matches!(collect.admit(first), Ok(Arrival::Discard(DiscardReason::Repeated))));
    assert_eq!(collect.waiting(Round(0)).collect::<Vec<_>>(), [(A, 2)]);
}

#[test]
fn impossible_messages_are_refused_with_their_facts() {
    let mut collect = collect(2);
    collect.handle_push(A);
    let good = header(&collect, 0, A, 2);
    let refused = |collect: &mut Collector, header| collect.admit(header).map(drop).unwrap_err();
    assert!(matches!(
        refused(&mut collect, SumHeader { bytes: 64, ..good }),
        QueueError::PacketLength { .. }
    ));
    let elsewhere = SumHeader { server: ServerId(1 - good.server.0), ..good };
    assert!(matches!(refused(&mut collect, elsewhere), QueueError::WrongServer { .. }));
    let early = refused(&mut collect, SumHeader { round: Round(1), ..good });
    assert_eq!(early.to_string(), format!("server {} names round 1, but rank 3 is in round 0", good.server));
    let unasked = header(&collect, 0, B, 0);
    assert!(matches!(refused(&mut collect, unasked), QueueError::UnexpectedSum { rank: Rank(3), .. }));
    assert!(matches!(collect.handle_used(S0, Round(0), &set(&[A])), Err(QueueError::ServerAhead { .. })));
    collect.handle_end();
    assert!(matches!(collect.handle_used(S0, Round(0), &set(&[B])), Err(QueueError::UsedDiffers { .. })));
    collect.handle_used(S0, Round(0), &set(&[A])).unwrap();
    assert!(matches!(
        collect.handle_used(ServerId(1), Round(0), &set(&[A, B])),
        Err(QueueError::UsedDiffers { .. })
    ));
    assert!(matches!(
        collect.handle_used(S0, Round(0), &TensorSet::none(9)),
        Err(QueueError::TensorSet { .. })
    ));
    assert!(matches!(collect.handle_done(S0, Round(0)), Err(QueueError::ServerAhead { .. })));
    assert!(matches!(collect.handle_done(S0, Round(u64::MAX)), Err(QueueError::ServerAhead { .. })));
    let old = SumHeader { generation: 0, ..good };
    collect.handle_generation(1);
    assert!(matches!(collect.admit(old), Ok(Arrival::Discard(DiscardReason::OldGeneration))));
    assert!(matches!(collect.admit(SumHeader { generation: 2, ..good }), Ok(Arrival::Hold)));
}

#[test]
fn each_server_gets_round_ends_and_confirmations_alternately() {
    let mut collect = collect(2);
    let (one, two) = (ServerId(0), ServerId(1));
    let (end, got) = (CollectorAction::End, CollectorAction::Got);
    collect.handle_end();
    assert_eq!(actions(&mut collect), [end(one, Round(0)), end(two, Round(0))]);
    collect.handle_used(one, Round(0), &set(&[])).unwrap();
    assert_eq!(actions(&mut collect), [got(one, Round(0)), got(two, Round(0))]);
    collect.handle_end();
    assert_eq!(actions(&mut collect), [end(one, Round(1))], "the other server has not closed round 0");
    collect.handle_used(one, Round(1), &set(&[])).unwrap();
    assert!(!collect.may_end(), "one round ahead of a server is enough");
    assert_eq!(actions(&mut collect), [got(one, Round(1))]);
    collect.handle_used(two, Round(0), &set(&[])).unwrap();
    assert_eq!(actions(&mut collect), [end(two, Round(1)), got(two, Round(1))]);
    assert!(collect.may_end());
}

#[test]
fn messages_that_a_broken_connection_may_have_lost_are_repeated() {
    let mut collect = collect(1);
    collect.handle_end();
    collect.handle_used(S0, Round(0), &set(&[])).unwrap();
    let said = actions(&mut collect);
    collect.handle_reconnect(S0);
    assert_eq!(actions(&mut collect), said);
    collect.handle_done(S0, Round(0)).unwrap();
    collect.handle_reconnect(S0);
    assert!(actions(&mut collect).is_empty(), "the server itself has closed it");
}

#[test]
fn a_replacement_server_sums_retained_gradients_again() {
    let mut collect = collect(1);
    for tensor in [A, B] {
        collect.handle_push(tensor);
        for packet in 0..3 {
            receive(&mut collect, 0, tensor, packet);
        }
    }
    collect.handle_end();
    collect.handle_used(S0, Round(0), &set(&[A, B])).unwrap();
    actions(&mut collect);
    collect.handle_push(A);
    collect.handle_replaced(S0, Round(0)).unwrap();
    assert!(collect.is_settled(A, Round(1)), "the update is there, whatever the new server does");
    assert!(!collect.may_push_to(S0, A, Round(1)), "but round 1 may not overtake round 0");
    assert!(collect.may_push_to(S0, A, Round(0)));
    assert_eq!(actions(&mut collect), [CollectorAction::End(S0, Round(0))]);
    for tensor in [A, B] {
        for packet in 0..3 {
            let header = header(&collect, 0, tensor, packet);
            let Arrival::Read(claim) = collect.admit(header).unwrap() else { panic!("expected once more") };
            assert_eq!(claim.offset(), None, "its bytes are there");
            assert!(matches!(collect.admit(header), Ok(Arrival::Discard(DiscardReason::Repeated))));
            assert_eq!(collect.receive(claim), Completion { tensor: false, round: false });
        }
    }
    assert!(collect.may_push_to(S0, A, Round(1)) && !collect.has_repeat(S0, A, Round(0)));
    assert_eq!(actions(&mut collect), [CollectorAction::Got(S0, Round(0))]);
}

#[test]
fn a_round_stays_open_for_a_replacement_when_another_server_reports_it_done() {
    let mut collect = collect(2);
    let (one, two) = (ServerId(0), ServerId(1));
    for tensor in [A, B] {
        collect.handle_push(tensor);
        for packet in 0..3 {
            receive(&mut collect, 0, tensor, packet);
        }
    }
    collect.handle_end();
    for server in [one, two] {
        collect.handle_used(server, Round(0), &set(&[A, B])).unwrap();
    }
    actions(&mut collect);
    collect.handle_replaced(two, Round(0)).unwrap();
    collect.handle_used(two, Round(0), &set(&[A, B])).unwrap();
    assert_eq!(actions(&mut collect), [CollectorAction::End(two, Round(0))]);
    collect.handle_done(one, Round(0)).unwrap();
    assert_eq!(collect.oldest_retained(), Round(1));
    assert_eq!(
        actions(&mut collect),
        [CollectorAction::Got(two, Round(0))],
        "every rank holds it: no need to wait"
    );
    collect.handle_push(A);
    collect.handle_end();
    assert_eq!(actions(&mut collect), [CollectorAction::End(one, Round(1))]);
    assert!(collect.may_push_to(one, A, Round(1)) && !collect.may_push_to(two, A, Round(1)));
    collect.handle_done(two, Round(0)).unwrap();
    assert!(
        collect.may_push_to(two, A, Round(1)),
        "what the new server had begun of round 0 is forgotten there"
    );
    assert_eq!(actions(&mut collect), [CollectorAction::End(two, Round(1))]);
    let late = SumHeader { round: Round(0), ..header(&collect, 1, A, 0) };
    assert!(matches!(collect.admit(late), Ok(Arrival::Discard(DiscardReason::Done))));
}

#[test]
#[should_panic(expected = "tensor 0 was pushed before its last update arrived")]
fn a_push_before_the_last_update_is_a_defect_of_the_caller() {
    let mut collect = collect(1);
    collect.handle_push(A);
    collect.handle_end();
    collect.handle_push(A);
}
