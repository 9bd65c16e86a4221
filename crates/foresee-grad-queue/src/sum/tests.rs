// SPDX-License-Identifier: Apache-2.0
//! Every compiled version of the loops against a scalar reference, bit by bit.

use foresee_testkit::property;
use half::{bf16, f16};
use proptest::prelude::*;

use super::{accumulator_len, float, plain};
use crate::{Dtype, sum};

/// One set of functions: `start`, `add`, `finish` and `add_last`.
#[derive(Clone, Copy, Debug)]
struct Path {
    name: &'static str,
    start: fn(Dtype, &mut [u8], &[u8]),
    add: fn(Dtype, &mut [u8], &[u8]),
    finish: fn(Dtype, &mut [u8], u32, u32),
    add_last: fn(Dtype, &mut [u8], &[u8], u32),
}

/// The baseline, the version that dispatch selects on this machine, and the same version called directly if it
/// can run.
fn paths() -> Vec<Path> {
    macro_rules! path {
        ($name:literal, $version:ident) => {
            Path {
                name: $name,
                start: $version::start,
                add: $version::add,
                finish: |dtype, acc, contributors, divisor| {
                    let _ = $version::finish(dtype, acc, contributors, divisor);
                },
                add_last: |dtype, acc, payload, divisor| {
                    let _ = $version::add_last(dtype, acc, payload, divisor);
                },
            }
        };
    }
    let mut paths = vec![path!("baseline", plain), path!("dispatched", sum)];
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        paths.push(path!("avx2", avx2));
    }
    paths
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{Dtype, plain};

    macro_rules! under_avx2 {
        ($name:ident($($argument:ident: $kind:ty),*)) => {
            pub(super) fn $name($($argument: $kind),*) {
                #[target_feature(enable = "avx2,f16c")]
                fn inner($($argument: $kind),*) {
                    plain::$name($($argument),*);
                }
                assert!(std::arch::is_x86_feature_detected!("avx2"));
                assert!(std::arch::is_x86_feature_detected!("f16c"));
                // SAFETY: the processor has both features, as asserted above.
                unsafe { inner($($argument),*) }
            }
        };
    }
    under_avx2!(start(dtype: Dtype, acc: &mut [u8], payload: &[u8]));
    under_avx2!(add(dtype: Dtype, acc: &mut [u8], payload: &[u8]));
    under_avx2!(finish(dtype: Dtype, acc: &mut [u8], contributors: u32, divisor: u32));
    under_avx2!(add_last(dtype: Dtype, acc: &mut [u8], payload: &[u8], divisor: u32));
}

/// `fused`: whether the last of several contributions is added and divided in one pass.
fn run(path: Path, dtype: Dtype, divisor: usize, payloads: &[Vec<u8>], shift: usize, fused: bool) -> Vec<u8> {
    let count = |count: usize| u32::try_from(count).unwrap();
    let bytes = payloads[0].len();
    // `shift` gives both sides odd addresses.
    let mut memory = vec![0xa5; shift + accumulator_len(dtype, bytes)];
    let acc = &mut memory[shift..];
    for (nth, payload) in payloads.iter().enumerate() {
        let mut moved = vec![0; shift];
        moved.extend_from_slice(payload);
        if nth == 0 {
            (path.start)(dtype, acc, &moved[shift..]);
        } else if fused && nth + 1 == payloads.len() {
            (path.add_last)(dtype, acc, &moved[shift..], count(divisor));
            return acc[..bytes].to_vec();
        } else {
            (path.add)(dtype, acc, &moved[shift..]);
        }
    }
    (path.finish)(dtype, acc, count(payloads.len()), count(divisor));
    acc[..bytes].to_vec()
}

/// A simple loop, one element at a time, with the conversions of a library.
fn reference(dtype: Dtype, divisor: usize, payloads: &[Vec<u8>]) -> Vec<u8> {
    if payloads.len() == 1 && divisor == 1 {
        return payloads[0].clone();
    }
    let width = dtype.bytes();
    let mut out = Vec::new();
    for at in (0..payloads[0].len()).step_by(width) {
        let bytes = |payload: &Vec<u8>| payload[at..at + width].to_vec();
        let elements = payloads.iter().map(bytes);
        match dtype {
            Dtype::F32 | Dtype::Bf16 | Dtype::F16 => {
                let values = elements.map(|e| match dtype {
                    Dtype::F32 => f32::from_le_bytes(e.try_into().unwrap()),
                    Dtype::Bf16 => bf16::from_le_bytes(e.try_into().unwrap()).to_f32(),
                    _ => f16::from_le_bytes(e.try_into().unwrap()).to_f32(),
                });
                let mean = values.reduce(|sum, value| sum + value).unwrap()
                    / f32::from(u16::try_from(divisor).unwrap());
                out.extend(match (dtype, mean.is_nan()) {
                    (Dtype::F32, true) => float::NAN_F32.to_le_bytes().to_vec(),
                    (Dtype::F32, false) => mean.to_le_bytes().to_vec(),
                    (Dtype::Bf16, true) => float::NAN_BF16.to_le_bytes().to_vec(),
                    (Dtype::Bf16, false) => bf16::from_f32(mean).to_le_bytes().to_vec(),
                    (_, true) => float::NAN_F16.to_le_bytes().to_vec(),
                    (_, false) => f16::from_f32(mean).to_le_bytes().to_vec(),
                });
            }
            Dtype::F64 => {
                let values = elements.map(|e| f64::from_le_bytes(e.try_into().unwrap()));
                let mean = values.reduce(|sum, value| sum + value).unwrap()
                    / f64::from(u16::try_from(divisor).unwrap());
                let bits = if mean.is_nan() { float::NAN_F64 } else { mean.to_bits() };
                out.extend(bits.to_le_bytes());
            }
            Dtype::I32 | Dtype::I64 => {
                let sum: i128 = elements
                    .map(|e| match dtype {
                        Dtype::I32 => i128::from(i32::from_le_bytes(e.try_into().unwrap())),
                        _ => i128::from(i64::from_le_bytes(e.try_into().unwrap())),
                    })
                    .sum();
                let by = i128::try_from(divisor).unwrap();
                let floor = sum.div_euclid(by);
                // The nearer neighbour, or the even one of a tie.
                let nearest = [floor, floor + 1]
                    .into_iter()
                    .min_by_key(|candidate| ((candidate * by - sum).abs(), candidate.rem_euclid(2)))
                    .unwrap();
                out.extend(&nearest.to_le_bytes()[..width]);
            }
        }
    }
    out
}

/// Random bit patterns, with a fraction of special values.
fn element() -> impl Strategy<Value = u64> {
    let special = prop::sample::select(vec![
        0x0000_0000_0000_0000,
        0x8000_8000_8000_8000, // -0.0 of the 16-bit dtypes; a subnormal of the others
        0x8000_0000_8000_0000, // -0.0 of f32
        0x8000_0000_0000_0000, // -0.0 of f64
        0x7f80_0000_7f80_0000, // infinity of f32 and bf16
        0xff80_0000_ff80_0000,
        0x7ff0_0000_0000_0000, // infinity of f64
        0x7c00_fc00_7c00_fc00, // infinities of f16
        0x7f80_0001_7f80_0001, // a signalling NaN
        0x7fff_ffff_ffff_ffff,
        0x0001_0001_0001_0001,
        0x0080_0000_007f_ffff,
        0x0400_03ff_0400_03ff,
    ]);
    // Values of similar magnitude, so that sums cancel and ties occur.
    let tame = any::<u64>().prop_map(|bits| bits & 0x83ff_83ff_83ff_83ff | 0x3c00_3c00_3c00_3c00);
    prop_oneof![3 => any::<u64>(), 1 => special, 3 => tame]
}

fn payloads() -> impl Strategy<Value = Vec<Vec<u64>>> {
    (1..=5_usize, 0..70_usize)
        .prop_flat_map(|(ranks, len)| prop::collection::vec(prop::collection::vec(element(), len), ranks))
}

proptest! {
    #![proptest_config(property(2_000))]

    #[test]
    fn every_version_has_the_bits_of_the_reference_loop(
        payloads in payloads(), code in 1..=6_u8, absent in 0..3_usize, mean in any::<bool>(), shift in 0..4_usize, cut in 0..8_usize,
    ) {
        let dtype = Dtype::from_code(code).unwrap();
        let divisor = if mean { payloads.len() + absent } else { 1 };
        let payloads: Vec<Vec<u8>> = payloads
            .iter()
            .map(|words| {
                let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                bytes.truncate((bytes.len() - cut.min(bytes.len())) / dtype.bytes() * dtype.bytes());
                bytes
            })
            .collect();
        let expected = reference(dtype, divisor, &payloads);
        for (path, fused) in paths().into_iter().flat_map(|path| [(path, false), (path, true)]) {
            let result = run(path, dtype, divisor, &payloads, shift, fused);
            prop_assert_eq!(&result, &expected, "{} {}", path.name, dtype);
        }
    }
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn an_accumulator_is_at_most_twice_as_wide() {
    for dtype in Dtype::ALL {
        assert!(dtype.bytes() <= super::accumulator_bytes(dtype));
        assert!(super::accumulator_bytes(dtype) <= 2 * dtype.bytes());
    }
}

#[test]
fn rank_order_decides_the_bits() {
    let mean = |order: [f32; 3]| {
        let payloads = order.map(|value| f32s(&[value])).to_vec();
        f32::from_le_bytes(run(paths()[1], Dtype::F32, 3, &payloads, 0, true).try_into().unwrap())
    };
    assert_eq!(mean([1e8, -1e8, 1.0]).to_bits(), (1.0_f32 / 3.0).to_bits());
    assert_eq!(mean([1.0, 1e8, -1e8]).to_bits(), 0.0_f32.to_bits());
}

#[test]
fn a_mean_of_half_floats_neither_overflows_nor_rounds_twice() {
    let largest = f16::MAX.to_le_bytes().to_vec();
    let mean = run(paths()[1], Dtype::F16, 3, &[largest.clone(), largest.clone(), largest.clone()], 0, true);
    assert_eq!(mean, largest);
    let sum = run(paths()[1], Dtype::F16, 1, &[largest.clone(), largest], 0, true);
    assert_eq!(sum, f16::INFINITY.to_le_bytes());
}

#[test]
fn minus_zero_is_preserved_and_adds_to_plus_zero_as_in_ieee_754() {
    let minus = f32s(&[-0.0]);
    let mean = |payloads: &[Vec<u8>]| run(paths()[1], Dtype::F32, payloads.len(), payloads, 0, true);
    assert_eq!(mean(&[minus.clone(), minus.clone()]), minus);
    assert_eq!(mean(&[minus.clone(), f32s(&[0.0])]), f32s(&[0.0]));
    assert_eq!(mean(std::slice::from_ref(&minus)), minus);
}

#[test]
fn integers_never_wrap_in_a_mean() {
    let i64s = |value: i64| value.to_le_bytes().to_vec();
    let mean = run(paths()[1], Dtype::I64, 3, &[i64s(i64::MAX), i64s(i64::MAX), i64s(i64::MAX - 3)], 0, true);
    assert_eq!(mean, i64s(i64::MAX - 1));
    let sum = run(paths()[1], Dtype::I64, 1, &[i64s(i64::MAX), i64s(1)], 0, true);
    assert_eq!(sum, i64s(i64::MIN));
}

#[test]
fn widening_is_exact_and_narrowing_rounds_to_even() {
    let wide = f32s(&[1.0, -2.5, 65520.0, f32::NAN]);
    let mut narrow = vec![0; 8];
    super::narrow(Dtype::F16, &mut narrow, &wide);
    let halves: Vec<u16> = narrow.as_chunks::<2>().0.iter().map(|e| u16::from_le_bytes(*e)).collect();
    assert_eq!(halves, [0x3c00, 0xc100, 0x7c00, 0x7e00]);
    let mut back = vec![0; 16];
    super::widen(Dtype::F16, &mut back, &narrow);
    assert_eq!(back[..8], wide[..8]);
    super::narrow(Dtype::F32, &mut back, &wide);
    assert_eq!(back, wide);
}

#[test]
#[should_panic(expected = "an accumulator fits its payload")]
fn a_wrong_length_is_a_defect_of_the_caller() {
    super::add(Dtype::Bf16, &mut [0; 4], &[0; 4]);
}
