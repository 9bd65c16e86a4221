// SPDX-License-Identifier: Apache-2.0
//! The namespaces, links and shapers, created and removed with iproute2.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::options::HostsOptions;

/// The folder with the files that `ip netns exec` mounts over those in `/etc`.
const OVERLAYS: &str = "/etc/netns";
/// The subnet of all hosts.
const SUBNET: &str = "10.77.0.0/16";
/// Time for processes in a host to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);

/// The hosts of one testbed. Dropping it removes them, with every process in them.
#[derive(Debug)]
pub struct Network {
    tag: String,
    hosts: Vec<Host>,
    burst: String,
    queue: String,
    congestion: String,
}

#[derive(Debug)]
struct Host {
    name: String,
    address: String,
    /// The last requested rate.
    rate: Option<String>,
}

/// A system command failed, or a line is invalid.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages show the fields by their names")]
#[non_exhaustive]
pub enum NetworkError {
    /// The program is missing.
    #[error("{program} cannot be started: {source}; install iproute2 (Debian: apt-get install iproute2)")]
    NoProgram { program: String, source: std::io::Error },
    /// The program failed.
    #[error("`{command}` failed: {stderr}; hosts need root and CAP_NET_ADMIN")]
    Refused {
        /// The whole command line.
        command: String,
        /// Its standard error.
        stderr: String,
    },
    /// The files with the names of the hosts cannot be written.
    #[error("{path}: {source}")]
    Overlay { path: PathBuf, source: std::io::Error },
    /// An unknown command.
    #[error("{line:?} is no command; `rate HOST RATE`, `cut HOST` and `restore HOST` are")]
    Unknown { line: String },
    /// A command for an unknown host.
    #[error("no host is called {name:?}")]
    NoHost { name: String },
}

impl Network {
    /// Create every host and its link.
    pub fn build(options: &HostsOptions) -> Result<Self, NetworkError> {
        remove_abandoned();
        let address = |i: usize| format!("10.77.0.{}", i + 1);
        let hosts = options.hosts.iter().enumerate();
        let network = Self {
            tag: format!("fs{}", std::process::id()),
            hosts: hosts
                .map(|(i, host)| Host {
                    name: host.name.clone(),
                    address: address(i),
                    rate: host.rate.clone(),
                })
                .collect(),
            burst: options.burst.clone(),
            queue: options.queue.clone(),
            congestion: options.congestion.clone(),
        };
        let switch = network.namespace("switch");
        run(&format!("ip netns add {switch}"))?;
        run(&format!("ip -n {switch} link add bridge0 type bridge"))?;
        run(&format!("ip -n {switch} link set bridge0 up"))?;
        for host in &network.hosts {
            network.add(host)?;
        }
        Ok(network)
    }

    /// The addresses of all hosts, as one JSON object.
    pub fn describe(&self) -> serde_json::Value {
        let hosts: serde_json::Map<_, _> = self
            .hosts
            .iter()
            .map(|host| {
                let is =
                    serde_json::json!({ "namespace": self.namespace(&host.name), "address": host.address });
                (host.name.clone(), is)
            })
            .collect();
        serde_json::json!({ "hosts": hosts, "pid": std::process::id() })
    }

    /// Execute the command of one line.
    pub fn execute(&mut self, line: &str) -> Result<(), NetworkError> {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["rate", name, rate] => {
                let i = self.index(name)?;
                self.hosts[i].rate = (rate != "none").then(|| rate.to_owned());
                self.shape(&self.hosts[i])
            }
            ["cut", name] => self.set_link(name, "down"),
            ["restore", name] => self.set_link(name, "up"),
            _ => Err(NetworkError::Unknown { line: line.to_owned() }),
        }
    }

    fn add(&self, host: &Host) -> Result<(), NetworkError> {
        let (switch, own) = (self.namespace("switch"), self.namespace(&host.name));
        let (port, address) = (port(&host.name), &host.address);
        run(&format!("ip netns add {own}"))?;
        self.write_overlay(&own)?;
        run(&format!("ip -n {switch} link add {port} type veth peer name eth0 netns {own}"))?;
        run(&format!("ip -n {switch} link set {port} master bridge0 up"))?;
        run(&format!("ip -n {own} link set lo up"))?;
        run(&format!("ip -n {own} addr add {address}/16 dev eth0"))?;
        run(&format!("ip -n {own} link set eth0 up"))?;
        self.pin_congestion(&own, &host.address)?;
        self.shape(host)
    }

    /// By route and not by the namespace's default, which is limited to what the kernel allows to all users.
    fn pin_congestion(&self, namespace: &str, address: &str) -> Result<(), NetworkError> {
        let change = format!("ip -n {namespace} route change");
        let congestion = &self.congestion;
        run(&format!("{change} {SUBNET} dev eth0 scope link congctl {congestion}"))?;
        run(&format!("{change} local {address} dev lo table local congctl {congestion}"))
    }

    /// Names resolve from files only: a look-up that waits for a name server takes five seconds to fail.
    fn write_overlay(&self, namespace: &str) -> Result<(), NetworkError> {
        let folder = Path::new(OVERLAYS).join(namespace);
        let lines = self.hosts.iter().map(|host| format!("{} {}\n", host.address, host.name));
        let names: String = std::iter::once("127.0.0.1 localhost\n".to_owned()).chain(lines).collect();
        fs::create_dir_all(&folder)
            .map_err(|source| NetworkError::Overlay { path: folder.clone(), source })?;
        for (file, text) in
            [("hosts", names.as_str()), ("nsswitch.conf", "hosts: files\n"), ("resolv.conf", "")]
        {
            let path = folder.join(file);
            fs::write(&path, text).map_err(|source| NetworkError::Overlay { path, source })?;
        }
        Ok(())
    }

    /// Shape both directions of a host's link: outgoing at its own end, incoming at the switch's.
    fn shape(&self, host: &Host) -> Result<(), NetworkError> {
        let (switch, own, port) = (self.namespace("switch"), self.namespace(&host.name), port(&host.name));
        for (namespace, device) in [(&own, "eth0"), (&switch, port.as_str())] {
            match &host.rate {
                Some(rate) => run(&format!(
                    "tc -n {namespace} qdisc replace dev {device} root tbf rate {rate} burst {} latency {}",
                    self.burst, self.queue
                ))?,
                // There may be none.
                None => drop(run(&format!("tc -n {namespace} qdisc del dev {device} root"))),
            }
        }
        Ok(())
    }

    fn set_link(&self, name: &str, state: &str) -> Result<(), NetworkError> {
        self.index(name)?;
        run(&format!("ip -n {} link set {} {state}", self.namespace("switch"), port(name)))
    }

    fn index(&self, name: &str) -> Result<usize, NetworkError> {
        let found = self.hosts.iter().position(|host| host.name == name);
        found.ok_or_else(|| NetworkError::NoHost { name: name.to_owned() })
    }

    fn namespace(&self, host: &str) -> String {
        format!("{}-{host}", self.tag)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let namespaces: Vec<_> = self
            .hosts
            .iter()
            .map(|host| self.namespace(&host.name))
            .chain([self.namespace("switch")])
            .collect();
        remove(&namespaces);
    }
}

fn port(host: &str) -> String {
    format!("v-{host}")
}

/// Remove the remains of testbeds that no longer run.
fn remove_abandoned() {
    let abandoned: Vec<_> = namespaces()
        .into_iter()
        .filter(|name| {
            let owner = name.strip_prefix("fs").and_then(|rest| rest.split_once('-')).map(|(pid, _)| pid);
            owner.is_some_and(|pid| {
                pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).join("stat").exists()
            })
        })
        .collect();
    remove(&abandoned);
}

/// End the processes of these namespaces, first by SIGTERM, then by SIGKILL, and delete the namespaces.
fn remove(namespaces: &[String]) {
    let deadline = Instant::now() + GRACE;
    let running = || -> Vec<String> { namespaces.iter().flat_map(|name| pids(name)).collect() };
    let mut left = running();
    if !left.is_empty() {
        kill("-TERM", &left);
    }
    while !left.is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
        left = running();
    }
    if !left.is_empty() {
        kill("-KILL", &left);
    }
    for name in namespaces {
        drop(run(&format!("ip netns del {name}")));
        drop(fs::remove_dir_all(Path::new(OVERLAYS).join(name)));
    }
}

fn pids(namespace: &str) -> Vec<String> {
    output(&format!("ip netns pids {namespace}")).split_whitespace().map(str::to_owned).collect()
}

fn namespaces() -> Vec<String> {
    let listed = output("ip netns list");
    listed.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

fn kill(signal: &str, pids: &[String]) {
    drop(Command::new("kill").arg(signal).args(pids).stderr(Stdio::null()).status());
}

/// The output of a command, empty if it fails.
fn output(line: &str) -> String {
    let output = command(line).1.stderr(Stdio::null()).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

fn run(line: &str) -> Result<(), NetworkError> {
    let (program, mut command) = command(line);
    let output =
        command.output().map_err(|source| NetworkError::NoProgram { program: program.to_owned(), source })?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(NetworkError::Refused { command: line.to_owned(), stderr })
}

/// The program of a command line, and the command; no argument contains a space.
fn command(line: &str) -> (&str, Command) {
    let (program, arguments) = line.split_once(' ').unwrap_or((line, ""));
    let mut command = Command::new(program);
    command.args(arguments.split_whitespace());
    (program, command)
}
