// SPDX-License-Identifier: Apache-2.0
//! The directory's budget: data sets that change, several runs at once, and folders of the earlier format.

use super::*;

const OTHER: Fingerprint = Fingerprint([8; 16]);
const MIB: u64 = 1 << 20;

/// The origin of [`Numbered`], with another version of sample 7.
#[derive(Debug)]
struct Changed;

impl Entries for Changed {
    fn count(&self) -> u64 {
        100
    }

    fn key(&self, id: SampleId) -> SampleKey {
        let tag = if id.0 == 7 { TagHash(999) } else { key(id.0).tag };
        SampleKey { fingerprint: OTHER, id, tag }
    }

    fn entry(&self, key: &SampleKey) -> EntryKey {
        Numbered { fingerprint: OTHER }.entry(key)
    }
}

/// The same origin with other objects.
#[derive(Debug)]
struct Replaced;

impl Entries for Replaced {
    fn count(&self) -> u64 {
        1000
    }

    fn key(&self, id: SampleId) -> SampleKey {
        SampleKey { fingerprint: OTHER, ..key(id.0) }
    }

    fn entry(&self, key: &SampleKey) -> EntryKey {
        EntryKey(u128::from(key.id.0 + 1_000_000).to_be_bytes())
    }
}

/// Fill a tier with samples of 100,000 bytes; return how many it took.
fn fill(rig: &Rig, fingerprint: Fingerprint, first: u64) -> u64 {
    let key = |id| SampleKey { fingerprint, ..key(id) };
    (first..first + 1000)
        .take_while(|&id| rig.write(key(id), &content(id, 100_000)) == ReadOutcome::Ok)
        .count() as u64
}

#[test]
fn successive_data_sets_never_exceed_the_budget_of_the_directory() {
    let dir = TempDir::new().unwrap();
    for nth in 0..5 {
        let set = Fingerprint([nth; 16]);
        let rig = Rig::open(&config_of(dir.path(), 8 * MIB, &format!("/data/{nth}"), set));
        assert!(fill(&rig, set, 0) > 60, "older data are evicted");
        rig.tier.close(GRACE);
        assert!(blocks(dir.path()) <= 8 * MIB, "{} after {nth}", blocks(dir.path()));
    }
    let last = Rig::open(&config_of(dir.path(), 8 * MIB, "/data/4", Fingerprint([4; 16])));
    assert!(last.cached.len() > 60, "the newest data set is still there: {}", last.cached.len());
}

#[test]
fn concurrent_runs_share_the_budget_of_the_directory() {
    let dir = TempDir::new().unwrap();
    let sets = [1, 2, 3].map(|nth| Fingerprint([nth; 16]));
    let uri = |set: Fingerprint| format!("/data/{}", set.0[0]);
    let rigs = sets.map(|set| Rig::open(&config_of(dir.path(), 24 * MIB, &uri(set), set)));
    let taken: Vec<u64> = rigs.iter().zip(sets).map(|(rig, set)| fill(rig, set, 0)).collect();
    assert!(blocks(dir.path()) <= 24 * MIB, "{}", blocks(dir.path()));
    // Three shares of 8 MiB: the first tier opened alone, but grew after the others had opened.
    assert!(taken.iter().all(|&taken| taken > 50), "{taken:?}");
    for (rig, set) in rigs.iter().zip(sets) {
        let key = SampleKey { fingerprint: set, ..key(0) };
        assert_eq!(rig.read(key, 100_000).unwrap(), content(0, 100_000), "a live run's data stay");
    }
}

#[test]
fn one_changed_sample_leaves_all_others_in_the_cache() {
    let dir = TempDir::new().unwrap();
    let rig = Rig::open(&config(dir.path(), 16 * MIB));
    (0..100).for_each(|id| assert_eq!(rig.write(key(id), &content(id, 9_000)), ReadOutcome::Ok));
    drop(rig);

    let changed =
        DiskConfig { entries: Arc::new(Changed), fingerprint: OTHER, ..config(dir.path(), 16 * MIB) };
    let rig = Rig::open(&changed);
    let expected: Vec<u64> = (0..100).filter(|&id| id != 7).collect();
    assert_eq!(rig.ids(), expected);
    let sample = Changed.key(SampleId(50));
    assert_eq!(rig.read(sample, 9_000).unwrap(), content(50, 9_000));
    drop(rig);
    let rig = Rig::open(&config(dir.path(), 16 * MIB));
    assert_eq!(
        rig.cached.len(),
        100,
        "entries that the other version did not need stay while there is space"
    );
}

#[test]
fn unneeded_entries_are_evicted_for_needed_ones() {
    let dir = TempDir::new().unwrap();
    let rig = Rig::open(&config(dir.path(), 8 * MIB));
    let taken = fill(&rig, SET, 0);
    drop(rig);
    // The same origin lists other samples now, so no old one is needed.
    let rig = Rig::open(&DiskConfig {
        fingerprint: OTHER,
        entries: Arc::new(Replaced),
        ..config(dir.path(), 8 * MIB)
    });
    assert!(rig.cached.is_empty());
    assert!(fill(&rig, OTHER, 0) >= taken - 1);
    assert!(blocks(dir.path()) <= 8 * MIB);
}

#[test]
fn folders_of_format_version_one_count_and_are_evicted_first() {
    let dir = TempDir::new().unwrap();
    let old = dir.path().join("0123456789abcdef0123456789abcdef/lane-0");
    fs::create_dir_all(&old).unwrap();
    fs::write(old.join("00000000.seg"), vec![1; 6 << 20]).unwrap();
    fs::write(old.join("lock"), b"").unwrap();
    fs::write(dir.path().join("a-file-of-the-user"), b"stays").unwrap();
    let neighbour = Rig::open(&config_of(dir.path(), 8 * MIB, "/data/neighbour", OTHER));
    assert_eq!(fill(&neighbour, OTHER, 0).min(10), 10);
    drop(neighbour);
    assert!(!old.exists(), "it left when its bytes were needed");
    assert!(dir.path().join("a-file-of-the-user").exists());
    assert!(blocks(dir.path()) <= 8 * MIB);
}

#[test]
fn a_folder_of_format_version_one_in_use_is_left_alone() {
    let dir = TempDir::new().unwrap();
    let old = dir.path().join("0123456789abcdef0123456789abcdef/lane-0");
    fs::create_dir_all(&old).unwrap();
    fs::write(old.join("00000000.seg"), vec![1; 6 << 20]).unwrap();
    let lock = fs::File::create(old.join("lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let rig = Rig::open(&config(dir.path(), 8 * MIB));
    let taken = fill(&rig, SET, 0);
    assert!(taken < 25 && old.join("00000000.seg").exists(), "{taken}");
    assert!(blocks(dir.path()) <= 8 * MIB);
}

#[test]
fn a_smaller_budget_evicts_other_data_sets_at_the_next_start() {
    let dir = TempDir::new().unwrap();
    let rig = Rig::open(&config_of(dir.path(), 16 * MIB, "/data/other", OTHER));
    fill(&rig, OTHER, 0);
    drop(rig);
    let rig = Rig::open(&config(dir.path(), 4 * MIB));
    assert!(blocks(dir.path()) <= 4 * MIB, "{}", blocks(dir.path()));
    drop(rig);
}
