// SPDX-License-Identifier: Apache-2.0
//! Operations that meet in the tier's threads, and what a killed writer leaves on its disk to the next process.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::*;

/// What a child prints once it may be killed.
const READY: &str = "ready";

/// Run a test of this file in its own process, with the directory in `variable`, and kill it once it is ready.
fn run_and_kill(test: &str, variable: &str, dir: &Path) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([&format!("disk::tests::process_tests::{test}"), "--exact", "--nocapture"])
        .env(variable, dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    assert!(out.lines().any(|line| line.unwrap() == READY));
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Not a test of its own: the process that the next one kills.
#[test]
fn a_writer_to_be_killed() {
    let Some(dir) = std::env::var_os("FORESEE_TEST_KILLED_WRITER") else { return };
    let rig = Rig::open(&config(Path::new(&dir), 64 << 20));
    for id in 0.. {
        let id = id % 3000;
        assert_eq!(rig.write(key(id), &content(id, 9_000)), ReadOutcome::Ok);
        let large = 10_000 + id % 100;
        assert_eq!(rig.write(key(large), &content(large, 90_000)), ReadOutcome::Ok);
        if id == 500 {
            println!("\n{READY}");
        }
        let _ = (rig.drop_sample(key((id * 7) % 3000)), rig.drop_sample(key(10_000 + (id * 3) % 100)));
    }
}

#[test]
fn the_next_process_takes_over_the_partition_of_a_killed_one() {
    let dir = TempDir::new().unwrap();
    run_and_kill("a_writer_to_be_killed", "FORESEE_TEST_KILLED_WRITER", dir.path());
    let rig = Rig::open(&config(dir.path(), 64 << 20));
    assert!(!rig.cached.is_empty());
    let mut good = 0;
    for cached in &rig.cached {
        let len = if cached.id.0 < 10_000 { 9_000 } else { 90_000 };
        match rig.read(key(cached.id.0), len) {
            Ok(bytes) => {
                assert_eq!(bytes, content(cached.id.0, len));
                good += 1;
            }
            Err(outcome) => {
                assert!(matches!(outcome, ReadOutcome::Corrupt | ReadOutcome::Absent), "{outcome:?}");
            }
        }
    }
    assert!(good > 0);
    assert_eq!(rig.write(key(77_777), b"continues"), ReadOutcome::Ok);
    assert_eq!(files(dir.path(), "lock").len(), 2, "of the directory and of one partition");
}

/// Not a test of its own: the process that the next one kills.
#[test]
fn lock_holder_for_a_kill() {
    let Some(dir) = std::env::var_os("FORESEE_TEST_KILLED_HOLDER") else { return };
    let directory = Directory::open(Path::new(&dir), 1 << 20, "set-0123456789abcdef", |_| Ok(())).unwrap();
    let _locked = directory.lock().unwrap();
    println!("\n{READY}");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn a_killed_process_releases_the_lock_of_the_directory() {
    let dir = TempDir::new().unwrap();
    run_and_kill("lock_holder_for_a_kill", "FORESEE_TEST_KILLED_HOLDER", dir.path());
    let rig = Rig::open(&config(dir.path(), 4 << 20));
    assert_eq!(rig.write(key(1), &content(1, 70_000)), ReadOutcome::Ok);
}

/// Bytes are never read from a position that another sample uses meanwhile.
#[test]
fn reads_during_evictions_never_see_bytes_of_another_sample() {
    let dir = TempDir::new().unwrap();
    let woken = Arc::new((Mutex::new(0_u32), Condvar::new()));
    let completions = {
        let woken = Arc::clone(&woken);
        Completions::new(move || {
            *woken.0.lock().unwrap() += 1;
            woken.1.notify_all();
        })
    };
    let (tier, _) = DiskTier::open(&config(dir.path(), 2 << 20), completions.clone()).unwrap();
    let len = |id: u64| if id.is_multiple_of(3) { 80_000 } else { 20_000 };
    let (mut reads, mut ended, mut done) = (HashMap::new(), 0, Vec::new());
    for turn in 0..2000_u64 {
        let id = turn * 31 % 50;
        let payload = Payload::from_vec(content(id, len(id)));
        tier.submit(Op::Write { ticket: Ticket(3 * turn), key: key(id), payload });
        let other = turn * 17 % 50;
        let (dest, scratch) = Dest::from_vec(vec![0; len(other)]);
        reads.insert(Ticket(3 * turn + 1), (other, scratch));
        tier.submit(Op::Read { ticket: Ticket(3 * turn + 1), key: key(other), offset: 0, dest });
        tier.submit(Op::Drop { ticket: Ticket(3 * turn + 2), key: key((turn * 13 + 5) % 50) });
        completions.drain(&mut done);
        // At most 64 completions are outstanding, as with a driver.
        while (turn + 1) * 3 - ended - done.len() as u64 > 64 {
            let guard = woken.0.lock().unwrap();
            drop(woken.1.wait_timeout(guard, Duration::from_millis(1)).unwrap());
            completions.drain(&mut done);
        }
        for done in done.drain(..) {
            ended += 1;
            if let Some((id, scratch)) = reads.remove(&done.ticket) {
                assert_ne!(done.outcome, ReadOutcome::Corrupt, "a pinned position is not overwritten");
                if done.outcome == ReadOutcome::Ok {
                    assert_eq!(scratch.into_bytes().unwrap(), content(id, len(id)));
                }
            }
        }
    }
    tier.close(GRACE);
    completions.drain(&mut done);
    assert_eq!(ended + done.len() as u64, 6000, "every ticket ended once");
}
