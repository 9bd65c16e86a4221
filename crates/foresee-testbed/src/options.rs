// SPDX-License-Identifier: Apache-2.0
//! The command line, checked.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::faults::FaultRule;
use crate::listing::PAGE_KEYS_MAX;

/// What the command prints for `--help`.
pub(crate) const USAGE: &str = "\
usage: foresee-testbed serve DIR [--mount AT] [options]  the folders in DIR as buckets, over HTTP and S3; with --mount
                                                     as a file system too, at the folder AT
       foresee-testbed memory [options]                  buckets in memory, which PUT /BUCKET and PUT /BUCKET/KEY fill
       foresee-testbed proxy http://HOST:PORT [options]  in front of an HTTP or S3 server, forwarding unchanged
       foresee-testbed hosts NAME[=RATE]... [--rate RATE] [--burst 64kb] [--queue 20ms] [--congestion cubic]
                                                     network namespaces behind one switch, links shaped both ways

  --listen HOST:PORT    default 127.0.0.1:0 (any free port)
  --bytes-per-s N       limit on the bodies of all answers together; 0 (default): none
  --requests-per-s N    limit on all requests together; 0 (default): none
  --refuse-above-per-s N  requests per second that are answered, all together; the others get 503 SlowDown; 0 (default): all
  --latency-ms N        every request waits so long first; default 0
  --burst-ms N          unused time that a limit lets catch up later; default 10
  --page-keys N         maximum number of keys on a page of a listing; default 1000
  --faults JSON         a list of rules, see POST /-/faults

Prints one line of JSON with its port when it is ready. Ends when its standard input closes or on SIGTERM.
  GET  /-/counters      requests, bytes, connections, time throttled
  POST /-/reset         counters to 0
  GET, POST /-/limits   {\"bytes_per_s\": N, \"requests_per_s\": N, \"refuse_above_per_s\": N, \"latency_ms\": N}
  GET, POST /-/faults   [{\"kind\": \"status\" (+ \"status\", \"code\", \"retry_after_s\") | \"stall\" (+ \"ms\") | \"short_body\" | \"reset\"
                          | \"answer\" (+ \"status\", \"headers\", \"body\") | \"ignore_conditions\" | \"empty_page\",
                          \"method\": \"GET\", \"path\": \"part of it\", \"next\": K, \"percent\": P, \"seed\": S}]
hosts prints one line of JSON with each host's namespace and address; then standard input takes `rate HOST RATE`,
`cut HOST` and `restore HOST`, a line each, answered by a line. It needs root and iproute2.
A mount needs root and /dev/fuse. Each read of a file is a request there, cut at 1 MiB; reads come one after the other, and none from
the page cache.
A testbed: signatures are not checked in serve mode, and only GET and HEAD are served there.
";

/// A complete, checked configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The source of the bytes.
    pub mode: Mode,
    /// The mount point of the served folder, if any.
    pub mount: Option<PathBuf>,
    /// Address to listen on; port 0 selects a free one.
    pub listen: SocketAddr,
    /// Initial rates and latency.
    pub limits: Limits,
    /// Maximum number of keys on a page of a listing.
    pub page_keys: usize,
    /// Unused time of a limit that may be used later.
    pub burst: Duration,
    /// Initial faults.
    pub faults: Vec<FaultRule>,
}

/// The source of the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Each folder in this one is a bucket.
    Serve(PathBuf),
    /// Buckets in memory, filled by `PUT`.
    Memory,
    /// The server at this `host:port`.
    Proxy(String),
}

/// The limits of the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Bytes per second of all bodies together; 0: no limit.
    pub bytes_per_s: u64,
    /// Requests per second, all together; 0: no limit.
    pub requests_per_s: u64,
    /// Requests per second that are answered; the others get 503 `SlowDown` after the latency. 0: all are answered. A
    /// mount refuses nothing.
    pub refuse_above_per_s: u64,
    /// Delay of every request before anything else, in milliseconds.
    pub latency_ms: f64,
}

/// An invalid command line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UsageError {
    /// `--help`.
    #[error("{USAGE}")]
    Help,
    /// A missing or unknown mode.
    #[error("the first argument is `serve DIR`, `memory` or `proxy URL` (got {got:?}); see --help")]
    Mode {
        /// The argument.
        got: String,
    },
    /// An unknown argument.
    #[error("unknown argument {argument:?}; see --help")]
    Unknown {
        /// The argument.
        argument: String,
    },
    /// An option without a value.
    #[error("{option} needs a value; see --help")]
    NoValue {
        /// The option.
        option: String,
    },
    /// An invalid value.
    #[error("{option} cannot be {value:?}: {reason}; see --help")]
    Value {
        /// The option.
        option: String,
        /// Its value.
        value: String,
        /// The reason.
        reason: String,
    },
}

impl Options {
    /// The defaults of `mode`.
    pub(crate) fn new(mode: Mode) -> Self {
        Self {
            mode,
            mount: None,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            limits: Limits::default(),
            page_keys: PAGE_KEYS_MAX,
            burst: Duration::from_millis(10),
            faults: Vec::new(),
        }
    }

    /// Parse the arguments that follow the program's name.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self, UsageError> {
        let mut arguments = arguments.into_iter();
        let mode = parse_mode(&mut arguments)?;
        let mut options = Self::new(mode);
        while let Some(option) = arguments.next() {
            if option == "--help" {
                return Err(UsageError::Help);
            }
            let Some(set) = setter(&option) else { return Err(UsageError::Unknown { argument: option }) };
            let value = arguments.next().ok_or_else(|| UsageError::NoValue { option: option.clone() })?;
            set(&mut options, &value).map_err(|reason| UsageError::Value { option, value, reason })?;
        }
        Ok(options)
    }
}

type Setter = fn(&mut Options, &str) -> Result<(), String>;

fn setter(option: &str) -> Option<Setter> {
    Some(match option {
        "--mount" => |options, value| match &options.mode {
            Mode::Serve(_) if PathBuf::from(value).is_dir() => {
                options.mount = Some(value.into());
                Ok(())
            }
            Mode::Serve(_) => Err("no such folder".to_owned()),
            Mode::Memory | Mode::Proxy(_) => Err("only `serve DIR` has a folder".to_owned()),
        },
        "--listen" => |options, value| parse(value).map(|listen| options.listen = listen),
        "--bytes-per-s" => |options, value| parse(value).map(|rate| options.limits.bytes_per_s = rate),
        "--requests-per-s" => |options, value| parse(value).map(|rate| options.limits.requests_per_s = rate),
        "--refuse-above-per-s" => {
            |options, value| parse(value).map(|rate| options.limits.refuse_above_per_s = rate)
        }
        "--latency-ms" => |options, value| {
            options.limits.latency_ms = parse(value)?;
            options.limits.check()
        },
        "--page-keys" => |options, value| match parse(value)? {
            0 => Err("1 or more".to_owned()),
            keys => {
                options.page_keys = keys;
                Ok(())
            }
        },
        "--burst-ms" => |options, value| {
            let burst = Duration::try_from_secs_f64(parse::<f64>(value)? / 1e3);
            burst.map(|burst| options.burst = burst).map_err(|error| error.to_string())
        },
        "--faults" => |options, value| {
            options.faults = parse_faults(value.as_bytes())?;
            Ok(())
        },
        _ => return None,
    })
}

impl Limits {
    /// An error if these limits are invalid.
    pub(crate) fn check(&self) -> Result<(), String> {
        // A day exceeds the latency of any store, and keeps the arithmetic far from its limits.
        if (0.0..=86_400_000.0).contains(&self.latency_ms) {
            Ok(())
        } else {
            Err(format!("latency_ms is 0 to 86400000 (got {})", self.latency_ms))
        }
    }
}

/// Parse a list of valid rules.
pub(crate) fn parse_faults(json: &[u8]) -> Result<Vec<FaultRule>, String> {
    let rules: Vec<FaultRule> = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    rules.iter().try_for_each(FaultRule::check)?;
    Ok(rules)
}

fn parse_mode(arguments: &mut impl Iterator<Item = String>) -> Result<Mode, UsageError> {
    let mode = arguments.next().unwrap_or_default();
    match mode.as_str() {
        "--help" | "-h" => Err(UsageError::Help),
        "serve" => {
            let folder = arguments.next().ok_or(UsageError::NoValue { option: mode })?;
            if !PathBuf::from(&folder).is_dir() {
                let reason = "no such folder".to_owned();
                return Err(UsageError::Value { option: "serve".to_owned(), value: folder, reason });
            }
            Ok(Mode::Serve(folder.into()))
        }
        "memory" => Ok(Mode::Memory),
        "proxy" => {
            let url = arguments.next().ok_or(UsageError::NoValue { option: mode })?;
            match url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/')) {
                Some(authority) if authority.contains(':') && !authority.contains('/') => {
                    Ok(Mode::Proxy(authority.to_owned()))
                }
                _ => {
                    let reason = "a server is named http://HOST:PORT".to_owned();
                    Err(UsageError::Value { option: "proxy".to_owned(), value: url, reason })
                }
            }
        }
        _ => Err(UsageError::Mode { got: mode }),
    }
}

fn parse<T: std::str::FromStr<Err: std::fmt::Display>>(value: &str) -> Result<T, String> {
    value.parse().map_err(|error: T::Err| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Options, UsageError> {
        Options::parse(line.split(' ').map(str::to_owned))
    }

    #[test]
    fn every_option_reaches_its_field() {
        let options = parse_line(
            "proxy http://127.0.0.1:7070/ --bytes-per-s 20000000 --requests-per-s 1000 --latency-ms 20 \
             --refuse-above-per-s 200 --burst-ms 0.5 --listen 127.0.0.1:81 --faults [{\"kind\":\"reset\",\"next\":3}]",
        )
        .expect("a valid line");
        assert_eq!(options.mode, Mode::Proxy("127.0.0.1:7070".to_owned()));
        assert_eq!(
            options.limits,
            Limits {
                bytes_per_s: 20_000_000,
                requests_per_s: 1_000,
                refuse_above_per_s: 200,
                latency_ms: 20.0
            }
        );
        assert_eq!(options.burst, Duration::from_micros(500));
        assert_eq!(options.listen.port(), 81);
        assert_eq!(options.faults.len(), 1);
    }

    #[test]
    fn an_invalid_command_line_is_reported_with_option_and_reason() {
        for (line, part) in [
            ("", "`serve DIR`"),
            ("serve /no/such/folder", "no such folder"),
            ("proxy https://example.org", "http://HOST:PORT"),
            ("serve / --bytes-per-s many", "--bytes-per-s cannot be \"many\""),
            ("serve / --latency-ms -1", "latency_ms is 0"),
            ("serve / --burst-ms -1", "--burst-ms cannot be \"-1\""),
            ("serve / --burst-ms nan", "--burst-ms cannot be \"nan\""),
            ("serve / --faults", "--faults needs a value"),
            ("serve / --faults [{\"kind\":\"status\",\"status\":200}]", "400 to 599"),
            ("serve / --faults [{\"kind\":\"stall\",\"minutes\":1}]", "minutes"),
            ("serve / --quick", "unknown argument"),
            ("serve / --mount /no/such/folder", "no such folder"),
            ("proxy http://127.0.0.1:7070 --mount /", "has a folder"),
            ("memory --page-keys 0", "1 or more"),
        ] {
            let error = parse_line(line).expect_err(line).to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
