// SPDX-License-Identifier: Apache-2.0
//! Windows, deadlines and nodes that are silent.

use super::*;

const NODE: NodeIndex = NodeIndex(3);
const SIZE: u64 = 10;

fn at(millis: u64) -> Nanos {
    Nanos::from_millis(millis)
}

/// Reads with a window of two samples, and a patience of a second.
fn reads() -> PeerReads {
    let config = PeerReadsConfig {
        requested_max: Bytes::new(2 * SIZE),
        requests_max: 100,
        initial_rate: BytesPerSecond::new(1000),
        patience: Nanos::from_secs(1),
    };
    let mut reads = PeerReads::new(config, [NODE].into_iter(), at(0));
    reads.handle_connected(NODE, at(0));
    reads
}

fn read(sample: u64, deadline: Nanos, give_up: Nanos) -> PeerRead {
    let (sample, size) = (SampleId(sample), Bytes::new(SIZE));
    PeerRead { sample, node: NODE, position: 7, size, deadline, give_up }
}

/// A read that waits as long as its node is not silent.
fn patient(sample: u64, deadline: Nanos) -> PeerRead {
    read(sample, deadline, Nanos::MAX)
}

/// All actions: requested samples as positive numbers, withdrawn ones as negative ones, the others as text.
fn actions(reads: &mut PeerReads, now: Nanos) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(action) = reads.poll_action(now) {
        all.push(match action {
            ReadAction::Request(_, requests) => {
                let samples: Vec<_> = requests.iter().map(|request| request.sample.to_string()).collect();
                format!("request {}", samples.join(" "))
            }
            ReadAction::Withdraw(_, sample) => format!("withdraw {sample}"),
            ReadAction::Silent(node) => format!("{node} is silent"),
            ReadAction::GiveUp(read, why) => format!("give up {} {why:?}", read.sample),
        });
    }
    all
}

#[test]
fn the_earliest_deadlines_are_requested_within_the_window() {
    let mut reads = reads();
    for (sample, deadline) in [(1, 300), (2, 100), (3, 200)] {
        reads.handle_read(patient(sample, at(deadline)), at(0));
    }
    assert_eq!(actions(&mut reads, at(0)), ["request 2 3"]);
    assert!(reads.handle_received(NODE, SampleId(2), at(1)).is_some());
    assert_eq!(actions(&mut reads, at(1)), ["request 1"]);
    assert!(reads.handle_received(NODE, SampleId(9), at(1)).is_none(), "nobody wants it");
    assert!(reads.handle_received(NodeIndex(4), SampleId(1), at(1)).is_none(), "it was requested elsewhere");
}

#[test]
fn one_sample_may_exceed_the_window() {
    let mut reads = reads();
    let large = PeerRead { size: Bytes::new(100), ..patient(1, at(5)) };
    reads.handle_read(large, at(0));
    reads.handle_read(patient(2, at(6)), at(0));
    assert_eq!(actions(&mut reads, at(0)), ["request 1"]);
    assert_eq!(reads.estimate(NODE, Bytes::new(20), at(0)), at(130), "a byte takes a millisecond");
}

#[test]
fn another_deadline_is_told_where_the_sample_is_requested() {
    let mut reads = reads();
    for sample in [1, 2, 3] {
        reads.handle_read(patient(sample, at(100 + sample)), at(0));
    }
    assert_eq!(actions(&mut reads, at(0)), ["request 1 2"]);
    for (sample, deadline) in [(2, 5), (3, 4), (9, 3)] {
        reads.handle_deadline(SampleId(sample), at(deadline), Nanos::MAX);
    }
    assert_eq!(actions(&mut reads, at(0)), ["request 2"]);
}

#[test]
fn a_late_read_is_withdrawn_and_given_up() {
    let mut reads = reads();
    reads.handle_read(read(1, at(100), at(60)), at(0));
    assert_eq!(actions(&mut reads, at(59)), ["request 1"]);
    assert_eq!(reads.timeout(), Some(at(60)));
    assert_eq!(actions(&mut reads, at(60)), ["withdraw 1", "give up 1 Late"]);
    assert_eq!(reads.timeout(), Some(at(1000)), "when the node is silent");
    assert!(reads.handle_received(NODE, SampleId(1), at(61)).is_none());
}

#[test]
fn a_sample_that_comes_later_is_waited_for_until_it_is_needed() {
    let mut reads = reads();
    reads.handle_read(read(1, at(100), at(60)), at(0));
    reads.handle_read(read(2, at(10), at(60)), at(0));
    assert_eq!(actions(&mut reads, at(0)), ["request 2 1"]);
    for sample in [1, 2] {
        reads.handle_later(NODE, SampleId(sample), at(20));
    }
    assert_eq!(actions(&mut reads, at(200)), ["withdraw 2", "give up 2 Late"]);
    reads.handle_deadline(SampleId(1), at(200), at(300));
    assert_eq!(actions(&mut reads, at(299)), ["request 1"]);
    assert_eq!(actions(&mut reads, at(300)), ["withdraw 1", "give up 1 Late"]);
}

#[test]
fn reads_of_a_silent_node_are_given_up_until_it_sends_something() {
    let mut reads = reads();
    assert!(!reads.handle_alive(NODE, Bytes::ZERO, at(500)));
    reads.handle_read(patient(1, at(9000)), at(600));
    assert_eq!(actions(&mut reads, at(1499)), ["request 1"]);
    assert_eq!(reads.timeout(), Some(at(1500)));
    assert!(reads.is_usable(NODE, at(1499)) && !reads.is_usable(NODE, at(1500)));
    assert_eq!(actions(&mut reads, at(1500)), ["3 is silent", "withdraw 1", "give up 1 Silent"]);
    assert!(reads.handle_alive(NODE, Bytes::ZERO, at(1600)));
    assert!(reads.is_usable(NODE, at(1600)));
    assert!(!reads.is_usable(NodeIndex(4), at(0)), "it is no node of the job");
}

#[test]
fn reads_wait_for_a_new_connection_and_are_requested_again() {
    let mut reads = reads();
    for sample in [1, 2, 3] {
        reads.handle_read(patient(sample, at(9000 + sample)), at(0));
    }
    assert_eq!(actions(&mut reads, at(0)), ["request 1 2"]);
    assert!(reads.handle_received(NODE, SampleId(1), at(10)).is_some());
    reads.handle_disconnected(NODE, at(20));
    assert_eq!(actions(&mut reads, at(900)), [""; 0]);
    assert!(reads.is_usable(NODE, at(900)));
    reads.handle_connected(NODE, at(900));
    assert_eq!(actions(&mut reads, at(900)), ["request 2 3"]);
    reads.handle_disconnected(NODE, at(1000));
    assert_eq!(actions(&mut reads, at(2000)), ["3 is silent", "give up 2 Silent", "give up 3 Silent"]);
}

#[test]
fn a_missing_sample_ends_its_read() {
    let mut reads = reads();
    reads.handle_read(patient(1, at(9000)), at(0));
    assert_eq!(actions(&mut reads, at(0)), ["request 1"]);
    reads.handle_missing(NODE, SampleId(1), at(1));
    reads.handle_missing(NODE, SampleId(1), at(1));
    assert_eq!(actions(&mut reads, at(1)), ["give up 1 Missing"]);
}

#[test]
fn the_rate_of_a_node_is_measured() {
    let mut reads = reads();
    reads.handle_read(patient(1, at(9000)), at(0));
    assert_eq!(actions(&mut reads, at(0)), ["request 1"]);
    let before = reads.estimate(NODE, Bytes::new(1000), at(0));
    reads.handle_alive(NODE, Bytes::new(1000), at(100));
    assert!(reads.estimate(NODE, Bytes::new(1000), at(0)) < before);
    assert_eq!(reads.estimate(NodeIndex(4), Bytes::ZERO, at(0)), Nanos::MAX);
    // While the node waits for the sample itself, its rate is not measured.
    reads.handle_later(NODE, SampleId(1), at(100));
    let before = reads.estimate(NODE, Bytes::new(1000), at(0));
    reads.handle_alive(NODE, Bytes::new(10), at(5000));
    assert_eq!(reads.estimate(NODE, Bytes::new(1000), at(0)), before);
}
