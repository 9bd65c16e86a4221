// SPDX-License-Identifier: Apache-2.0
//! Random operations compared with a map, and random damage to the files.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use foresee_testkit::property;
use proptest::prelude::*;

use super::*;

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

/// Damage to a closed partition.
#[derive(Clone, Debug)]
enum Damage {
    Flip { file: prop::sample::Index, at: prop::sample::Index, with: u8 },
    Cut { file: prop::sample::Index, to: prop::sample::Index },
    Unlist,
}

fn damage() -> impl Strategy<Value = Damage> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        4 => (index(), index(), 1_u8..).prop_map(|(file, at, with)| Damage::Flip { file, at, with }),
        2 => (index(), index()).prop_map(|(file, to)| Damage::Cut { file, to }),
        1 => Just(Damage::Unlist),
    ]
}

fn apply(dir: &Path, damage: &Damage) {
    let mut all = files(dir, "seg");
    all.extend(files(dir, "manifest"));
    let open = |path: &PathBuf| File::options().read(true).write(true).open(path).unwrap();
    match damage {
        _ if all.is_empty() => {}
        Damage::Flip { file, at, with } => {
            let file = open(file.get(&all));
            let at = at.index(usize::try_from(file.metadata().unwrap().len().max(1)).unwrap()) as u64;
            let mut byte = [0];
            if file.read_exact_at(&mut byte, at).is_ok() {
                file.write_all_at(&[byte[0] ^ with], at).unwrap();
            }
        }
        Damage::Cut { file, to } => {
            let file = open(file.get(&all));
            let len = usize::try_from(file.metadata().unwrap().len().max(1)).unwrap();
            file.set_len(to.index(len) as u64).unwrap();
        }
        Damage::Unlist => files(dir, "manifest").iter().for_each(|path| fs::remove_file(path).unwrap()),
    }
}

proptest! {
    #![proptest_config(property(24))]

    #[test]
    fn the_disk_tier_behaves_like_a_map_with_a_capacity(steps in prop::collection::vec(step(), 1..120)) {
        let dir = TempDir::new().unwrap();
        let config = config(dir.path(), 1 << 20);
        let mut rig = Rig::open(&config);
        let mut model: HashMap<u64, Vec<u8>> = HashMap::new();
        for step in steps {
            match step {
                Step::Write(id, len) => {
                    let len = model.get(&id).map_or(len, Vec::len);
                    match rig.write(key(id), &content(id, len)) {
                        ReadOutcome::Ok => { model.insert(id, content(id, len)); }
                        outcome => prop_assert_eq!(outcome, ReadOutcome::Full),
                    }
                }
                Step::Read(id) => {
                    let read = rig.read(key(id), model.get(&id).map_or(1, Vec::len));
                    prop_assert_eq!(read, model.get(&id).cloned().ok_or(ReadOutcome::Absent));
                }
                Step::Forget(id) => {
                    let expected = if model.remove(&id).is_some() { ReadOutcome::Ok } else { ReadOutcome::Absent };
                    prop_assert_eq!(rig.drop_sample(key(id)), expected);
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
    fn a_tier_opens_damaged_files_and_never_returns_wrong_bytes(
        samples in prop::collection::vec((0_u64..40, 0_usize..3000), 1..40),
        large in 0_u64..3,
        damages in prop::collection::vec(damage(), 1..6),
    ) {
        let dir = TempDir::new().unwrap();
        let config = config(dir.path(), 2 << 20);
        let rig = Rig::open(&config);
        let mut kept = HashMap::new();
        let samples = samples.into_iter().chain((0..large).map(|id| (100 + id, 90_000)));
        for (id, len) in samples {
            let len = *kept.entry(id).or_insert(len);
            prop_assert_eq!(rig.write(key(id), &content(id, len)), ReadOutcome::Ok);
        }
        drop(rig);
        for damage in &damages {
            apply(dir.path(), damage);
        }
        let rig = Rig::open(&config);
        for cached in &rig.cached {
            let len = usize::try_from(cached.len.get()).unwrap();
            match rig.read(key(cached.id.0), len) {
                Ok(bytes) => prop_assert_eq!(bytes, content(cached.id.0, kept[&cached.id.0])),
                Err(outcome) => prop_assert!(matches!(outcome, ReadOutcome::Corrupt | ReadOutcome::Absent)),
            }
        }
        for (id, len) in kept {
            prop_assert_eq!(rig.write(key(id), &content(id, len)), ReadOutcome::Ok, "it continues as a cache");
            prop_assert_eq!(rig.read(key(id), len), Ok(content(id, len)));
        }
    }
}
