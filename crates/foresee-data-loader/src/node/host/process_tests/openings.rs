// SPDX-License-Identifier: Apache-2.0
//! Data sets whose origin answers late: the host reports to their consumers, and serves others meanwhile.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

/// A bucket at a server that accepts connections and answers nothing, and its description.
fn silent_bucket(rig: &Rig) -> (TcpListener, DataSetDescription) {
    let origin = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", origin.local_addr().expect("its address"));
    let settings = [("endpoint", endpoint.as_str()), ("region", "us-east-1"), ("skip_signature", "true")];
    let description = DataSetDescription {
        uri: "s3://bucket/train".into(),
        storage_options: StorageOptions(settings.map(|(name, value)| (name.into(), value.into())).into()),
        fingerprint: rig.index.file_fingerprint(),
        samples: rig.index.samples(),
        is_listed: false,
    };
    (origin, description)
}

fn connect(rig: &Rig) -> NodeConnection {
    let options = ConnectOptions { allow_uids: Vec::new(), timeout: WATCHDOG };
    NodeConnection::connect(&address(rig.home.path()), &hello(), &options).expect("a host").0
}

#[test]
fn a_host_reports_to_a_consumer_whose_origin_hangs_and_greets_others() {
    let rig = Rig::new(10, 1 << 20);
    let (origin, description) = silent_bucket(&rig);
    let (slow, reports) = (connect(&rig), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| {
            let index = || index_file(rig.index.file());
            slow.open_data_set(description, index, WATCHDOG, || {
                reports.fetch_add(1, Ordering::Relaxed);
                true
            })
        });
        let (mut request, _) = origin.accept().expect("a request of the host");
        drop(connect(&rig));
        wait_until("a report", || reports.load(Ordering::Relaxed) > 0);
        let _ = request.read(&mut [0; 4096]).expect("a request");
        request
            .write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            .expect("open");
        let refused = opening.join().expect("no panic").expect_err("the origin refuses");
        assert!(matches!(refused, NodeError::Refused { .. }), "{refused}");
    });
}

#[test]
fn a_host_closes_although_an_origin_hangs() {
    let rig = Rig::new(10, 1 << 20);
    let (origin, description) = silent_bucket(&rig);
    let slow = connect(&rig);
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| {
            let index = || index_file(rig.index.file());
            slow.open_data_set(description, index, WATCHDOG, || true)
        });
        let (mut request, _) = origin.accept().expect("a request of the host");
        let _ = request.read(&mut [0; 4096]).expect("a request");
        rig.host.close();
        let ended = opening.join().expect("no panic").expect_err("the host has closed");
        assert!(matches!(ended, NodeError::Ended), "{ended}");
        request.set_nonblocking(true).expect("a socket");
        let unanswered = request.read(&mut [0]).expect_err("its request still waits");
        assert_eq!(unanswered.kind(), std::io::ErrorKind::WouldBlock);
    });
}
