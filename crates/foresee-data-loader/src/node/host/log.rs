// SPDX-License-Identifier: Apache-2.0
//! What happens in a host, for its operator: one entry per event, with its values as text.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::HostEnded;

/// Entries that wait for a reader; later ones are dropped, because a host does not wait for its log.
const ENTRIES_MAX: usize = 1024;

/// One event of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostLogEntry {
    /// What happened, in a few words.
    pub event: &'static str,
    /// The number of the consumer that it is about.
    pub consumer: Option<u32>,
    /// Further values, by name. No value contains a storage option or a signed URI.
    pub fields: Vec<(&'static str, String)>,
}

/// The writing end.
#[derive(Clone, Debug)]
pub(super) struct HostLog(SyncSender<HostLogEntry>);

/// The reading end.
#[derive(Debug)]
pub(super) struct HostLogReader(Mutex<Receiver<HostLogEntry>>);

/// Create a log.
pub(super) fn log() -> (HostLog, HostLogReader) {
    let (sender, receiver) = sync_channel(ENTRIES_MAX);
    (HostLog(sender), HostLogReader(Mutex::new(receiver)))
}

impl HostLog {
    pub(super) fn add(
        &self,
        event: &'static str,
        consumer: Option<u32>,
        fields: Vec<(&'static str, String)>,
    ) {
        // Without a reader, or with one that is too slow, the entry is dropped.
        let _ = self.0.try_send(HostLogEntry { event, consumer, fields });
    }
}

impl HostLogReader {
    /// Wait up to `timeout` for the next entry. `Err` once the host has ended and all entries were read.
    pub(super) fn next(&self, timeout: Duration) -> Result<Option<HostLogEntry>, HostEnded> {
        let receiver = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match receiver.recv_timeout(timeout) {
            Ok(entry) => Ok(Some(entry)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(HostEnded),
        }
    }
}
