// SPDX-License-Identifier: Apache-2.0
//! Several hosts on one computer: network namespaces behind one switch, with each link shaped in both directions.
//!
//! It is for tests and benchmarks of network traffic. The switch has a namespace of its own, so nothing is
//! attached to the computer's own interfaces, and no packet can leave it. It is separate from the origin, which is
//! a server: hosts run processes of their users (`ip netns exec NAMESPACE COMMAND`).
//!
//! The hosts exist as long as standard input is open. Lines on it change a link at run time; each is answered by
//! a line. Remains of a killed testbed are removed at the start.
//!
//! Links have a rate and no latency of their own, because some kernels have `tbf` and no `netem`.
//! Needs root and iproute2.

mod network;
mod options;

use std::io::{BufRead, Write};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

pub use network::{Network, NetworkError};
pub use options::{HostOptions, HostsOptions};

use crate::options::UsageError;

/// Create the hosts, print their addresses, and follow the lines of standard input; remove everything at its end,
/// or on SIGTERM or SIGINT.
pub fn run(arguments: impl IntoIterator<Item = String>) -> Result<(), RunError> {
    let options = HostsOptions::parse(arguments)?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(serve(&options))
}

async fn serve(options: &HostsOptions) -> Result<(), RunError> {
    let (mut terminated, mut interrupted) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut network = Network::build(options)?;
    let mut lines = standard_input();
    print_line(&network.describe())?;
    loop {
        let line = tokio::select! {
            line = lines.recv() => line,
            _ = terminated.recv() => None,
            _ = interrupted.recv() => None,
        };
        let Some(line) = line else { return Ok(()) };
        print_line(&match network.execute(&line) {
            Ok(()) => serde_json::json!({ "ok": true }),
            Err(error) => serde_json::json!({ "ok": false, "error": error.to_string() }),
        })?;
    }
}

fn print_line(value: &serde_json::Value) -> std::io::Result<()> {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{value}")?;
    stdout.flush()
}

/// The lines of standard input; closed at its end.
fn standard_input() -> mpsc::Receiver<String> {
    let (send, lines) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if send.blocking_send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Why the hosts could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// An invalid command line.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// A failed system command.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// A failure of standard input or output.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}
