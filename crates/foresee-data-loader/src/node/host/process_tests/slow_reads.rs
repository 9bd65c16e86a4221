// SPDX-License-Identifier: Apache-2.0
//! Reads of a bucket that never end: the host reads the object once more for the consumer that waits.

use foresee_data_node::message::ConsumerProgress;
use foresee_testbed::{Fault, FaultRule, MemoryServer};

use super::*;

const BATCH: u64 = 32;
/// If reads of one half of them ended only by their timeout, one after the other, the test would exceed its limit.
const BATCHES: u64 = 14;

fn key(sample: u64) -> String {
    format!("train/{sample:06}")
}

/// The first read of a sample in each batch never ends.
fn stalls() -> Vec<FaultRule> {
    let stall = |batch| FaultRule {
        path: key(batch * BATCH + 9),
        next: Some(1),
        ..FaultRule::from(Fault::Stall { ms: None })
    };
    (0..BATCHES).map(stall).collect()
}

fn storage(server: &MemoryServer) -> BTreeMap<String, String> {
    let address = format!("http://{}", server.address());
    let settings = [
        ("endpoint_url", address.as_str()),
        ("access_key_id", "AKIAKEY"),
        ("secret_access_key", "hush"),
        ("region", "here"),
    ];
    settings.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn a_read_that_never_ends_is_made_once_more_when_a_consumer_waits_for_it() {
    let server = MemoryServer::start(1000).expect("a server");
    for sample in 0..BATCHES * BATCH {
        server.put("bucket", &key(sample), &bytes_of(sample));
    }
    let (uri, storage) = ("s3://bucket/train/", storage(&server));
    let rig = Rig { index: flat_index(uri, storage.clone().into_iter().collect()), ..Rig::new(1, 4 << 20) };
    server.set_faults(stalls());
    let mut consumer = rig.attach_with(uri, storage).expect("the bucket opens");
    for batch in 0..BATCHES {
        let first = batch * BATCH;
        let samples: Vec<_> = (first..first + BATCH).collect();
        consumer.announce(&samples);
        // A consumer that does not know its rate expects the batch later, and reports that it waits.
        let is_expected_later = batch % 2 == 1;
        let deadline = if is_expected_later { Nanos::MAX } else { Nanos::ZERO };
        consumer.request_until(batch, &samples, deadline);
        if is_expected_later {
            consumer.send(ConsumerMessage::Progress(ConsumerProgress {
                accesses: first,
                interval: Nanos::ZERO,
                is_waiting: true,
            }));
        }
        consumer.copy(batch, &samples);
        consumer.release(batch, &[]);
    }
    let reads = server.requests().iter().filter(|request| request.starts_with("GET /bucket/train/")).count();
    assert_eq!(reads as u64, BATCHES * BATCH + BATCHES);
}
