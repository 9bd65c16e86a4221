// SPDX-License-Identifier: Apache-2.0
//! Ranks whose local rank 0 starts no host.

use foresee_units::Bytes;

use super::*;
use crate::node::test_support::{address, flat_index, private_dir};

/// The reason why a rank that has waited for some time is alone; `None` while it waits.
fn reason(waited: Duration, tick: Duration, address: &NodeAddress, data: &Arc<DataSet>) -> Option<String> {
    let cache = Cache::new(Bytes::new(1 << 20), None, Bytes::ZERO).expect("below the limit");
    let world = World::new(1, 2).expect("a rank of two");
    let request = JoinRequest {
        tick,
        identity: &NodeIdentity { job: "job".into(), version: "test".into() },
        loader: [7; 16],
        has_peers: false,
        cache: &cache,
        world,
        local_world: world,
        data,
        uri: "/data",
        storage: &[],
        is_listed: false,
        waker: &Arc::default(),
    };
    let mut progress = JoinProgress::begin();
    progress.since = progress.since.checked_sub(waited).expect("a clock that has run for so long");
    match attach_when_ready(&request, &mut progress, address).expect("a directory") {
        Joined::Waiting => None,
        Joined::Alone(reason) => Some(reason.expect("the user expects a host")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_first_loader_of_a_rank_waits_for_the_host_and_the_next_ones_only_look() {
    let (home, folder) = (private_dir(), private_dir());
    let address = address(home.path());
    std::fs::write(folder.path().join("0"), "0").expect("a file");
    let uri = folder.path().display().to_string();
    let data = Arc::new(DataSet::new(flat_index(&uri, Vec::new()), &uri));
    assert_eq!(reason(Duration::ZERO, Duration::ZERO, &address, &data), None);
    let alone = reason(HOST_WAIT, Duration::MAX, &address, &data).expect("the wait is over");
    assert!(alone.contains("local rank 0 has started no loader within 20 s"), "{alone}");
    assert!(reason(Duration::ZERO, Duration::MAX, &address, &data).is_some(), "no second wait");
}
