// SPDX-License-Identifier: Apache-2.0
//! Hosts that end, or send what no host sends. The attachment ends with the reason and never fills a wrong byte.

use foresee_data_node::{SAMPLE_ALIGN, SlabLocation};

use super::*;

/// Let the host of a batch with two samples of 3 bytes break the protocol after it answered the first one, and return
/// the reason of the end.
fn break_protocol(breaks: impl FnOnce(&mut TestHost)) -> NodeError {
    let mut rig = Rig::new();
    let buffer = rig.request(5, &[3, 3]);
    let first = rig.host.write(0, 0, b"one");
    rig.host.answer(5, &[first]);
    rig.host.expect_release(5, &[0]);
    breaks(&mut rig.host);
    let (why, missing) = rig.end();
    assert_eq!(missing, [(5, vec![1])]);
    assert_eq!(bytes_of(&buffer, 6), b"one\0\0\0", "no byte of the second sample is written");
    assert!(!rig.client.request(batch(6, &[1], &super::buffer(1))));
    wait_until("the client gives the buffer up", || Arc::strong_count(&buffer) == 1);
    why
}

/// A location behind the slab.
fn outside(valid: SampleLocation) -> SampleLocation {
    let location = SlabLocation::from_bits((SLAB_BYTES / SAMPLE_ALIGN) << 24 | 1);
    SampleLocation { location, ..valid }
}

#[test]
fn invalid_answers_end_the_attachment_with_their_reason() {
    type Break = fn(SampleLocation) -> (u64, SampleLocation);
    let breaks: [(Break, &str); 4] = [
        (|valid| (6, valid), "batch 6, which was not requested"),
        (|valid| (5, SampleLocation { position: 0, ..valid }), "answered before"),
        (|valid| (5, SampleLocation { position: 2, ..valid }), "does not exist"),
        (|valid| (5, outside(valid)), "outside the slab"),
    ];
    for (break_it, expected) in breaks {
        let why = break_protocol(|host| {
            let valid = host.write(1, 64, b"two");
            let (batch, location) = break_it(valid);
            host.answer(batch, &[location]);
        });
        assert!(why.to_string().contains(expected), "{why}");
    }
}

#[test]
fn a_failure_of_an_answered_sample_ends_the_attachment() {
    let why = break_protocol(|host| {
        let failures = [SampleFailure { position: 0, outcome: ReadOutcome::Absent }];
        host.send(HostMessage::Failure(BatchFailure { batch: 5, samples: failures[..].into() }));
    });
    assert!(why.to_string().contains("answered before"), "{why}");
}

#[test]
fn nonsense_in_the_ring_ends_the_attachment() {
    for message in [&b"nonsense"[..], b"", &[1; 16], &[0x11; 400]] {
        let why = break_protocol(|host| assert!(host.rings.writer.try_push(message).unwrap()));
        assert!(matches!(why, NodeError::Malformed { .. }), "{why}");
    }
    let why = break_protocol(|host| host.send(HostMessage::EpochWanted(EpochWanted { data_set: 9 })));
    assert!(why.to_string().contains("unexpected"), "{why}");
}

#[test]
fn an_unexpected_message_of_the_socket_ends_the_attachment() {
    let why = break_protocol(|host| host.attachment.send(&NodeReply::IndexNeeded).unwrap());
    assert!(matches!(why, NodeError::Malformed { .. }), "{why}");
}

#[test]
fn a_host_that_ends_leaves_the_missing_positions() {
    let Rig { client, waker, events, mut host } = Rig::new();
    let buffers = [buffer(6), buffer(9), buffer(3)];
    assert!(client.request(batch(1, &[3, 3], &buffers[0])) && client.request(batch(2, &[3; 3], &buffers[1])));
    for _ in 0..2 {
        host.next(|message| assert!(matches!(message, ConsumerMessage::Request(_))));
    }
    let first = host.write(0, 0, b"one");
    host.answer(1, &[first]);
    host.expect_release(1, &[0]);
    assert!(client.request(batch(3, &[3], &buffers[2])));
    client.withdraw(3);
    let TestHost { attachment, rings, .. } = host;
    drop((attachment, rings));
    let mut events = events;
    wait_until("the client notices the end", || {
        client.drain(&mut events);
        events.iter().any(|event| matches!(event, NodeEvent::Ended { .. }))
    });
    let [NodeEvent::Copied { batch: 1, .. }, NodeEvent::Ended { why: NodeError::Ended, missing }] =
        &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(missing[..], [(1, vec![1]), (2, vec![0, 1, 2])]);
    // Its last event woke the driver.
    waker.wait(WATCHDOG);
    drop(client);
    assert!(buffers.iter().all(|buffer| Arc::strong_count(buffer) == 1));
}

#[test]
fn a_host_that_ends_while_its_rings_are_full_is_noticed() {
    let Rig { client, waker: _waker, mut events, host } = Rig::new();
    let samples = (0..100_000).map(SampleId).collect();
    client.announce(NodeAnnouncement { samples, ..NodeAnnouncement::default() });
    let buffer = buffer(3);
    assert!(client.request(batch(1, &[3], &buffer)));
    drop(host.attachment);
    wait_until("the client notices the end", || {
        client.drain(&mut events);
        !events.is_empty()
    });
    let [NodeEvent::Ended { why: NodeError::Ended, missing }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(missing[..], [(1, vec![0])]);
    drop(client);
    assert_eq!(Arc::strong_count(&buffer), 1);
}
