// SPDX-License-Identifier: Apache-2.0
//! Shared support of this crate's tests: an index in memory, a completion queue to wait for, and origins with samples.

use std::any::Any;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use foresee_testbed::{Fault, FaultRule, MemoryServer};
use foresee_units::SampleId;

use crate::conformance::FilledTier;
use crate::origin::tag_of;
use crate::{
    Completions, Dest, Done, Fingerprint, Locate, Location, Op, OriginOptions, PosixOrigin, SampleKey,
    TagHash, Ticket, Tier,
};

/// An index in memory; sample ids count its entries.
#[derive(Default)]
pub(crate) struct MemoryIndex {
    entries: Vec<Location<'static>>,
    panics_at: Option<u64>,
    /// A folder or server that ends together with the origin that owns this index.
    storage: Option<Box<dyn Any + Send + Sync>>,
}

impl MemoryIndex {
    pub(crate) fn own(&mut self, storage: impl Any + Send + Sync) {
        self.storage = Some(Box::new(storage));
    }

    pub(crate) fn add(&mut self, key: &[u8], start: Option<u64>, len: u64, tag: &[u8]) {
        let (key, tag) = (Cow::Owned(key.to_vec()), Cow::Owned(tag.to_vec()));
        self.entries.push(Location { key, start, len, tag });
    }

    pub(crate) fn panic_at(&mut self, id: u64) {
        self.panics_at = Some(id);
    }
}

impl Locate for MemoryIndex {
    fn locate(&self, id: SampleId) -> Option<Location<'_>> {
        assert_ne!(self.panics_at, Some(id.0), "a panic on purpose");
        self.entries.get(usize::try_from(id.0).ok()?).cloned()
    }
}

pub(crate) fn key(id: usize) -> SampleKey {
    SampleKey { fingerprint: Fingerprint([7; 16]), id: SampleId(id as u64), tag: TagHash(1) }
}

pub(crate) fn keys(count: usize) -> Vec<SampleKey> {
    (0..count).map(key).collect()
}

/// A completion queue whose reader can wait.
pub(crate) struct Queue {
    pub(crate) completions: Completions,
    woken: Receiver<()>,
}

/// The value of `open`, and the queue that it was opened with.
pub(crate) fn with_queue<T>(open: impl FnOnce(Completions) -> T) -> (T, Queue) {
    let (wake, woken) = channel();
    let completions = Completions::new(move || wake.send(()).unwrap_or(()));
    (open(completions.clone()), Queue { completions, woken })
}

impl Queue {
    /// The next completions; panics after a minute without any.
    pub(crate) fn wait(&self) -> Vec<Done> {
        self.woken.recv_timeout(Duration::from_secs(60)).expect("a completion within a minute");
        let mut done = Vec::new();
        self.completions.drain(&mut done);
        done
    }
}

/// Read `len` bytes of sample `id` and wait for the completion.
pub(crate) fn read(tier: &dyn Tier, queue: &Queue, id: usize, len: usize) -> (Done, Vec<u8>) {
    let (dest, scratch) = Dest::from_vec(vec![0xEE; len]);
    tier.submit(Op::Read { ticket: Ticket(77), key: key(id), offset: 0, dest });
    let done = queue.wait().pop().expect("a completion");
    (done, scratch.into_bytes().expect("the memory is returned before the completion"))
}

/// A directory with `samples`; its index has one more key, which has no file.
pub(crate) fn open_directory(completions: Completions, samples: &[Vec<u8>], threads: usize) -> FilledTier {
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path().to_owned();
    let mut index = MemoryIndex::default();
    for (id, sample) in samples.iter().enumerate() {
        let key = format!("class {}/{id}.bin", id % 3);
        std::fs::create_dir_all(root.join(&key).parent().expect("a parent")).expect("a directory");
        std::fs::write(root.join(&key), sample).expect("a file");
        let stat = rustix::fs::stat(root.join(&key)).expect("a file");
        index.add(key.as_bytes(), None, sample.len() as u64, &tag_of(&stat, false));
    }
    index.add(b"class 0/missing", None, 10, b"");
    index.own(directory);
    let origin = PosixOrigin::new(&root, Arc::new(index), completions, threads).expect("a directory");
    FilledTier { tier: Arc::new(origin), keys: keys(samples.len()), absent: key(samples.len()) }
}

/// Keys on a page of [`serve`]'s listings.
pub(crate) const PAGE_KEYS: usize = 10;

/// A server with the empty bucket `bucket`.
pub(crate) fn serve() -> MemoryServer {
    let server = MemoryServer::start(PAGE_KEYS).expect("a server");
    server.create("bucket");
    server
}

/// A bucket of [`serve`] through the interface of each kind of store.
pub(crate) const BUCKETS: [&str; 3] = ["s3://bucket", "gs://bucket", "az://bucket"];

/// The same bucket as a repository of the hub.
pub(crate) const REPOSITORY: &str = "hf://datasets/me/bucket";

/// Settings of the store at `server` for `uri`: one of [`BUCKETS`], [`REPOSITORY`], a prefix in it, or a web server.
pub(crate) fn store_options(server: &MemoryServer, uri: &str) -> OriginOptions {
    if uri.starts_with("s3:") {
        return s3_options(server);
    }
    let mut options = OriginOptions::default();
    let mut set = |name: &str, value: &str| options.storage.insert(name.to_owned(), value.to_owned());
    let address = format!("http://{}", server.address());
    if uri.starts_with("gs:") {
        set("base_url", &address);
        set("bearer_token", "hush");
    } else if uri.starts_with("az:") {
        set("endpoint", &address);
        set("account_name", "me");
        set("account_key", "aHVzaA==");
    } else if uri.starts_with("hf:") {
        set("endpoint", &address);
        set("token", "hush");
    }
    options
}

/// Settings of the S3 store at `server`.
pub(crate) fn s3_options(server: &MemoryServer) -> OriginOptions {
    let mut options = OriginOptions::default();
    for (name, value) in [
        ("endpoint_url", format!("http://{}", server.address())),
        ("access_key_id", "AKIAKEY".to_owned()),
        ("secret_access_key", "hush".to_owned()),
        ("region", "here".to_owned()),
    ] {
        options.storage.insert(name.to_owned(), value);
    }
    options
}

/// Every answer has this status, error code and `Retry-After: 7`.
pub(crate) fn status(status: u16, code: &str) -> Vec<FaultRule> {
    vec![Fault::Status { status, code: Some(code.to_owned()), retry_after_s: Some(7) }.into()]
}

/// `HEAD` has this status; `GET` works, and without `ranges` returns whole objects only.
pub(crate) fn refuse_head(refusal: u16, ranges: bool) -> Vec<FaultRule> {
    let mut rules = status(refusal, "");
    rules[0].method = "HEAD".to_owned();
    rules.extend((!ranges).then(|| Fault::IgnoreConditions.into()));
    rules
}
