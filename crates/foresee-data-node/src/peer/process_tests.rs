// SPDX-License-Identifier: Apache-2.0
//! Credentials and processes of real sockets.

use std::os::unix::net::UnixStream;

use super::*;

#[test]
fn both_ends_of_a_pair_are_this_process() {
    let (near, _far) = UnixStream::pair().unwrap();
    let credentials = PeerCredentials::of(&near).unwrap();
    let uid = rustix::process::geteuid().as_raw();
    assert_eq!(credentials, PeerCredentials { pid: Some(std::process::id()), uid });
    let process = PeerProcess::open(&near, &credentials).unwrap().unwrap();
    assert!(process.is_alive().unwrap());
}

#[test]
fn a_file_has_no_credentials() {
    let refused = PeerCredentials::of(tempfile::tempfile().unwrap()).unwrap_err();
    assert!(refused.to_string().contains("credentials"), "{refused}");
}
