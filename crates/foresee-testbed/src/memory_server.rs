// SPDX-License-Identifier: Apache-2.0
//! A testbed on a thread of its own, for tests that run in the same process.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use crate::faults::FaultRule;
use crate::memory::MemoryBuckets;
use crate::options::{Mode, Options};
use crate::server::{Origin, Testbed};

/// A running testbed with buckets in memory; it ends with this value.
#[derive(Debug)]
pub struct MemoryServer {
    address: SocketAddr,
    memory: Arc<MemoryBuckets>,
    origin: Arc<Origin>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl MemoryServer {
    /// Start a testbed at a free port of this host; a page of a listing has up to `page_keys` keys.
    ///
    /// # Errors
    /// The kernel refuses a thread or a socket.
    pub fn start(page_keys: usize) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let options = Options { page_keys, ..Options::new(Mode::Memory) };
        let (bound, started) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("testbed".to_owned()).spawn(move || {
            runtime.block_on(async {
                let testbed = Testbed::bind(options).await;
                let parts = testbed.as_ref().map_err(io::Error::kind).map(Testbed::parts);
                let _ = bound.send(parts);
                if let Ok(testbed) = testbed {
                    testbed.run(async { drop(stopped.await) }).await;
                }
            });
            runtime.shutdown_background();
        })?;
        let (address, origin, memory) = started.recv().map_err(io::Error::other)??;
        let (stop, thread) = (Some(stop), Some(thread));
        Ok(Self { address, memory, origin, stop, thread })
    }

    /// The listening address.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Create an empty bucket.
    pub fn create(&self, bucket: &str) {
        self.memory.create(bucket.as_bytes());
    }

    /// Store an object, and its bucket if it is new; return the object's `ETag`.
    pub fn put(&self, bucket: &str, key: &str, body: &[u8]) -> String {
        self.memory.put(bucket.as_bytes(), key.as_bytes(), body.to_vec().into())
    }

    /// Replace the rules of faults; an empty list ends all faults.
    pub fn set_faults(&self, rules: Vec<FaultRule>) {
        self.origin.faults.set(rules);
    }

    /// The last 4096 requests: `METHOD PATH range=RANGE if-match=TAG`, then ` query=QUERY` if there is one. Missing
    /// headers are `-`, the path is percent-decoded.
    pub fn requests(&self) -> Vec<String> {
        self.memory.requests()
    }
}

impl Drop for MemoryServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic has been printed by its thread.
            let _ = thread.join();
        }
    }
}
