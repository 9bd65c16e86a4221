// SPDX-License-Identifier: Apache-2.0
//! Counters of requests and bytes at the origin, so that no loader reports on itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use foresee_units::Nanos;
use serde::Serialize;

/// The counts of one testbed. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    counts: Arc<Mutex<Counts>>,
}

/// The counts at one moment, in the form of `GET /-/counters`.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Counts {
    /// Answered requests: method, then status; `none` if a fault closed the connection without an answer.
    requests: BTreeMap<String, BTreeMap<String, u64>>,
    /// The sum of `requests`.
    requests_total: u64,
    /// The number of listings among them.
    lists: u64,
    /// Bytes of objects sent to clients (bodies of `GET` with status 200 or 206, without listings).
    body_bytes: u64,
    /// Bytes of all other answers: listings, errors.
    other_bytes: u64,
    /// Bytes that clients sent through the proxy.
    upload_bytes: u64,
    /// Connections accepted.
    connections: u64,
    /// Total time that answers waited for the limits on requests and bytes, without latency.
    throttled_ms: f64,
    /// Current requests, including their bodies.
    in_flight: u64,
    /// Maximum of concurrent requests.
    max_in_flight: u64,
    /// Faults injected.
    faults: u64,
}

impl Counters {
    /// Count the begin of a request; it ends when the returned value is dropped.
    pub(crate) fn begin(&self) -> Flight {
        self.change(|counts| {
            counts.in_flight += 1;
            counts.max_in_flight = counts.max_in_flight.max(counts.in_flight);
        });
        Flight { counters: self.clone() }
    }

    /// Count an answer; `status` is `None` if its connection is closed instead.
    pub(crate) fn answered(&self, method: &str, status: Option<u16>, is_list: bool) {
        let status = status.map_or_else(|| "none".to_owned(), |status| status.to_string());
        self.change(|counts| {
            *counts.requests.entry(method.to_owned()).or_default().entry(status).or_default() += 1;
            counts.requests_total += 1;
            counts.lists += u64::from(is_list);
        });
    }

    /// Count `bytes` of an answer's body.
    pub(crate) fn sent(&self, bytes: u64, of_object: bool) {
        self.change(|counts| {
            if of_object {
                counts.body_bytes += bytes;
            } else {
                counts.other_bytes += bytes;
            }
        });
    }

    /// Count `bytes` from a client.
    pub(crate) fn uploaded(&self, bytes: u64) {
        self.change(|counts| counts.upload_bytes += bytes);
    }

    /// Count a connection.
    pub(crate) fn connected(&self) {
        self.change(|counts| counts.connections += 1);
    }

    /// Count the `time` for which a limit delays an answer.
    pub(crate) fn throttled(&self, time: Nanos) {
        #[expect(clippy::cast_precision_loss, reason = "a sum of waits stays under 2^53 ns for 100 days")]
        let milliseconds = time.get() as f64 / 1e6;
        self.change(|counts| counts.throttled_ms += milliseconds);
    }

    /// Count an injected fault.
    pub(crate) fn faulted(&self) {
        self.change(|counts| counts.faults += 1);
    }

    /// Reset everything to 0, except current requests.
    pub(crate) fn reset(&self) {
        self.change(|counts| {
            let in_flight = counts.in_flight;
            *counts = Counts { in_flight, max_in_flight: in_flight, ..Counts::default() };
        });
    }

    /// The counts now.
    pub(crate) fn snapshot(&self) -> Counts {
        self.change(|counts| counts.clone())
    }

    fn change<T>(&self, change: impl FnOnce(&mut Counts) -> T) -> T {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A current request.
#[derive(Debug)]
pub(crate) struct Flight {
    counters: Counters,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.counters.change(|counts| counts.in_flight -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_keeps_current_requests() {
        let counters = Counters::default();
        let first = counters.begin();
        drop(counters.begin());
        counters.answered("GET", Some(200), false);
        counters.sent(10, true);
        counters.reset();
        let now = counters.snapshot();
        assert_eq!((now.in_flight, now.max_in_flight, now.body_bytes, now.requests_total), (1, 1, 0, 0));
        drop(first);
        assert_eq!(counters.snapshot().in_flight, 0);
    }
}
