// SPDX-License-Identifier: Apache-2.0
//! What the tests of the origins share: an index of a few objects, and a read that waits for its end.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use foresee_units::SampleId;

use super::{Locate, Location, PosixOrigin, tag_of};
use crate::conformance::Stocked;
use crate::{Completions, Dest, Done, Fingerprint, Op, SampleKey, TagHash, Ticket, Tier};

/// An index in memory; sample ids count its entries.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    entries: Vec<Location<'static>>,
    panics_at: Option<u64>,
    /// Goes when the origin goes that looks up its samples here.
    _root: Option<tempfile::TempDir>,
}

impl Shelf {
    pub(crate) fn over(root: tempfile::TempDir) -> Self {
        Self { _root: Some(root), ..Self::default() }
    }

    pub(crate) fn add(&mut self, key: &[u8], start: Option<u64>, len: u64, tag: &[u8]) {
        let (key, tag) = (Cow::Owned(key.to_vec()), Cow::Owned(tag.to_vec()));
        self.entries.push(Location { key, start, len, tag });
    }

    pub(crate) fn panic_at(&mut self, id: u64) {
        self.panics_at = Some(id);
    }
}

impl Locate for Shelf {
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

/// A place and the queue of its ends, with a bell that rings when one comes in.
pub(crate) struct Queue {
    pub(crate) completions: Completions,
    bell: Receiver<()>,
}

pub(crate) fn queued<T>(open: impl FnOnce(Completions) -> T) -> (T, Queue) {
    let (ring, bell) = channel();
    let completions = Completions::new(move || {
        let _ = ring.send(());
    });
    (open(completions.clone()), Queue { completions, bell })
}

impl Queue {
    /// The next ends; panics after a minute without any.
    pub(crate) fn wait(&self) -> Vec<Done> {
        self.bell.recv_timeout(Duration::from_secs(60)).expect("an end within a minute");
        let mut done = Vec::new();
        self.completions.drain(&mut done);
        done
    }
}

/// Reads `len` bytes of sample `id` and waits for the end.
pub(crate) fn read(tier: &dyn Tier, queue: &Queue, id: usize, len: usize) -> (Done, Vec<u8>) {
    let (dest, scratch) = Dest::from_vec(vec![0xEE; len]);
    tier.submit(Op::Read { ticket: Ticket(77), key: key(id), offset: 0, dest });
    let done = queue.wait().pop().expect("an end");
    (done, scratch.into_bytes().expect("the memory came back first"))
}

/// A directory that holds `samples`; one more key stands in its index and has no file.
pub(crate) fn open_directory(completions: Completions, samples: &[Vec<u8>], threads: usize) -> Stocked {
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path().to_owned();
    let mut shelf = Shelf::over(directory);
    for (id, sample) in samples.iter().enumerate() {
        let key = format!("class {}/{id}.bin", id % 3);
        std::fs::create_dir_all(root.join(&key).parent().expect("a parent")).expect("a directory");
        std::fs::write(root.join(&key), sample).expect("a file");
        let stat = rustix::fs::stat(root.join(&key)).expect("a file");
        shelf.add(key.as_bytes(), None, sample.len() as u64, &tag_of(&stat, false));
    }
    shelf.add(b"class 0/missing", None, 10, b"");
    let origin = PosixOrigin::new(&root, Arc::new(shelf), completions, threads).expect("a directory");
    Stocked { tier: Arc::new(origin), keys: keys(samples.len()), absent: key(samples.len()) }
}
