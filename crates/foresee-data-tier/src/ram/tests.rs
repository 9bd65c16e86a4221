// SPDX-License-Identifier: Apache-2.0
//! The RAM tier against its guarantees, against a map, and with several threads.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use foresee_testkit::property;
use foresee_units::{GAMMA, SampleId};
use proptest::prelude::*;

use super::*;
use crate::conformance;
use crate::op::{Fingerprint, TagHash};

fn tier(capacity: u64) -> RamTier {
    RamTier::new(Bytes::new(capacity), Completions::new(|| ())).unwrap()
}

fn key(id: u64) -> SampleKey {
    SampleKey { fingerprint: Fingerprint([1; 16]), id: SampleId(id), tag: TagHash(id) }
}

/// Bytes that differ from sample to sample.
fn content(id: u64, len: usize) -> Vec<u8> {
    let seed = id.wrapping_mul(GAMMA).to_le_bytes();
    seed.into_iter().cycle().take(len).collect()
}

#[test]
fn the_ram_tier_has_every_guarantee_of_a_tier() {
    conformance::check_writes(|completions, capacity| Arc::new(RamTier::new(capacity, completions).unwrap()));
}

#[test]
fn a_pinned_sample_outlives_its_eviction_its_replacement_and_the_tier() {
    let tier = tier(1024);
    assert_eq!(tier.write_from(&key(0), &content(0, 512)), ReadOutcome::Ok);
    let pin = tier.pin(&key(0)).unwrap();
    assert_eq!(tier.drop_key(&key(0)), ReadOutcome::Ok);
    assert!(tier.pin(&key(0)).is_none(), "it is no longer found");
    assert_eq!(tier.pinned_bytes(), Bytes::new(512));
    assert_eq!(tier.write_from(&key(1), &content(1, 1024)), ReadOutcome::Full);
    assert_eq!(tier.write_from(&key(2), &content(2, 512)), ReadOutcome::Ok);
    assert_eq!(*pin, content(0, 512));
    drop(pin);
    assert_eq!(tier.pinned_bytes(), Bytes::ZERO);
    assert_eq!(tier.write_from(&key(3), &content(3, 512)), ReadOutcome::Ok);
    let last = tier.pin(&key(3)).unwrap();
    tier.close(Nanos::ZERO);
    drop(tier);
    assert_eq!(*last, content(3, 512));
}

#[test]
fn a_sample_of_another_length_than_requested_is_dropped() {
    let tier = tier(4096);
    assert_eq!(tier.write_from(&key(0), b"four"), ReadOutcome::Ok);
    assert_eq!(tier.read_into(&key(0), &mut [0; 3]), ReadOutcome::Corrupt);
    assert_eq!(tier.read_into(&key(0), &mut [0; 4]), ReadOutcome::Absent);
}

#[test]
fn a_tier_without_capacity_stores_empty_samples() {
    let tier = tier(63);
    assert_eq!(tier.write_from(&key(0), b"x"), ReadOutcome::Full);
    assert_eq!(tier.write_from(&key(1), b""), ReadOutcome::Ok);
    assert_eq!(tier.read_into(&key(1), &mut []), ReadOutcome::Ok);
    assert_eq!(tier.facts().capacity, Bytes::ZERO);
}

#[test]
fn a_slab_beyond_the_address_space_is_an_error_that_names_its_size() {
    let error = RamTier::new(Bytes::new(u64::MAX / 2), Completions::new(|| ())).unwrap_err();
    assert!(error.to_string().starts_with("cannot map 9223372.0 TB"), "{error}");
}

#[test]
fn tables_take_fifty_bytes_per_small_sample() {
    let tier = tier(20 << 20);
    (0..100_000).for_each(|id| assert_eq!(tier.write_from(&key(id), &content(id, 100)), ReadOutcome::Ok));
    let each = tier.shared.state().slab.memory() / 100_000;
    assert!(each <= 64, "{each} bytes of tables for each sample");
    let fragmentation = || tier.shared.state().slab.fragmentation();
    assert!(fragmentation().abs() < f64::EPSILON, "filled in order, the rest is one extent");
    (0..100_000).step_by(2).for_each(|id| assert_eq!(tier.drop_key(&key(id)), ReadOutcome::Ok));
    assert!(fragmentation() > 0.3, "every second sample gone: {}", fragmentation());
}

#[test]
fn pins_during_evictions_by_other_threads_never_see_bytes_of_another_sample() {
    let tier = tier(64 << 10);
    let stop = AtomicBool::new(false);
    let len = |id: u64| usize::try_from(100 + id % 7 * 1500).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..2_u64 {
            let (tier, stop) = (&tier, &stop);
            scope.spawn(move || {
                for turn in 0..3_000_u64 {
                    let id = (turn * 31 + writer * 17) % 40;
                    let outcome = tier.write_from(&key(id), &content(id, len(id)));
                    if outcome == ReadOutcome::Full {
                        tier.drop_key(&key((id * 3 + turn) % 40));
                    }
                }
                stop.store(true, Ordering::Relaxed);
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let pins: Vec<_> = (0..40).map(|id| tier.pin(&key(id))).collect();
                    for (id, pin) in (0..).zip(pins) {
                        assert!(pin.is_none_or(|pin| *pin == content(id, len(id))), "the bytes of {id}");
                    }
                }
            });
        }
    });
    (0..40).for_each(|id| assert!(matches!(tier.drop_key(&key(id)), ReadOutcome::Ok | ReadOutcome::Absent)));
    assert_eq!((tier.facts().used, tier.pinned_bytes()), (Bytes::ZERO, Bytes::ZERO));
    assert_eq!(
        tier.write_from(&key(0), &vec![1; 64 << 10]),
        ReadOutcome::Ok,
        "all space is one extent again"
    );
}

#[derive(Clone, Debug)]
enum Step {
    Write { id: u64, version: u64, len: usize },
    Read { id: u64, version: u64 },
    Forget { id: u64, version: u64 },
    Pin { id: u64, version: u64 },
    Unpin { nth: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let (id, version) = (0_u64..12, 0_u64..2);
    prop_oneof![
        3 => (id.clone(), version.clone(), 0_usize..3000)
            .prop_map(|(id, version, len)| Step::Write { id, version, len: len + usize::try_from(version).unwrap() }),
        2 => (id.clone(), version.clone()).prop_map(|(id, version)| Step::Read { id, version }),
        2 => (id.clone(), version.clone()).prop_map(|(id, version)| Step::Forget { id, version }),
        1 => (id, version).prop_map(|(id, version)| Step::Pin { id, version }),
        1 => any::<usize>().prop_map(|nth| Step::Unpin { nth }),
    ]
}

proptest! {
    #![proptest_config(property(256))]

    #[test]
    fn the_tier_behaves_like_a_map_with_a_capacity(steps in prop::collection::vec(step(), 1..200)) {
        const CAPACITY: u64 = 12 << 10;
        let tier = tier(CAPACITY);
        let versioned = |id, version| SampleKey { tag: TagHash(version), ..key(id) };
        let mut model: HashMap<u64, (u64, Vec<u8>)> = HashMap::new();
        let mut pins: Vec<(RamPin, Vec<u8>)> = Vec::new();
        for step in steps {
            match step {
                Step::Write { id, version, len } => {
                    // Equal keys mean equal bytes: one length per (id, version) while it is stored.
                    let len = match model.get(&id) {
                        Some((held, bytes)) if *held == version => bytes.len(),
                        _ => len,
                    };
                    let bytes = content(id ^ version << 8, len);
                    match tier.write_from(&versioned(id, version), &bytes) {
                        ReadOutcome::Ok => { model.insert(id, (version, bytes)); }
                        outcome => prop_assert_eq!(outcome, ReadOutcome::Full),
                    }
                }
                Step::Read { id, version } => {
                    let held = model.get(&id).filter(|(held, _)| *held == version);
                    let mut bytes = vec![0; held.map_or(1, |(_, bytes)| bytes.len())];
                    let outcome = tier.read_into(&versioned(id, version), &mut bytes);
                    let read = (outcome == ReadOutcome::Ok).then_some(&bytes).ok_or(outcome);
                    prop_assert_eq!(read, held.map(|(_, expected)| expected).ok_or(ReadOutcome::Absent));
                }
                Step::Forget { id, version } => {
                    let held = model.get(&id).is_some_and(|(held, _)| *held == version);
                    let expected = if held { ReadOutcome::Ok } else { ReadOutcome::Absent };
                    prop_assert_eq!(tier.drop_key(&versioned(id, version)), expected);
                    if held { model.remove(&id); }
                }
                Step::Pin { id, version } => {
                    if let Some(pin) = tier.pin(&versioned(id, version)) {
                        pins.push((pin, model[&id].1.clone()));
                    }
                }
                Step::Unpin { nth } => {
                    if !pins.is_empty() { pins.swap_remove(nth % pins.len()); }
                }
            }
            let held: u64 = model.values().map(|(_, bytes)| (bytes.len() as u64).next_multiple_of(64)).sum();
            prop_assert_eq!(tier.facts().used.get(), held + tier.pinned_bytes().get());
            prop_assert!(tier.facts().used.get() <= CAPACITY);
            prop_assert_eq!(tier.shared.state().slab.entries().count(), model.len());
            for (pin, expected) in &pins {
                prop_assert_eq!(&pin[..], &expected[..]);
            }
        }
    }
}
