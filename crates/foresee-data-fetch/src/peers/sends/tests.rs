// SPDX-License-Identifier: Apache-2.0
//! The order of answers, and their bounds.

use super::*;

const FIRST: NodeIndex = NodeIndex(1);
const SECOND: NodeIndex = NodeIndex(2);
const SIZE: Bytes = Bytes::new(10);
const HERE: Presence = Presence::Here(SIZE);

/// Answers with two samples in flight per reader, and at most four requests.
fn sends() -> PeerSends {
    let mut sends = PeerSends::new(PeerSendsConfig { in_flight_max: Bytes::new(20), requests_max: 4 });
    sends.handle_connected(FIRST);
    sends.handle_connected(SECOND);
    sends
}

fn request(sample: u64, deadline: u64) -> PeerRequest {
    PeerRequest { sample: SampleId(sample), position: 0, deadline: Nanos::from_millis(deadline) }
}

/// Nodes and samples: those that come later with 100 added, those that are missing with a minus.
fn actions(sends: &mut PeerSends) -> Vec<(u16, i64)> {
    let number = |sample: SampleId| i64::try_from(sample.0).expect("small");
    std::iter::from_fn(|| sends.poll_action())
        .map(|action| match action {
            SendAction::Send(node, sample, _) => (node.0, number(sample)),
            SendAction::Later(node, sample) => (node.0, 100 + number(sample)),
            SendAction::Missing(node, sample) => (node.0, -number(sample)),
        })
        .collect()
}

#[test]
fn a_reader_gets_its_samples_by_deadline_within_its_window() {
    let mut sends = sends();
    for (sample, deadline) in [(1, 30), (2, 10), (3, 20)] {
        sends.handle_request(FIRST, request(sample, deadline), HERE).expect("few");
    }
    assert_eq!(actions(&mut sends), [(1, 2), (1, 3)]);
    sends.handle_request(FIRST, request(4, 5), HERE).expect("few");
    sends.handle_sent(FIRST, SIZE);
    assert_eq!(actions(&mut sends), [(1, 4)]);
}

#[test]
fn readers_take_turns_and_an_idle_one_is_owed_nothing() {
    let mut sends = sends();
    for sample in 1..=4 {
        sends.handle_request(FIRST, request(sample, sample), HERE).expect("few");
    }
    assert_eq!(actions(&mut sends), [(1, 1), (1, 2)]);
    for sample in 5..=8 {
        sends.handle_request(SECOND, request(sample, sample), HERE).expect("few");
    }
    assert_eq!(actions(&mut sends), [(2, 5), (2, 6)]);
    for node in [FIRST, SECOND] {
        sends.handle_sent(node, Bytes::new(20));
    }
    assert_eq!(actions(&mut sends), [(1, 3), (1, 4), (2, 7), (2, 8)], "the first one has got less");
}

#[test]
fn a_sample_that_is_being_read_is_sent_when_it_is_here() {
    let mut sends = sends();
    for (node, sample) in [(FIRST, 1), (SECOND, 1), (FIRST, 2)] {
        sends.handle_request(node, request(sample, 9), Presence::Soon).expect("few");
    }
    sends.handle_withdrawn(SECOND, SampleId(1));
    assert_eq!(actions(&mut sends), [(1, 101), (2, 101), (1, 102)]);
    assert!(sends.is_awaited(SampleId(1)) && sends.is_awaited(SampleId(2)));
    sends.handle_presence(SampleId(1), Some(SIZE));
    sends.handle_presence(SampleId(2), None);
    assert_eq!(actions(&mut sends), [(1, -2), (1, 1)]);
    sends.handle_presence(SampleId(1), Some(SIZE));
    assert_eq!(actions(&mut sends), []);
}

#[test]
fn a_sample_that_is_not_here_is_reported_at_once() {
    let mut sends = sends();
    sends.handle_request(FIRST, request(1, 9), Presence::Missing).expect("few");
    sends.handle_request(FIRST, request(2, 9), HERE).expect("few");
    assert_eq!(actions(&mut sends), [(1, -1), (1, 2)]);
    sends.handle_gone(FIRST, SampleId(2), SIZE);
    assert_eq!(actions(&mut sends), [(1, -2)]);
}

#[test]
fn a_repeated_request_changes_the_deadline_and_counts_once() {
    let mut sends = sends();
    for (sample, deadline) in [(1, 10), (2, 20), (3, 30), (4, 40), (4, 1)] {
        sends.handle_request(FIRST, request(sample, deadline), HERE).expect("few");
    }
    let refused = sends.handle_request(FIRST, request(5, 0), HERE);
    assert_eq!(refused, Err(TooManyRequests { requests: 5 }));
    assert_eq!(actions(&mut sends), [(1, 4), (1, 1)]);
}

#[test]
fn the_requests_of_a_reader_end_with_its_connection() {
    let mut sends = sends();
    sends.handle_request(FIRST, request(1, 1), HERE).expect("few");
    sends.handle_request(FIRST, request(2, 1), Presence::Soon).expect("few");
    sends.handle_request(FIRST, request(3, 1), Presence::Missing).expect("few");
    sends.handle_disconnected(FIRST);
    sends.handle_presence(SampleId(2), Some(SIZE));
    sends.handle_request(FIRST, request(4, 1), HERE).expect("ignored");
    assert_eq!(actions(&mut sends), []);
    assert!(!sends.is_awaited(SampleId(2)));
}
