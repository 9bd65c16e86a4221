// SPDX-License-Identifier: Apache-2.0
//! `foresee-testbed`: starts the testbed of the command line, prints its address, and ends with its parent.

use std::io::{Read, Write};
use std::process::ExitCode;

use foresee_testbed::hosts::{self, RunError};
use foresee_testbed::{Mode, Options, Testbed, UsageError};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("hosts") {
        return match hosts::run(std::env::args().skip(2)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(RunError::Usage(error)) => misused(&error),
            Err(error) => failed(&error),
        };
    }
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => return misused(&error),
    };
    let started = tokio::runtime::Builder::new_current_thread().enable_all().build().and_then(|runtime| {
        let ended = runtime.block_on(run(options));
        // Open connections and file reads end with the process; no client waits for them.
        runtime.shutdown_background();
        ended
    });
    match started {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn misused(error: &UsageError) -> ExitCode {
    if matches!(error, UsageError::Help) {
        let _ = write!(std::io::stdout(), "{error}");
        return ExitCode::SUCCESS;
    }
    let _ = writeln!(std::io::stderr(), "foresee-testbed: {error}");
    ExitCode::from(2)
}

fn failed(error: &dyn std::error::Error) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "foresee-testbed: {error}");
    ExitCode::from(3)
}

async fn run(options: Options) -> std::io::Result<()> {
    let mode = match &options.mode {
        Mode::Serve(_) => "serve",
        Mode::Memory => "memory",
        Mode::Proxy(_) => "proxy",
    };
    let mut terminated = signal(SignalKind::terminate())?;
    let testbed = Testbed::bind(options).await?;
    let address = testbed.address()?;
    let ready = serde_json::json!({
        "port": address.port(), "url": format!("http://{address}"), "mode": mode, "pid": std::process::id(),
    });
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{ready}")?;
    stdout.flush()?;
    let parent_gone = standard_input_closed();
    testbed
        .run(async {
            tokio::select! {
                _ = terminated.recv() => {}
                _ = parent_gone => {}
            }
        })
        .await;
    Ok(())
}

/// Completes when standard input closes: the parent process has ended, for any reason.
fn standard_input_closed() -> oneshot::Receiver<()> {
    let (closed, wait) = oneshot::channel();
    std::thread::spawn(move || {
        let mut stdin = std::io::stdin().lock();
        let mut ignored = [0; 256];
        while matches!(stdin.read(&mut ignored), Ok(1..)) {}
        let _ = closed.send(());
    });
    wait
}
