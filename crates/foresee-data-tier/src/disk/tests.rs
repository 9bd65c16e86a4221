// SPDX-License-Identifier: Apache-2.0
//! The disk tier against its promises, against a map, against crashes, and against a disk that fails.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicUsize;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::conformance;
use crate::memory::{Dest, Payload};
use crate::op::Done;

const SET: Fingerprint = Fingerprint([7; 16]);
const GRACE: Nanos = Nanos::from_secs(20);

fn config(dir: &Path, capacity: u64) -> DiskConfig {
    DiskConfig {
        dir: dir.to_owned(),
        capacity: Bytes::new(capacity),
        fingerprint: SET,
        ranks: 1,
        samples: 10_000,
        threads: 2,
    }
}

fn key(id: u64) -> SampleKey {
    SampleKey { fingerprint: SET, id: SampleId(id), tag: TagHash(id + 1) }
}

fn content(id: u64, len: usize) -> Vec<u8> {
    let seed = (id + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
    seed.into_iter().cycle().take(len).collect()
}

/// A tier with a queue of its own, one operation at a time.
struct Rig {
    tier: DiskTier,
    held: Vec<Held>,
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
        let (tier, held) = DiskTier::open_with(config, completions.clone(), storage).unwrap();
        Self { tier, held, completions, woken }
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

    fn write(&self, key: SampleKey, bytes: &[u8]) -> Outcome {
        let payload = Payload::from_vec(bytes.to_vec());
        loop {
            let done = self.run(Op::Write { ticket: Ticket(1), key, payload: payload.clone() });
            if !matches!(done.outcome, Outcome::Throttled { .. }) {
                return done.outcome;
            }
            std::thread::yield_now();
        }
    }

    fn read(&self, key: SampleKey, len: usize) -> Result<Vec<u8>, Outcome> {
        let (dest, scratch) = Dest::from_vec(vec![0; len]);
        match self.run(Op::Read { ticket: Ticket(2), key, offset: 0, dest }).outcome {
            Outcome::Ok => Ok(scratch.into_bytes().unwrap()),
            outcome => Err(outcome),
        }
    }

    fn forget(&self, key: SampleKey) -> Outcome {
        self.run(Op::Drop { ticket: Ticket(3), key }).outcome
    }

    fn ids(&self) -> Vec<u64> {
        self.held.iter().map(|held| held.id.0).collect()
    }
}

/// What a power cut leaves: the files as they are now, without an orderly end.
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
fn it_keeps_every_promise_of_a_place() {
    let dir = TempDir::new().unwrap();
    let nth = AtomicUsize::new(0);
    conformance::write_half(|completions, capacity| {
        let own = dir.path().join(nth.fetch_add(1, Ordering::Relaxed).to_string());
        Arc::new(DiskTier::open(&config(&own, capacity.get()), completions).unwrap().0)
    });
}

#[test]
fn the_next_run_finds_what_a_clean_end_left() {
    let dir = TempDir::new().unwrap();
    let config = config(dir.path(), 8 << 20);
    let lens = [0, 1, 100, 65_535, 65_536, 1_000_000];
    for round in 0..3 {
        let rig = Rig::open(&config);
        let expected: &[u64] = if round == 0 { &[] } else { &[0, 1, 2, 3, 4, 5] };
        assert_eq!(rig.ids(), expected);
        for (id, len) in (0..).zip(lens) {
            assert_eq!(rig.write(key(id), &content(id, len)), Outcome::Ok);
            assert_eq!(rig.read(key(id), len).unwrap(), content(id, len));
        }
        let expected_writes = if round == 0 { 1_000_000 } else { 0 };
        rig.tier.close(GRACE);
        assert!(rig.tier.bytes_written().get() >= expected_writes, "what is there is not written again");
        assert!(round == 0 || rig.tier.bytes_written().is_zero());
        assert_eq!(files(dir.path(), "manifest").len(), 1);
    }
}

#[test]
fn after_a_crash_every_cell_on_the_disk_is_found_by_its_header() {
    let dir = TempDir::new().unwrap();
    let (live, dead) = (dir.path().join("live"), dir.path().join("dead"));
    let rig = Rig::open(&config(&live, 16 << 20));
    // Small ones enough to fill chunks, large ones between them, some forgotten and their room used again.
    let len = |id: u64| if id % 50 == 7 { 100_000 } else { 3000 };
    (0..2000).for_each(|id| assert_eq!(rig.write(key(id), &content(id, len(id))), Outcome::Ok));
    (0..400).for_each(|id| assert_eq!(rig.forget(key(id)), Outcome::Ok));
    (2000..2300).for_each(|id| assert_eq!(rig.write(key(id), &content(id, len(id))), Outcome::Ok));
    // A large sample is on the disk when its write ends, and with it the chunk sealed before.
    crash_copy(&live, &dead);
    let again = Rig::open(&config(&dead, 16 << 20));
    let held: BTreeSet<u64> = again.ids().into_iter().collect();
    let kept = (400..2300).filter(|id| held.contains(id)).count();
    assert!(kept > 1000, "only what was still in memory, or on its way, is lost: {kept} of 1900");
    let mut bad = 0;
    for id in held {
        match again.read(key(id), len(id)) {
            Ok(bytes) => assert_eq!(bytes, content(id, len(id))),
            Err(outcome) => {
                assert_eq!(outcome, Outcome::Corrupt, "torn, and it shows");
                bad += 1;
            }
        }
    }
    assert!(bad < 400, "{bad} torn cells");
    assert_eq!(again.write(key(9000), &content(9000, 70_000)), Outcome::Ok);
}

/// Not a test of its own: the process that the next one kills.
#[test]
fn a_writer_to_be_killed() {
    let Some(dir) = std::env::var_os("FORESEE_TEST_KILLED_WRITER") else { return };
    let rig = Rig::open(&config(Path::new(&dir), 64 << 20));
    for id in 0.. {
        let id = id % 3000;
        assert_eq!(rig.write(key(id), &content(id, 9_000)), Outcome::Ok);
        let large = 10_000 + id % 100;
        assert_eq!(rig.write(key(large), &content(large, 90_000)), Outcome::Ok);
        if id == 500 {
            println!("\nwriting");
        }
        let _ = (rig.forget(key((id * 7) % 3000)), rig.forget(key(10_000 + (id * 3) % 100)));
    }
}

#[test]
fn a_killed_process_leaves_a_lane_that_the_next_one_takes_over() {
    let dir = TempDir::new().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["disk::tests::a_writer_to_be_killed", "--exact", "--nocapture"])
        .env("FORESEE_TEST_KILLED_WRITER", dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    assert!(out.lines().any(|line| line.unwrap() == "writing"));
    child.kill().unwrap();
    child.wait().unwrap();
    let rig = Rig::open(&config(dir.path(), 64 << 20));
    assert!(!rig.held.is_empty());
    let mut good = 0;
    for held in &rig.held {
        let len = if held.id.0 < 10_000 { 9_000 } else { 90_000 };
        match rig.read(key(held.id.0), len) {
            Ok(bytes) => {
                assert_eq!(bytes, content(held.id.0, len));
                good += 1;
            }
            Err(outcome) => assert!(matches!(outcome, Outcome::Corrupt | Outcome::Absent), "{outcome:?}"),
        }
    }
    assert!(good > 0);
    assert_eq!(rig.write(key(77_777), b"goes on"), Outcome::Ok);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "one data set, no lane beside");
    assert_eq!(files(dir.path(), "lock").len(), 1);
}

#[test]
fn two_runs_on_one_directory_have_a_lane_each_and_a_smaller_one_takes_over_both() {
    let dir = TempDir::new().unwrap();
    let of_two = DiskConfig { ranks: 2, ..config(dir.path(), 4 << 20) };
    let (first, second) = (Rig::open(&of_two), Rig::open(&of_two));
    assert_eq!(first.write(key(1), &content(1, 70_000)), Outcome::Ok);
    assert_eq!(second.write(key(2), &content(2, 3_000)), Outcome::Ok);
    assert_eq!(first.read(key(2), 3_000), Err(Outcome::Absent));
    drop((first, second));

    let again = [Rig::open(&of_two), Rig::open(&of_two)];
    let ids: BTreeSet<Vec<u64>> = again.iter().map(Rig::ids).collect();
    assert_eq!(ids, BTreeSet::from([vec![1], vec![2]]), "filled lanes go first");
    drop(again);

    let alone = Rig::open(&config(dir.path(), 8 << 20));
    assert_eq!(alone.ids(), [1, 2]);
    assert_eq!(alone.read(key(1), 70_000).unwrap(), content(1, 70_000));
    assert_eq!(alone.read(key(2), 3_000).unwrap(), content(2, 3_000));
    drop(alone);
    let once_more = Rig::open(&config(dir.path(), 8 << 20));
    assert_eq!(once_more.ids(), [1, 2], "the list names them under their new numbers");
}

#[test]
fn a_smaller_capacity_cuts_the_lane_and_what_is_left_is_right() {
    let dir = TempDir::new().unwrap();
    let rig = Rig::open(&config(dir.path(), 16 << 20));
    (0..120).for_each(|id| assert_eq!(rig.write(key(id), &content(id, 100_000)), Outcome::Ok));
    drop(rig);
    let rig = Rig::open(&config(dir.path(), 6 << 20));
    assert!(blocks(dir.path()) <= 6 << 20);
    assert!(!rig.held.is_empty() && rig.held.len() <= 60);
    rig.held.iter().for_each(|held| {
        assert_eq!(rig.read(key(held.id.0), 100_000).unwrap(), content(held.id.0, 100_000));
    });
}

#[test]
fn the_disk_never_holds_more_than_the_capacity_whatever_the_sizes() {
    let dir = TempDir::new().unwrap();
    let capacity = 3 << 20;
    let rig = Rig::open(&config(dir.path(), capacity));
    for id in 0_u64..3000 {
        let len =
            usize::try_from(id * 7919 % 5000 + if id.is_multiple_of(20) { 200_000 } else { 0 }).unwrap();
        if rig.write(key(id), &content(id, len)) == Outcome::Full {
            let _ = (rig.forget(key(id / 2)), rig.forget(key(id / 3)));
        }
        if id.is_multiple_of(100) {
            assert!(blocks(dir.path()) <= capacity, "{} at {id}", blocks(dir.path()));
        }
    }
    rig.tier.close(GRACE);
    assert!(blocks(dir.path()) <= capacity, "the list counts too");
    assert_eq!(files(dir.path(), "manifest").len(), 1);
}

#[test]
fn files_and_directories_are_for_this_user_only() {
    let dir = TempDir::new().unwrap();
    let rig = Rig::open(&config(dir.path(), 4 << 20));
    assert_eq!(rig.write(key(1), &content(1, 70_000)), Outcome::Ok);
    rig.tier.close(GRACE);
    for file in [files(dir.path(), "seg"), files(dir.path(), "manifest"), files(dir.path(), "lock")].concat()
    {
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "{file:?}");
        assert_eq!(fs::metadata(file.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
    }
}

#[test]
fn a_directory_that_cannot_be_used_is_named_with_what_to_do() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    File::create(&file).unwrap();
    let open = |config: &DiskConfig| DiskTier::open(config, Completions::new(|| ())).unwrap_err().to_string();
    let text = open(&config(&file, 4 << 20));
    assert!(text.contains("file/0707") && text.contains("remove the file or choose another"), "{text}");
    let text = open(&config(Path::new("/sys/foresee"), 4 << 20));
    assert!(text.contains("/sys/foresee") && text.contains("disk_size"), "{text}");
    let text = open(&config(dir.path(), 1_000_000));
    let expected =
        "a disk cache of 1000000 bytes is too small; give `disk_size` 1048576 or more, or 0 for none";
    assert_eq!(text, expected);
    let text = open(&DiskConfig { threads: 0, ..config(dir.path(), 4 << 20) });
    assert_eq!(text, "threads is 0, but goes from 1 to 64");
    let read_only = DiskError::at(Path::new("/cache"), io::ErrorKind::ReadOnlyFilesystem.into());
    assert!(read_only.to_string().starts_with("cache directory /cache is on a read-only file system"));
}

/// A disk with a limit, that may also fail to write or to read, and counts its calls.
struct Failing {
    allocations_left: AtomicU64,
    writes_left: AtomicU64,
    reads_left: AtomicU64,
    writes: Arc<AtomicU64>,
}

impl Failing {
    fn after(allocations: u64, writes: u64, reads: u64) -> Self {
        let left = AtomicU64::new;
        Self {
            allocations_left: left(allocations),
            writes_left: left(writes),
            reads_left: left(reads),
            writes: Arc::default(),
        }
    }

    fn spend(left: &AtomicU64, errno: rustix::io::Errno) -> io::Result<()> {
        let spent = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        spent.map(drop).map_err(|_| errno.into())
    }
}

impl Storage for Failing {
    fn allocate(&self, file: &File, len: u64) -> io::Result<()> {
        Self::spend(&self.allocations_left, rustix::io::Errno::NOSPC)?;
        Kernel.allocate(file, len)
    }

    fn write(&self, file: &File, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        Self::spend(&self.writes_left, rustix::io::Errno::IO)?;
        Kernel.write(file, parts, offset)
    }

    fn read(&self, file: &File, parts: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        Self::spend(&self.reads_left, rustix::io::Errno::IO)?;
        Kernel.read(file, parts, offset)
    }

    fn settle(&self, file: &File) -> io::Result<()> {
        Kernel.settle(file)
    }
}

#[test]
fn a_full_disk_makes_the_tier_smaller_and_the_run_goes_on() {
    let dir = TempDir::new().unwrap();
    let rig = Rig::over(&config(dir.path(), 16 << 20), Box::new(Failing::after(2, u64::MAX, u64::MAX)));
    let kept = (0..100).take_while(|id| rig.write(key(*id), &content(*id, 100_000)) == Outcome::Ok).count();
    assert!((10..50).contains(&kept), "{kept}");
    assert!(rig.tier.facts().capacity < Bytes::new(6 << 20), "{:?}", rig.tier.facts());
    assert_eq!(rig.forget(key(0)), Outcome::Ok);
    assert_eq!(rig.write(key(500), &content(500, 100_000)), Outcome::Ok, "freed room is still room");
    assert_eq!(rig.read(key(1), 100_000).unwrap(), content(1, 100_000));
    assert_eq!(files(dir.path(), "seg").len(), 2, "the file without room is gone");
}

#[test]
fn a_write_that_fails_costs_its_samples_and_its_place_only() {
    let dir = TempDir::new().unwrap();
    let rig = Rig::over(&config(dir.path(), 16 << 20), Box::new(Failing::after(u64::MAX, 3, u64::MAX)));
    let before = rig.tier.facts().capacity;
    (0..3).for_each(|id| assert_eq!(rig.write(key(id), &content(id, 100_000)), Outcome::Ok));
    assert_eq!(rig.write(key(3), &content(3, 100_000)), Outcome::Full);
    assert!(rig.tier.facts().capacity < before);
    assert_eq!(rig.read(key(3), 100_000), Err(Outcome::Absent));
    (0..3).for_each(|id| assert_eq!(rig.read(key(id), 100_000).unwrap(), content(id, 100_000)));
    // A small one is taken before its chunk is written; when that fails, it was never there.
    assert_eq!(rig.write(key(4), b"small"), Outcome::Ok);
    rig.tier.close(GRACE);
    assert!(rig.tier.faults() >= 2);
    drop(rig);
    assert_eq!(Rig::open(&config(dir.path(), 16 << 20)).ids(), [0, 1, 2]);
}

#[test]
fn a_place_that_cannot_be_read_is_not_used_again() {
    let dir = TempDir::new().unwrap();
    let rig = Rig::over(&config(dir.path(), 16 << 20), Box::new(Failing::after(u64::MAX, u64::MAX, 1)));
    (0..2).for_each(|id| assert_eq!(rig.write(key(id), &content(id, 100_000)), Outcome::Ok));
    let before = rig.tier.facts();
    assert_eq!(rig.read(key(0), 100_000).unwrap(), content(0, 100_000));
    assert_eq!(rig.read(key(1), 100_000), Err(Outcome::Corrupt));
    assert_eq!(rig.read(key(1), 100_000), Err(Outcome::Absent));
    assert!(rig.tier.facts().capacity < before.capacity);
}

#[test]
fn a_thousand_small_samples_cost_a_few_calls() {
    let dir = TempDir::new().unwrap();
    let storage = Failing::after(u64::MAX, u64::MAX, 0);
    let writes = Arc::clone(&storage.writes);
    let rig = Rig::over(&config(dir.path(), 64 << 20), Box::new(storage));
    for id in 0..5000 {
        assert_eq!(rig.write(key(id), &content(id, 1000)), Outcome::Ok);
        assert_eq!(rig.read(key(id), 1000).unwrap(), content(id, 1000), "served from memory");
    }
    rig.tier.close(GRACE);
    assert!(writes.load(Ordering::Relaxed) <= 8, "{writes:?} calls for 5000 samples");
    drop(rig);
    let rig = Rig::open(&config(dir.path(), 64 << 20));
    assert_eq!(rig.held.len(), 5000);
    assert_eq!(rig.read(key(4321), 1000).unwrap(), content(4321, 1000));
}

#[test]
fn reads_during_eviction_never_see_foreign_bytes() {
    let dir = TempDir::new().unwrap();
    let woken = Arc::new((Mutex::new(0_u32), Condvar::new()));
    let completions = {
        let woken = Arc::clone(&woken);
        Completions::new(move || {
            *woken.0.lock().unwrap() += 1;
            woken.1.notify_all();
        })
    };
    let (tier, _) = DiskTier::open(&config(dir.path(), 2 << 20), completions.clone()).unwrap();
    let len = |id: u64| if id.is_multiple_of(3) { 80_000 } else { 20_000 };
    let (mut reads, mut ended, mut done) = (HashMap::new(), 0, Vec::new());
    for turn in 0..2000_u64 {
        let id = turn * 31 % 50;
        let payload = Payload::from_vec(content(id, len(id)));
        tier.submit(Op::Write { ticket: Ticket(3 * turn), key: key(id), payload });
        let other = turn * 17 % 50;
        let (dest, scratch) = Dest::from_vec(vec![0; len(other)]);
        reads.insert(Ticket(3 * turn + 1), (other, scratch));
        tier.submit(Op::Read { ticket: Ticket(3 * turn + 1), key: key(other), offset: 0, dest });
        tier.submit(Op::Drop { ticket: Ticket(3 * turn + 2), key: key((turn * 13 + 5) % 50) });
        completions.drain(&mut done);
        // No more than 64 ends are outstanding: the bound that a driver keeps.
        while (turn + 1) * 3 - ended - done.len() as u64 > 64 {
            let guard = woken.0.lock().unwrap();
            drop(woken.1.wait_timeout(guard, Duration::from_millis(1)).unwrap());
            completions.drain(&mut done);
        }
        for done in done.drain(..) {
            ended += 1;
            if let Some((id, scratch)) = reads.remove(&done.ticket) {
                assert_ne!(done.outcome, Outcome::Corrupt, "a pinned place is not written");
                if done.outcome == Outcome::Ok {
                    assert_eq!(scratch.into_bytes().unwrap(), content(id, len(id)));
                }
            }
        }
    }
    tier.close(GRACE);
    completions.drain(&mut done);
    assert_eq!(ended + done.len() as u64, 6000, "every ticket ended once");
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, usize),
    Read(u64),
    Forget(u64),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![4 => 0_usize..6000, 1 => 60_000_usize..140_000];
    prop_oneof![
        5 => (0_u64..60, len).prop_map(|(id, len)| Step::Write(id, len)),
        4 => (0_u64..60).prop_map(Step::Read),
        3 => (0_u64..60).prop_map(Step::Forget),
        1 => Just(Step::Reopen),
    ]
}

/// Where to hurt a closed lane.
#[derive(Clone, Debug)]
enum Harm {
    Flip { file: prop::sample::Index, at: prop::sample::Index, with: u8 },
    Cut { file: prop::sample::Index, to: prop::sample::Index },
    Unlist,
}

fn harm() -> impl Strategy<Value = Harm> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        4 => (index(), index(), 1_u8..).prop_map(|(file, at, with)| Harm::Flip { file, at, with }),
        2 => (index(), index()).prop_map(|(file, to)| Harm::Cut { file, to }),
        1 => Just(Harm::Unlist),
    ]
}

fn hurt(dir: &Path, harm: &Harm) {
    let mut all = files(dir, "seg");
    all.extend(files(dir, "manifest"));
    let open = |path: &PathBuf| File::options().read(true).write(true).open(path).unwrap();
    match harm {
        _ if all.is_empty() => {}
        Harm::Flip { file, at, with } => {
            let file = open(file.get(&all));
            let at = at.index(usize::try_from(file.metadata().unwrap().len().max(1)).unwrap()) as u64;
            let mut byte = [0];
            if file.read_exact_at(&mut byte, at).is_ok() {
                file.write_all_at(&[byte[0] ^ with], at).unwrap();
            }
        }
        Harm::Cut { file, to } => {
            let file = open(file.get(&all));
            let len = usize::try_from(file.metadata().unwrap().len().max(1)).unwrap();
            file.set_len(to.index(len) as u64).unwrap();
        }
        Harm::Unlist => files(dir, "manifest").iter().for_each(|path| fs::remove_file(path).unwrap()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn it_behaves_like_a_map_with_a_budget(steps in prop::collection::vec(step(), 1..120)) {
        let dir = TempDir::new().unwrap();
        let config = config(dir.path(), 1 << 20);
        let mut rig = Rig::open(&config);
        let mut model: HashMap<u64, Vec<u8>> = HashMap::new();
        for step in steps {
            match step {
                Step::Write(id, len) => {
                    let len = model.get(&id).map_or(len, Vec::len);
                    match rig.write(key(id), &content(id, len)) {
                        Outcome::Ok => { model.insert(id, content(id, len)); }
                        outcome => prop_assert_eq!(outcome, Outcome::Full),
                    }
                }
                Step::Read(id) => {
                    let read = rig.read(key(id), model.get(&id).map_or(1, Vec::len));
                    prop_assert_eq!(read, model.get(&id).cloned().ok_or(Outcome::Absent));
                }
                Step::Forget(id) => {
                    let expected = if model.remove(&id).is_some() { Outcome::Ok } else { Outcome::Absent };
                    prop_assert_eq!(rig.forget(key(id)), expected);
                }
                Step::Reopen => {
                    drop(rig);
                    rig = Rig::open(&config);
                    let mut ids: Vec<u64> = model.keys().copied().collect();
                    ids.sort_unstable();
                    prop_assert_eq!(rig.ids(), ids);
                }
            }
        }
    }

    #[test]
    fn whatever_happens_to_its_files_it_opens_and_never_gives_wrong_bytes(
        samples in prop::collection::vec((0_u64..40, 0_usize..3000), 1..40),
        large in 0_u64..3,
        harms in prop::collection::vec(harm(), 1..6),
    ) {
        let dir = TempDir::new().unwrap();
        let config = config(dir.path(), 2 << 20);
        let rig = Rig::open(&config);
        let mut kept = HashMap::new();
        let samples = samples.into_iter().chain((0..large).map(|id| (100 + id, 90_000)));
        for (id, len) in samples {
            let len = *kept.entry(id).or_insert(len);
            prop_assert_eq!(rig.write(key(id), &content(id, len)), Outcome::Ok);
        }
        drop(rig);
        for harm in &harms {
            hurt(dir.path(), harm);
        }
        let rig = Rig::open(&config);
        for held in &rig.held {
            let len = usize::try_from(held.len.get()).unwrap();
            match rig.read(key(held.id.0), len) {
                Ok(bytes) => prop_assert_eq!(bytes, content(held.id.0, kept[&held.id.0])),
                Err(outcome) => prop_assert!(matches!(outcome, Outcome::Corrupt | Outcome::Absent)),
            }
        }
        for (id, len) in kept {
            prop_assert_eq!(rig.write(key(id), &content(id, len)), Outcome::Ok, "it goes on as a cache");
            prop_assert_eq!(rig.read(key(id), len), Ok(content(id, len)));
        }
    }
}
