// SPDX-License-Identifier: Apache-2.0
//! The command line of `hosts`, checked.

use crate::options::UsageError;

/// Interface names have at most 15 bytes, and contain the host's name.
const NAME_BYTES_MAX: usize = 12;
/// Addresses start at 10.77.0.1; one byte suffices for one physical host.
const HOSTS_MAX: usize = 250;

/// A complete, checked configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostsOptions {
    /// The hosts, in the order of their addresses.
    pub hosts: Vec<HostOptions>,
    /// Bytes that may pass at line speed after an idle gap, in the notation of `tc`.
    pub burst: String,
    /// Maximum time of a packet in a link's queue before it is dropped, in the notation of `tc`.
    pub queue: String,
    /// The congestion control of the hosts' sockets; the default differs between hosts.
    pub congestion: String,
}

/// One host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostOptions {
    /// Lower-case letters, digits and `-`, at most 12.
    pub name: String,
    /// Rate of its link in each direction, in the notation of `tc` (`200mbit`); `None`: not shaped.
    pub rate: Option<String>,
}

impl HostsOptions {
    /// Parse the arguments that follow `hosts`.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self, UsageError> {
        let mut arguments = arguments.into_iter();
        let (mut names, mut all) = (Vec::new(), None);
        let (mut burst, mut queue) = ("64kb".to_owned(), "20ms".to_owned());
        let mut congestion = "cubic".to_owned();
        while let Some(argument) = arguments.next() {
            let mut value =
                || arguments.next().ok_or_else(|| UsageError::NoValue { option: argument.clone() });
            match argument.as_str() {
                "--help" => return Err(UsageError::Help),
                "--rate" => all = Some(value()?),
                "--burst" => burst = value()?,
                "--queue" => queue = value()?,
                "--congestion" => congestion = value()?,
                other if other.starts_with('-') => {
                    return Err(UsageError::Unknown { argument: other.to_owned() });
                }
                _ => names.push(argument),
            }
        }
        let hosts = names
            .iter()
            .map(|spec| {
                let (name, own) = spec.split_once('=').map_or((spec.as_str(), None), |(n, r)| (n, Some(r)));
                let rate = own.or(all.as_deref()).filter(|rate| *rate != "none").map(str::to_owned);
                HostOptions { name: name.to_owned(), rate }
            })
            .collect();
        let options = Self { hosts, burst, queue, congestion };
        options.check()?;
        Ok(options)
    }

    fn check(&self) -> Result<(), UsageError> {
        let fault_of = |option: &str, value: &str, reason: &str| {
            Err(UsageError::Value { option: option.into(), value: value.into(), reason: reason.into() })
        };
        let fault = |value: &str, reason: &str| fault_of("NAME", value, reason);
        if self.hosts.is_empty() || self.hosts.len() > HOSTS_MAX {
            return fault(&self.hosts.len().to_string(), "there are 1 to 250 hosts");
        }
        let name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if self.congestion.is_empty() || !self.congestion.chars().all(name) {
            let reason = "it is a name from tcp_available_congestion_control";
            return fault_of("--congestion", &self.congestion, reason);
        }
        for (i, host) in self.hosts.iter().enumerate() {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            if host.name.is_empty() || host.name.len() > NAME_BYTES_MAX || !host.name.chars().all(plain) {
                return fault(&host.name, "a name is 1 to 12 of a-z, 0-9 and -");
            }
            if self.hosts[..i].iter().any(|earlier| earlier.name == host.name) || host.name == "switch" {
                return fault(&host.name, "the name is in use");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<HostsOptions, UsageError> {
        HostsOptions::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn a_host_has_its_own_rate_or_the_common_one() {
        let options = parsed("w0 w1=1gbit w2=none --rate 200mbit --burst 32kb").unwrap();
        let rates: Vec<_> = options.hosts.iter().map(|host| host.rate.as_deref()).collect();
        assert_eq!(rates, [Some("200mbit"), Some("1gbit"), None]);
        assert_eq!((options.burst.as_str(), options.queue.as_str()), ("32kb", "20ms"));
        assert_eq!(options.congestion, "cubic");
    }

    #[test]
    fn names_that_cannot_be_interfaces_are_refused() {
        for line in [
            "",
            "W0",
            "a_b",
            "switch",
            "w0 w0",
            "averyverylongname",
            "--rate",
            "--speed 3 w0",
            "w0 --congestion a;b",
        ] {
            assert!(parsed(line).is_err(), "{line:?}");
        }
    }
}
