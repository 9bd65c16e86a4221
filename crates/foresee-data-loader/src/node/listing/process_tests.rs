// SPDX-License-Identifier: Apache-2.0
//! Ranks that share a listing over real sockets. Each is a connection of this process.

use foresee_data_node::{ListenerOptions, NodeConnection, NodeListener, NodeStatus, RefusalCode};
use foresee_testkit::{WATCHDOG, wait_until};
use tempfile::TempDir;

use super::*;
use crate::node::test_support::{flat_index, hello, private_dir};

const KEY: ListingKey = ListingKey([1; 16]);
const COUNTS: ListingCounts = ListingCounts { outside: 1, tail_elements: 2, tail_files: 3 };

/// A directory for the socket of a job.
struct Job {
    dir: TempDir,
}

impl Job {
    fn new() -> Self {
        Self { dir: private_dir() }
    }

    fn address(&self) -> NodeAddress {
        NodeAddress::explicit(self.dir.path().join("list.sock")).expect("a short path")
    }

    fn rank(&self) -> NodeListing {
        self.rank_of(KEY)
    }

    fn rank_of(&self, key: ListingKey) -> NodeListing {
        NodeListing::find_at(self.address(), key).expect("a host")
    }
}

fn index() -> Index {
    let data = tempfile::tempdir().expect("a directory");
    for sample in 0..20 {
        std::fs::write(data.path().join(format!("{sample:06}")), [sample]).expect("a file");
    }
    flat_index(&data.path().display().to_string(), Vec::new())
}

/// Wait until it is a rank's turn, or its index is there.
fn turn(rank: &mut NodeListing) -> ListingTurn {
    let mut turn = None;
    wait_until("a turn of this rank", || {
        let next = rank.poll(Duration::from_millis(100)).expect("a turn");
        turn = Some(next).filter(|next| !matches!(next, ListingTurn::Waiting));
        turn.is_some()
    });
    turn.expect("it came")
}

fn lists(rank: &mut NodeListing) {
    assert!(matches!(turn(rank), ListingTurn::List));
}

/// Check that a rank waits: the host has answered that another rank lists.
fn waits(rank: &mut NodeListing) {
    assert!(matches!(rank.connection.receive(WATCHDOG), Ok((ListingReply::Pending, None))));
}

fn assert_found(rank: &mut NodeListing, expected: &Index) {
    match turn(rank) {
        ListingTurn::Found(found, counts) => {
            assert_eq!(found.file(), expected.file());
            assert_eq!(found.fingerprint(), expected.fingerprint());
            assert!(found.memory().is_zero(), "the bytes are shared");
            assert_eq!(counts, COUNTS);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_first_rank_lists_and_the_others_get_the_same_bytes() {
    let (job, index) = (Job::new(), index());
    let (mut first, mut second) = (job.rank(), job.rank());
    lists(&mut first);
    waits(&mut second);
    first.publish(&index, COUNTS).expect("sent");
    assert_found(&mut second, &index);
    assert_found(&mut job.rank(), &index);
    lists(&mut job.rank_of(ListingKey([2; 16])));
}

#[test]
fn the_next_rank_lists_when_the_lister_has_ended() {
    let (job, index) = (Job::new(), index());
    let (mut first, mut second, mut third) = (job.rank(), job.rank(), job.rank());
    lists(&mut first);
    drop(first);
    lists(&mut second);
    second.publish(&index, COUNTS).expect("sent");
    assert_found(&mut third, &index);
}

#[test]
fn all_ranks_list_after_a_failure() {
    let job = Job::new();
    let (mut first, mut second, mut third) = (job.rank(), job.rank(), job.rank());
    lists(&mut first);
    waits(&mut second);
    waits(&mut third);
    first.fail();
    lists(&mut second);
    lists(&mut third);
}

#[test]
fn a_rank_that_lists_is_reported_to_those_that_wait() {
    let job = Job::new();
    let (mut first, mut second) = (job.rank(), job.rank());
    lists(&mut first);
    waits(&mut second);
    // Each message moves the end of the wait.
    waits(&mut second);
    drop(first);
    lists(&mut second);
}

#[test]
fn a_rank_lists_alone_after_half_a_minute_without_a_message() {
    let job = Job::new();
    let options = ListenerOptions { allow_uids: Vec::new(), hello_timeout: WATCHDOG };
    let _silent = NodeListener::bind(&job.address(), options).expect("the path is free");
    let mut rank = job.rank();
    assert!(matches!(rank.poll(Duration::ZERO), Ok(ListingTurn::Waiting)));
    rank.last_message = rank.last_message.checked_sub(SILENCE_MAX).expect("a clock that has run for so long");
    assert!(matches!(rank.poll(Duration::ZERO), Err(NodeError::Late { .. })));
}

#[test]
fn another_rank_becomes_the_host_when_it_has_ended() {
    let (job, index) = (Job::new(), index());
    let host = ListingHost::start(&job.address()).expect("a host");
    let (mut first, mut second) = (job.rank(), job.rank());
    lists(&mut first);
    waits(&mut second);
    drop(host);
    lists(&mut second);
    assert!(first.publish(&index, COUNTS).is_err(), "its host has ended");
    let mut third = job.rank();
    waits(&mut third);
    second.publish(&index, COUNTS).expect("sent");
    assert_found(&mut third, &index);
}

#[test]
fn a_host_of_listings_is_no_host_of_a_cache() {
    let job = Job::new();
    let _host = ListingHost::start(&job.address()).expect("a host");
    let options = ConnectOptions { allow_uids: Vec::new(), timeout: WATCHDOG };
    let attached = NodeConnection::connect(&job.address(), &hello(), &options).map(|_| ());
    let status = NodeStatus::query(&job.address(), &options).map(|_| ());
    for refused in [attached, status] {
        assert!(matches!(refused, Err(NodeError::Refused { code: RefusalCode::Malformed, .. })));
    }
}
