// SPDX-License-Identifier: Apache-2.0
//! The real command with real namespaces: needs root and iproute2, like the tests that use it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

struct Hosts {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Hosts {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_foresee-testbed"))
            .arg("hosts")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, stdin, stdout }
    }

    fn answer(&mut self) -> serde_json::Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn request(&mut self, line: &str) -> serde_json::Value {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
        self.answer()
    }

    fn end(mut self) {
        drop(self.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

fn namespaces() -> String {
    let listed = Command::new("ip").args(["netns", "list"]).output().unwrap();
    String::from_utf8(listed.stdout).unwrap()
}

fn ping(from: &str, to: &str) -> bool {
    // Bash opens the connection: a refused connection has crossed the network, an unreachable host has not.
    let script = format!("timeout 2 bash -c 'exec 3<>/dev/tcp/{to}/9' 2>&1");
    let output = Command::new("ip").args(["netns", "exec", from, "bash", "-c", &script]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).contains("refused")
}

#[test]
fn hosts_reach_one_another_until_a_link_is_cut_and_leave_nothing_behind() {
    let mut hosts = Hosts::start(&["w0", "w1=none", "--rate", "200mbit"]);
    let described = hosts.answer();
    let namespace = |name: &str| described["hosts"][name]["namespace"].as_str().unwrap().to_owned();
    assert_eq!(described["hosts"]["w1"]["address"], "10.77.0.2");
    assert!(ping(&namespace("w0"), "w1"), "by name, over the switch");

    assert_eq!(hosts.request("rate w0 10mbit")["ok"], true);
    let shown = Command::new("tc").args(["-n", &namespace("w0"), "qdisc", "show"]).output().unwrap();
    assert!(String::from_utf8_lossy(&shown.stdout).contains("rate 10Mbit"));

    assert_eq!(hosts.request("cut w1")["ok"], true);
    assert!(!ping(&namespace("w0"), "10.77.0.2"));
    assert_eq!(hosts.request("restore w1")["ok"], true);
    assert!(ping(&namespace("w0"), "10.77.0.2"));

    for line in ["rate w9 1mbit", "rate w0 fast", "sing"] {
        let answer = hosts.request(line);
        assert_eq!(answer["ok"], false, "{line}");
        assert!(!answer["error"].as_str().unwrap().is_empty());
    }
    let (first, second) = (namespace("w0"), namespace("w1"));
    hosts.end();
    assert!(!namespaces().contains(&first) && !namespaces().contains(&second));
}

#[test]
fn the_remains_of_a_killed_testbed_are_removed_by_the_next() {
    let mut killed = Hosts::start(&["a"]);
    let left = killed.answer()["hosts"]["a"]["namespace"].as_str().unwrap().to_owned();
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    assert!(namespaces().contains(&left));
    let mut next = Hosts::start(&["b"]);
    next.answer();
    assert!(!namespaces().contains(&left));
    next.end();
}

#[test]
fn every_route_of_a_host_has_the_configured_congestion_control() {
    for (arguments, pinned) in [(&["c0", "c1"][..], "cubic"), (&["c0", "c1", "--congestion", "reno"], "reno")]
    {
        let mut hosts = Hosts::start(arguments);
        let described = hosts.answer();
        let namespace = described["hosts"]["c0"]["namespace"].as_str().unwrap();
        for host in ["c0", "c1"] {
            let to = described["hosts"][host]["address"].as_str().unwrap();
            let route = Command::new("ip").args(["-n", namespace, "route", "get", to]).output().unwrap();
            let route = String::from_utf8(route.stdout).unwrap();
            assert!(route.contains(&format!("congctl {pinned}")), "{to}: {route}");
        }
        hosts.end();
    }
}
