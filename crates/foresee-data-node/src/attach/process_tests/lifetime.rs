// SPDX-License-Identifier: Apache-2.0
//! Ends of hosts and consumers: killed, stopped, forked, and many times in a row.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Stdio};

use foresee_testkit::wait_until;
use foresee_units::SampleId;
use rustix::process::{Pid, Signal, WaitOptions};

use super::*;
use crate::memory::{LocationTable, LocationView, SlabLocation};

const READY: &str = "ready";

/// A forked child of this process.
pub(super) struct Forked(Pid);

impl Forked {
    pub(super) fn start(action: impl FnOnce()) -> Self {
        // SAFETY: the caller has this process alone, so no other thread holds a lock; the child only runs `action`.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork");
        if pid == 0 {
            let code = i32::from(catch_unwind(AssertUnwindSafe(action)).is_err());
            // SAFETY: ends the child without the tests' own exit.
            unsafe { libc::_exit(code) };
        }
        Self(Pid::from_raw(pid).unwrap())
    }

    /// Wait for the child's end, which must be a success.
    pub(super) fn join(self) {
        let (_, status) = rustix::process::waitpid(Some(self.0), WaitOptions::empty()).unwrap().unwrap();
        assert_eq!(status.exit_status(), Some(0), "the child failed");
    }

    pub(super) fn kill(self) {
        rustix::process::kill_process(self.0, Signal::KILL).unwrap();
        rustix::process::waitpid(Some(self.0), WaitOptions::empty()).unwrap();
    }
}

/// Start one of the two programs below, and wait until it is ready.
fn start(test: &str, variable: &str, address: &NodeAddress, meanwhile: impl FnOnce()) -> Child {
    let mut child =
        program(test, variable, address.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    meanwhile();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    assert!(out.by_ref().lines().any(|line| line.unwrap() == READY));
    // Its later output still needs a reader.
    child.stdout = Some(out.into_inner());
    child
}

fn wait_for_the_end_of_input() {
    println!("\n{READY}");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Not a test of its own: a consumer that others stop and kill.
#[test]
fn a_consumer_process() {
    let Some(path) = std::env::var_os("FORESEE_TEST_CONSUMER") else { return };
    let _consumer = connect(&NodeAddress::explicit(path).unwrap()).unwrap();
    wait_for_the_end_of_input();
}

/// Not a test of its own: a host that others kill.
#[test]
fn a_host_process() {
    let Some(path) = std::env::var_os("FORESEE_TEST_HOST") else { return };
    let address = NodeAddress::explicit(path).unwrap();
    let mut listener = NodeListener::bind(&address, options()).unwrap();
    println!("\n{READY}");
    let Some(Incoming::Attach(request)) = listener.accept(WATCHDOG).unwrap() else { panic!("no consumer") };
    let _attachment = request.accept(&slab(), facts(1)).unwrap();
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn attach_process(rig: &mut Rig) -> (Attachment, Child) {
    let (address, mut attachment) = (rig.address.clone(), None);
    let child = start("lifetime::a_consumer_process", "FORESEE_TEST_CONSUMER", &address, || {
        attachment = Some(rig.accept(1));
    });
    (attachment.unwrap(), child)
}

fn is_readable(fd: impl std::os::fd::AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)).unwrap() > 0
}

#[test]
fn a_killed_consumer_is_seen_by_its_socket_and_by_its_process() {
    let mut rig = Rig::new();
    let (attachment, mut child) = attach_process(&mut rig);
    let process = attachment.process().unwrap();
    assert_eq!(attachment.credentials().pid, Some(child.id()));
    assert!(process.is_alive().unwrap() && !is_readable(process) && !is_readable(&attachment));
    child.kill().unwrap();
    // It is not reaped yet.
    wait_until("the process ends", || !process.is_alive().unwrap());
    assert!(is_readable(process) && is_readable(&attachment));
    assert!(matches!(attachment.receive(), Err(NodeError::Ended)));
    assert!(matches!(attachment.send(&NodeReply::DataSetOpened { data_set: 0 }), Err(NodeError::Ended)));
    child.wait().unwrap();
    rig.attach(2);
}

#[test]
fn a_stopped_consumer_has_not_ended() {
    let mut rig = Rig::new();
    let (attachment, mut child) = attach_process(&mut rig);
    let pid = Pid::from_child(&child);
    rustix::process::kill_process(pid, Signal::STOP).unwrap();
    let is_stopped = || fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap().contains(") T ");
    wait_until("the process stops", is_stopped);
    assert!(attachment.process().unwrap().is_alive().unwrap());
    assert!(attachment.receive().unwrap().is_none());
    rustix::process::kill_process(pid, Signal::CONT).unwrap();
    drop(child.stdin.take());
    wait_until("the process ends", || !attachment.process().unwrap().is_alive().unwrap());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_consumer_that_detaches_is_seen_though_its_process_lives() {
    let mut rig = Rig::new();
    let (attachment, consumer) = rig.attach(1);
    drop(consumer);
    assert!(matches!(attachment.receive(), Err(NodeError::Ended)));
    assert!(attachment.process().unwrap().is_alive().unwrap());
}

#[test]
fn a_killed_host_is_seen_and_the_next_one_takes_its_path() {
    let dir = private_dir();
    let address = NodeAddress::explicit(dir.path().join("node.sock")).unwrap();
    let mut host = start("lifetime::a_host_process", "FORESEE_TEST_HOST", &address, || {});
    let consumer = connect(&address).unwrap();
    host.kill().unwrap();
    assert!(matches!(consumer.receive(WATCHDOG), Err(NodeError::Ended)));
    wait_until("the process ends", || !consumer.process().unwrap().is_alive().unwrap());
    host.wait().unwrap();
    let (table, locations) = locations();
    let (first, mut dest) = (SampleId(0), [0; 4]);
    let place = table.publish(first, 0).unwrap();
    let is_copied = locations.copy(consumer.slab(), first, place, &mut dest).unwrap();
    assert!(is_copied, "the memory outlives its host");
    assert!(matches!(connect(&address), Err(NodeError::Stale { .. })));
    NodeListener::bind(&address, options()).unwrap();
}

/// Both sides of the locations of a data set with one sample.
fn locations() -> (LocationTable, LocationView) {
    let table = LocationTable::create(1).unwrap();
    let view = LocationView::open(table.file().unwrap(), 1).unwrap();
    (table, view)
}

/// Open descriptors of this process without that of the count, and its mappings of shared memory.
fn resources() -> (usize, usize) {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mappings = maps.lines().filter(|line| line.contains("memfd:foresee-")).count();
    (fs::read_dir("/proc/self/fd").unwrap().count() - 1, mappings)
}

#[test]
fn consumers_that_attach_and_leave_2000_times_leak_nothing() {
    if !is_alone("lifetime::consumers_that_attach_and_leave_2000_times_leak_nothing") {
        return;
    }
    let mut rig = Rig::new();
    drop(rig.attach(0));
    let before = resources();
    for consumer in 1..=2000 {
        let both = rig.attach_with_rings(consumer);
        if consumer == 1000 {
            let (descriptors, mappings) = resources();
            assert!(descriptors > before.0 && mappings > before.1, "the count sees attachments");
        }
        drop(both);
    }
    assert_eq!(resources(), before);
}

#[test]
fn a_forked_child_has_no_descriptor_and_no_mapping_of_its_parent() {
    if !is_alone("lifetime::a_forked_child_has_no_descriptor_and_no_mapping_of_its_parent") {
        return;
    }
    let before = resources();
    let mut rig = Rig::new();
    let ((attachment, host_rings), (consumer, rings)) = rig.attach_with_rings(1);
    let (table, locations) = locations();
    let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
    let sockets = [attachment.as_fd().as_raw_fd(), consumer.as_fd().as_raw_fd()];
    let (mut parts, mut near) =
        (Some((rig, attachment, consumer, [host_rings, rings], table, locations)), Some(near));
    let child = Forked::start(|| {
        drop(near.take());
        let (rig, attachment, consumer, rings, table, locations) = parts.take().unwrap();
        // Both ends of the pair are no descriptors of this crate.
        assert_eq!(resources(), (before.0 + 1, before.1));
        let is_forked = |fault: NodeError| matches!(fault, NodeError::Forked);
        assert!(is_forked(attachment.receive().unwrap_err()));
        assert!(is_forked(consumer.send(&NodeRequest::Detach, WATCHDOG).unwrap_err()));
        let (place, first) = (SlabLocation::from_bits(1), SampleId(0));
        assert!(is_forked(locations.copy(consumer.slab(), first, place, &mut [0]).unwrap_err()));
        assert!(is_forked(locations.get(first).unwrap_err()) && is_forked(table.get(first).unwrap_err()));
        assert!(is_forked(consumer.check_fork().unwrap_err()));
        assert!(is_forked(attachment.process().unwrap().is_alive().unwrap_err()));
        // Files with the numbers of closed descriptors survive the drop of what had those numbers.
        let files: Vec<_> = (0..20).map(|_| tempfile::tempfile().unwrap()).collect();
        assert!(sockets.iter().all(|socket| files.iter().any(|file| file.as_raw_fd() == *socket)));
        let (path, dir) = (rig.address.path().to_owned(), rig.dir);
        drop((attachment, consumer, rings, table, locations, rig.listener, rig.slab));
        assert!(files.iter().all(|file| file.metadata().is_ok()));
        assert!(path.exists(), "the path belongs to the parent");
        std::mem::forget(dir);
        // A child may attach anew.
        let again = connect(&NodeAddress::explicit(path).unwrap()).unwrap();
        assert!(again.check_fork().is_ok());
        (&far).read_to_end(&mut Vec::new()).unwrap();
    });
    drop(far);
    let (mut rig, attachment, consumer, ..) = parts.take().unwrap();
    let of_the_child = rig.accept(2);
    assert_ne!(of_the_child.credentials().pid, attachment.credentials().pid);
    // The child lives, and does not keep this connection open.
    drop(consumer);
    assert!(matches!(attachment.receive(), Err(NodeError::Ended)));
    drop(near);
    child.join();
    assert!(matches!(of_the_child.receive(), Err(NodeError::Ended)));
}
