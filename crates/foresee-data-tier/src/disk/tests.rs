// SPDX-License-Identifier: Apache-2.0
//! The disk tier: its guarantees, crashes, and a disk that fails.
//!
//! This file has the shared support: a tier with its own queue, samples with known content, and the files of a tier.

mod budget;
mod directory;
mod failing;
pub(super) mod failing_disk;
mod planted;
mod process_tests;
mod properties;
mod read_only;
mod recovery;
mod tools;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::AtomicUsize;

use foresee_units::GAMMA;
use tempfile::TempDir;

use super::*;
use crate::conformance;
use crate::memory::{Dest, Payload};
use crate::op::{Done, TagHash};
use crate::{OriginOptions, Uri};

const SET: Fingerprint = Fingerprint([7; 16]);
const GRACE: Nanos = Nanos::from_secs(20);

fn config(dir: &Path, capacity: u64) -> DiskConfig {
    config_of(dir, capacity, "/data/set", SET)
}

/// For the data set `fingerprint`, stored at `uri`.
fn config_of(dir: &Path, capacity: u64, uri: &str, fingerprint: Fingerprint) -> DiskConfig {
    let uri = Uri::parse(uri).unwrap();
    DiskConfig {
        dir: dir.to_owned(),
        capacity: Bytes::new(capacity),
        directory_capacity: Bytes::new(capacity),
        origin: OriginIdentity::new(&uri, &OriginOptions::default()).unwrap(),
        entries: Arc::new(Numbered { fingerprint }),
        fingerprint,
        ranks: 1,
        threads: 2,
    }
}

/// A data set whose samples have keys with their number, and with the next number as tag.
#[derive(Debug)]
struct Numbered {
    fingerprint: Fingerprint,
}

impl Entries for Numbered {
    fn count(&self) -> u64 {
        100_000
    }

    fn key(&self, id: SampleId) -> SampleKey {
        SampleKey { fingerprint: self.fingerprint, ..key(id.0) }
    }

    fn entry(&self, key: &SampleKey) -> EntryKey {
        let mut entry = EntryKey::default();
        entry.0[..8].copy_from_slice(&key.id.0.to_le_bytes());
        entry.0[8..].copy_from_slice(&key.tag.0.to_le_bytes());
        entry
    }
}

fn key(id: u64) -> SampleKey {
    SampleKey { fingerprint: SET, id: SampleId(id), tag: TagHash(id + 1) }
}

fn content(id: u64, len: usize) -> Vec<u8> {
    let seed = (id + 1).wrapping_mul(GAMMA).to_le_bytes();
    seed.into_iter().cycle().take(len).collect()
}

/// A tier with a queue of its own, one operation at a time.
struct Rig {
    tier: DiskTier,
    cached: Vec<CachedSample>,
    completions: Completions,
    woken: std::sync::mpsc::Receiver<()>,
}

impl Rig {
    fn open(config: &DiskConfig) -> Self {
        Self::over(config, Box::new(Kernel))
    }

    fn over(config: &DiskConfig, storage: Box<dyn Storage>) -> Self {
        let (wake, woken) = std::sync::mpsc::channel();
        let completions = Completions::new(move || wake.send(()).unwrap_or(()));
        let (tier, cached) = DiskTier::open_with(config, completions.clone(), storage).unwrap();
        Self { tier, cached, completions, woken }
    }

    fn run(&self, op: Op) -> Done {
        self.tier.submit(op);
        let mut done = Vec::new();
        while done.is_empty() {
            self.woken.recv_timeout(Duration::from_secs(60)).expect("an end within a minute");
            self.completions.drain(&mut done);
        }
        assert_eq!(done.len(), 1, "one operation has one end: {done:?}");
        let facts = self.tier.facts();
        assert!(facts.used <= facts.capacity, "{facts:?}");
        done.remove(0)
    }

    fn write(&self, key: SampleKey, bytes: &[u8]) -> ReadOutcome {
        let payload = Payload::from_vec(bytes.to_vec());
        loop {
            let done = self.run(Op::Write { ticket: Ticket(1), key, payload: payload.clone() });
            if !matches!(done.outcome, ReadOutcome::Throttled { .. }) {
                return done.outcome;
            }
            std::thread::yield_now();
        }
    }

    fn read(&self, key: SampleKey, len: usize) -> Result<Vec<u8>, ReadOutcome> {
        let (dest, scratch) = Dest::from_vec(vec![0; len]);
        match self.run(Op::Read { ticket: Ticket(2), key, offset: 0, dest }).outcome {
            ReadOutcome::Ok => Ok(scratch.into_bytes().unwrap()),
            outcome => Err(outcome),
        }
    }

    fn drop_sample(&self, key: SampleKey) -> ReadOutcome {
        self.run(Op::Drop { ticket: Ticket(3), key }).outcome
    }

    fn ids(&self) -> Vec<u64> {
        self.cached.iter().map(|cached| cached.id.0).collect()
    }
}

/// Copy the files as after a power cut, without an orderly end.
fn crash_copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            crash_copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path(), extension));
        } else if entry.path().extension().unwrap_or(entry.path().file_name().unwrap()) == extension {
            found.push(entry.path());
        }
    }
    found.sort();
    found
}

fn blocks(path: &Path) -> u64 {
    let own = fs::symlink_metadata(path).map_or(0, |metadata| metadata.blocks() * 512);
    let below = fs::read_dir(path).into_iter().flatten().map(|entry| blocks(&entry.unwrap().path()));
    own + below.sum::<u64>()
}

#[test]
fn the_disk_tier_has_every_guarantee_of_a_tier() {
    let dir = TempDir::new().unwrap();
    let nth = AtomicUsize::new(0);
    conformance::check_writes(|completions, capacity| {
        let own = dir.path().join(nth.fetch_add(1, Ordering::Relaxed).to_string());
        Arc::new(DiskTier::open(&config(&own, capacity.get()), completions).unwrap().0)
    });
}
