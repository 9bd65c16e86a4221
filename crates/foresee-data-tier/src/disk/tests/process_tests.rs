// SPDX-License-Identifier: Apache-2.0
//! A writer that is killed, and what the next process finds on its disk.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::*;

/// Not a test of its own: the process that the next one kills.
#[test]
fn a_writer_to_be_killed() {
    let Some(dir) = std::env::var_os("FORESEE_TEST_KILLED_WRITER") else { return };
    let rig = Rig::open(&config(Path::new(&dir), 64 << 20));
    for id in 0.. {
        let id = id % 3000;
        assert_eq!(rig.write(key(id), &content(id, 9_000)), Outcome::Ok);
        let large = 10_000 + id % 100;
        assert_eq!(rig.write(key(large), &content(large, 90_000)), Outcome::Ok);
        if id == 500 {
            println!("\nwriting");
        }
        let _ = (rig.forget(key((id * 7) % 3000)), rig.forget(key(10_000 + (id * 3) % 100)));
    }
}

#[test]
fn a_killed_process_leaves_a_lane_that_the_next_one_takes_over() {
    let dir = TempDir::new().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["disk::tests::process_tests::a_writer_to_be_killed", "--exact", "--nocapture"])
        .env("FORESEE_TEST_KILLED_WRITER", dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    assert!(out.lines().any(|line| line.unwrap() == "writing"));
    child.kill().unwrap();
    child.wait().unwrap();
    let rig = Rig::open(&config(dir.path(), 64 << 20));
    assert!(!rig.held.is_empty());
    let mut good = 0;
    for held in &rig.held {
        let len = if held.id.0 < 10_000 { 9_000 } else { 90_000 };
        match rig.read(key(held.id.0), len) {
            Ok(bytes) => {
                assert_eq!(bytes, content(held.id.0, len));
                good += 1;
            }
            Err(outcome) => assert!(matches!(outcome, Outcome::Corrupt | Outcome::Absent), "{outcome:?}"),
        }
    }
    assert!(good > 0);
    assert_eq!(rig.write(key(77_777), b"goes on"), Outcome::Ok);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "one data set, no lane beside");
    assert_eq!(files(dir.path(), "lock").len(), 1);
}
