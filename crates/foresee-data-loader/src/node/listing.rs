// SPDX-License-Identifier: Apache-2.0
//! Listings that the ranks of a job on one node share: one rank lists, and the others get its index.
//!
//! The first rank that asks becomes the host of the listings (`host`), which decides who lists (`registry`). It needs no
//! cache, because data sets are listed before a loader exists. A rank lists alone when anything about sharing fails.

mod host;
#[cfg(test)]
mod process_tests;
mod registry;

use std::fs::File;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use foresee_data_index::Index;
use foresee_data_node::{
    AddressValues, ConnectOptions, LauncherValues, ListingConnection, ListingCounts, ListingKey,
    ListingReply, ListingRequest, NodeAddress, NodeError, index_file,
};

use self::host::ListingHost;

/// Time for each step of connecting, and for all attempts to find or become the host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause while another rank is just becoming the host.
const HOST_PAUSE: Duration = Duration::from_millis(2);
/// Time between two messages of a rank that lists.
const ALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// Time without a message after which a rank lists alone: the rank that lists, or the host, is stopped.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Hosts that may end while a rank waits; each of them ends with its process.
const RECONNECTIONS_MAX: u32 = 64;

/// What this process has for its listings until it ends.
static HELD: Mutex<Held> = Mutex::new(Held { process: 0, connections: Vec::new(), hosts: Vec::new() });

struct Held {
    /// The process that they belong to; a forked child has copies without use.
    process: u32,
    connections: Vec<Arc<ListingConnection>>,
    hosts: Vec<ListingHost>,
}

/// The part of this rank in one listing of its node.
#[derive(Debug)]
pub struct NodeListing {
    address: NodeAddress,
    key: ListingKey,
    connection: Arc<ListingConnection>,
    /// When the host has sent the last message.
    last_message: Instant,
    /// Ends the messages of a rank that lists when it is dropped.
    lister: Option<Sender<()>>,
    reconnections: u32,
}

/// The result of [`NodeListing::poll`].
#[derive(Debug)]
pub enum ListingTurn {
    /// Another rank lists: call again.
    Waiting,
    /// This rank lists, and calls [`NodeListing::publish`] or [`NodeListing::fail`].
    List,
    /// The index of another rank.
    Found(Box<Index>, ListingCounts),
}

impl NodeListing {
    /// Take part in the listing `key` of this job; `None` if nothing identifies the job, or the user wants no cache of the
    /// node.
    ///
    /// # Errors
    /// The host cannot be reached, nor can this process become it: the rank lists alone.
    pub fn find(key: ListingKey) -> Result<Option<Self>, NodeError> {
        let values = AddressValues::from_environment();
        let Some(address) = values.listings(&LauncherValues::from_environment())? else { return Ok(None) };
        Self::find_at(address, key).map(Some)
    }

    fn find_at(address: NodeAddress, key: ListingKey) -> Result<Self, NodeError> {
        let connection = connect(&address, key)?;
        Ok(Self { address, key, connection, last_message: Instant::now(), lister: None, reconnections: 0 })
    }

    /// Wait up to `tick` for the index, or for the turn of this rank to list.
    ///
    /// # Errors
    /// [`NodeError::Late`]: no message came for half a minute. Other errors as those of the connection. The rank lists
    /// alone.
    pub fn poll(&mut self, tick: Duration) -> Result<ListingTurn, NodeError> {
        match self.connection.receive(tick) {
            Ok((ListingReply::Wanted, _)) => {
                self.lister = Some(report_alive(&self.connection)?);
                Ok(ListingTurn::List)
            }
            Ok((ListingReply::Built(counts), Some(file))) => {
                let index = open(&file)?;
                hold(Arc::clone(&self.connection));
                Ok(ListingTurn::Found(Box::new(index), counts))
            }
            Ok(_) => {
                self.last_message = Instant::now();
                Ok(ListingTurn::Waiting)
            }
            Err(NodeError::Late { .. }) if self.last_message.elapsed() < SILENCE_MAX => {
                Ok(ListingTurn::Waiting)
            }
            // The host has ended: another rank, or this one, becomes the host.
            Err(NodeError::Ended | NodeError::PeerEnded) if self.reconnections < RECONNECTIONS_MAX => {
                self.reconnections += 1;
                self.connection = connect(&self.address, self.key)?;
                self.last_message = Instant::now();
                Ok(ListingTurn::Waiting)
            }
            Err(fault) => Err(fault),
        }
    }

    /// Send the index of this rank's listing to the host, which passes it to the ranks that wait for it.
    ///
    /// # Errors
    /// The system refuses memory for the index, or the host has ended: the other ranks list for themselves.
    pub fn publish(self, index: &Index, counts: ListingCounts) -> Result<(), NodeError> {
        let file = match index_file(index.file()) {
            Ok(file) => file,
            Err(fault) => {
                self.fail();
                return Err(fault);
            }
        };
        self.connection.send(ListingRequest::Built(counts), Some(&file), CONNECT_TIMEOUT)?;
        hold(self.connection);
        Ok(())
    }

    /// Report that this rank cannot list. The ranks that wait list for themselves, and get the same error.
    pub fn fail(self) {
        // A host that has ended reports the same by its end.
        let _ = self.connection.send(ListingRequest::Failed, None, CONNECT_TIMEOUT);
    }
}

/// End the part of this process in all listings. The indexes that it has stay.
pub fn leave_listings() {
    // In a forked child the lock may be held forever.
    let Ok(mut held) = HELD.try_lock() else { return };
    if held.process == std::process::id() {
        held.connections.clear();
        held.hosts.clear();
    }
}

/// Connect to the host at `address`, or become it first.
fn connect(address: &NodeAddress, key: ListingKey) -> Result<Arc<ListingConnection>, NodeError> {
    let options = ConnectOptions { allow_uids: Vec::new(), timeout: CONNECT_TIMEOUT };
    let since = Instant::now();
    loop {
        let fault = match ListingConnection::find(address, key, &options) {
            Err(fault @ (NodeError::NoHost { .. } | NodeError::Stale { .. })) => fault,
            outcome => return outcome.map(Arc::new),
        };
        match ListingHost::start(address) {
            Ok(host) => held().hosts.push(host),
            // Another rank becomes the host.
            Err(NodeError::InUse { .. }) if since.elapsed() < CONNECT_TIMEOUT => {
                std::thread::park_timeout(HOST_PAUSE);
            }
            Err(NodeError::InUse { .. }) => return Err(fault),
            Err(other) => return Err(other),
        }
    }
}

/// Keep a connection open: the host forgets a listing when all its ranks have ended.
fn hold(connection: Arc<ListingConnection>) {
    held().connections.push(connection);
}

fn held() -> MutexGuard<'static, Held> {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    if held.process != std::process::id() {
        *held = Held { process: std::process::id(), connections: Vec::new(), hosts: Vec::new() };
    }
    held
}

/// Report to the host that this process lists, until the result is dropped.
fn report_alive(connection: &Arc<ListingConnection>) -> Result<Sender<()>, NodeError> {
    let (sender, receiver) = channel();
    let connection = Arc::clone(connection);
    let report = move || {
        while receiver.recv_timeout(ALIVE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            // A host that does not read is stopped, and one that has ended needs no report.
            let _ = connection.send(ListingRequest::Alive, None, Duration::ZERO);
        }
    };
    let thread = Builder::new().name("foresee-lister".into()).spawn(report);
    thread.map_err(|why| NodeError::Io { doing: "starting a thread for a listing", why })?;
    Ok(sender)
}

/// Map an index that another rank has sent. Forked children inherit the mapping.
fn open(file: &File) -> Result<Index, NodeError> {
    // SAFETY: the connection accepts only files that are sealed against writing and shrinking.
    let map = unsafe { memmap2::Mmap::map(file) };
    let map = map.map_err(|why| NodeError::Io { doing: "mapping the index of a listing", why })?;
    Index::open_mapped(Arc::new(map)).map_err(|why| NodeError::Malformed { why: why.to_string() })
}
