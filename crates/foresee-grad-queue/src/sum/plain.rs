// SPDX-License-Identifier: Apache-2.0
//! The loops over elements, written so that a compiler vectorizes them.
//!
//! `kernel` compiles them once per processor level; called directly, they run at the baseline. Bytes may have any
//! alignment; nothing is reinterpreted in place. Each element goes through the same operations in every version,
//! so the bits are the same. The caller, [`super`], checks all lengths.

#![expect(clippy::inline_always, reason = "each caller is compiled for another processor, and this with it")]

use super::float::{NAN_F32, NAN_F64, Rounding, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use super::prefetch;
use crate::Dtype;

/// Write the first contribution. Nothing is added to it, so -0.0 stays -0.0.
#[inline(always)]
pub(super) fn start(dtype: Dtype, acc: &mut [u8], payload: &[u8]) {
    match dtype {
        Dtype::F32 | Dtype::F64 => copy(acc, payload),
        Dtype::Bf16 | Dtype::F16 => widen(dtype, acc, payload),
        Dtype::I32 => convert_each(acc, payload, |p| i64::from(i32::from_le_bytes(p)).to_le_bytes()),
        Dtype::I64 => convert_each(acc, payload, |p| i128::from(i64::from_le_bytes(p)).to_le_bytes()),
    }
}

#[inline(always)]
fn copy(target: &mut [u8], source: &[u8]) {
    for (target, source) in target.chunks_mut(prefetch::BLOCK).zip(source.chunks(prefetch::BLOCK)) {
        // The accumulator is not cached either: it was last used two rounds ago.
        prefetch::ahead_of(source);
        prefetch::ahead_of(target);
        target.copy_from_slice(source);
    }
}

/// Add one more contribution.
#[inline(always)]
pub(super) fn add(dtype: Dtype, acc: &mut [u8], payload: &[u8]) {
    let float = |a, b: f32| (f32::from_le_bytes(a) + b).to_le_bytes();
    match dtype {
        Dtype::F32 => update_each(acc, payload, |a, p| float(a, f32::from_le_bytes(p))),
        Dtype::Bf16 => update_each(acc, payload, |a, p| float(a, bf16_to_f32(u16::from_le_bytes(p)))),
        Dtype::F16 => update_each(acc, payload, |a, p| float(a, f16_to_f32(u16::from_le_bytes(p)))),
        Dtype::F64 => {
            update_each(acc, payload, |a, p| (f64::from_le_bytes(a) + f64::from_le_bytes(p)).to_le_bytes());
        }
        Dtype::I32 => update_each(acc, payload, |a, p| {
            (i64::from_le_bytes(a) + i64::from(i32::from_le_bytes(p))).to_le_bytes()
        }),
        Dtype::I64 => update_each(acc, payload, |a, p| {
            (i128::from_le_bytes(a) + i128::from(i64::from_le_bytes(p))).to_le_bytes()
        }),
    }
}

/// Add the last of several contributions and divide, in one pass if the result is as wide as the sum.
#[inline(always)]
#[expect(clippy::cast_precision_loss, reason = "a world has at most 65535 ranks")]
pub(super) fn add_last(dtype: Dtype, acc: &mut [u8], payload: &[u8], divisor: u32) {
    let (by, by_wide) = (divisor as f32, f64::from(divisor));
    match dtype {
        Dtype::F32 => update_each(acc, payload, |a, p| {
            quotient_f32(f32::from_le_bytes(a) + f32::from_le_bytes(p), by).to_le_bytes()
        }),
        Dtype::F64 => update_each(acc, payload, |a, p| {
            quotient_f64(f64::from_le_bytes(a) + f64::from_le_bytes(p), by_wide).to_le_bytes()
        }),
        _ => {
            add(dtype, acc, payload);
            finish(dtype, acc, 2, divisor);
        }
    }
}

#[inline(always)]
fn quotient_f32(sum: f32, by: f32) -> u32 {
    let value = sum / by;
    if value.is_nan() { NAN_F32 } else { value.to_bits() }
}

#[inline(always)]
fn quotient_f64(sum: f64, by: f64) -> u64 {
    let value = sum / by;
    if value.is_nan() { NAN_F64 } else { value.to_bits() }
}

/// Divide integer sums, to the nearest, ties to even.
macro_rules! divide_integers {
    ($acc:expr, $divisor:expr, $wide:ty, $narrow:ty) => {{
        let by = <$wide>::from($divisor);
        halve::<{ size_of::<$wide>() }, { size_of::<$narrow>() }>($acc, 0, |sum| {
            let sum = <$wide>::from_le_bytes(sum);
            let (quotient, rest) = (sum.div_euclid(by), 2 * sum.rem_euclid(by));
            let up = rest > by || (rest == by && quotient & 1 == 1);
            ((quotient + <$wide>::from(up)) as $narrow).to_le_bytes()
        });
    }};
}

/// Divide, round once to `dtype`, and store the result at the front of `acc`.
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "a mean fits where its values did; a sum that is not divided wraps as torch's does"
)]
#[expect(clippy::cast_precision_loss, reason = "a world has at most 65535 ranks")]
pub(super) fn finish(dtype: Dtype, acc: &mut [u8], contributors: u32, divisor: u32) {
    let rounding = if contributors == 1 && divisor == 1 { Rounding::Exact } else { Rounding::Nearest };
    let exact = rounding == Rounding::Exact;
    let (by, by_wide) = (divisor as f32, f64::from(divisor));
    match dtype {
        Dtype::F32 | Dtype::F64 if exact => {}
        Dtype::F32 => {
            for element in acc.as_chunks_mut::<4>().0 {
                *element = quotient_f32(f32::from_le_bytes(*element), by).to_le_bytes();
            }
        }
        Dtype::F64 => {
            for element in acc.as_chunks_mut::<8>().0 {
                *element = quotient_f64(f64::from_le_bytes(*element), by_wide).to_le_bytes();
            }
        }
        Dtype::Bf16 if exact => halve_floats(acc, |value| f32_to_bf16(value, Rounding::Exact)),
        Dtype::Bf16 => halve_floats(acc, |value| f32_to_bf16(value / by, Rounding::Nearest)),
        Dtype::F16 if exact => halve_floats(acc, |value| f32_to_f16(value, Rounding::Exact)),
        Dtype::F16 => halve_floats(acc, |value| f32_to_f16(value / by, Rounding::Nearest)),
        Dtype::I32 => divide_integers!(acc, divisor, i64, i32),
        Dtype::I64 => divide_integers!(acc, divisor, i128, i64),
    }
}

/// Widen a 16-bit float to f32, exactly.
#[inline(always)]
pub(super) fn widen(dtype: Dtype, wide: &mut [u8], narrow: &[u8]) {
    match dtype {
        Dtype::Bf16 => convert_each(wide, narrow, |p| bf16_to_f32(u16::from_le_bytes(p)).to_le_bytes()),
        Dtype::F16 => convert_each(wide, narrow, |p| f16_to_f32(u16::from_le_bytes(p)).to_le_bytes()),
        Dtype::F32 | Dtype::F64 | Dtype::I32 | Dtype::I64 => wide.copy_from_slice(narrow),
    }
}

/// Round f32 to a 16-bit float, to nearest even.
#[inline(always)]
pub(super) fn narrow(dtype: Dtype, narrow: &mut [u8], wide: &[u8]) {
    let rounding = Rounding::Nearest;
    match dtype {
        Dtype::Bf16 => {
            convert_each(narrow, wide, |p| f32_to_bf16(f32::from_le_bytes(p), rounding).to_le_bytes());
        }
        Dtype::F16 => {
            convert_each(narrow, wide, |p| f32_to_f16(f32::from_le_bytes(p), rounding).to_le_bytes());
        }
        Dtype::F32 | Dtype::F64 | Dtype::I32 | Dtype::I64 => narrow.copy_from_slice(wide),
    }
}

/// Update each element of `target`, of `T` bytes, with the element of `source`, of `S` bytes, at the same index.
#[inline(always)]
fn update_each<const T: usize, const S: usize>(
    target: &mut [u8],
    source: &[u8],
    each: impl Fn([u8; T], [u8; S]) -> [u8; T],
) {
    let mut targets = target.chunks_exact_mut(prefetch::BLOCK / S * T);
    let mut sources = source.chunks_exact(prefetch::BLOCK);
    for (target, source) in targets.by_ref().zip(sources.by_ref()) {
        prefetch::ahead_of(source);
        update_block(target, source, &each);
    }
    update_block(targets.into_remainder(), sources.remainder(), &each);
}

#[inline(always)]
fn update_block<const T: usize, const S: usize>(
    target: &mut [u8],
    source: &[u8],
    each: &impl Fn([u8; T], [u8; S]) -> [u8; T],
) {
    for (target, source) in target.as_chunks_mut::<T>().0.iter_mut().zip(source.as_chunks::<S>().0) {
        *target = each(*target, *source);
    }
}

/// Set each element of `target` from the element of `source` at the same index.
#[inline(always)]
fn convert_each<const T: usize, const S: usize>(
    target: &mut [u8],
    source: &[u8],
    each: impl Fn([u8; S]) -> [u8; T],
) {
    update_each(target, source, |_, source| each(source));
}

/// Shrink f32 to 16 bits, in place, towards the front.
///
/// It copies thirty-two elements at a time: a write never reaches an unread element, and the compiler vectorizes
/// the loop over two separate arrays.
#[inline(always)]
fn halve_floats(bytes: &mut [u8], each: impl Fn(f32) -> u16) {
    const BLOCK: usize = 32;
    let narrow = |wide| each(f32::from_le_bytes(wide)).to_le_bytes();
    let blocks = bytes.len() / (4 * BLOCK);
    for at in 0..blocks {
        let (mut source, mut target) = ([0; 4 * BLOCK], [0; 2 * BLOCK]);
        source.copy_from_slice(&bytes[at * 4 * BLOCK..(at + 1) * 4 * BLOCK]);
        convert_each(&mut target, &source, narrow);
        bytes[at * 2 * BLOCK..(at + 1) * 2 * BLOCK].copy_from_slice(&target);
    }
    halve(bytes, blocks * BLOCK, narrow);
}

/// Shrink elements of `WIDE` bytes to `NARROW`, in place, towards the front, from element `first` on. This
/// suffices for integers, whose division has no vector form.
#[inline(always)]
fn halve<const WIDE: usize, const NARROW: usize>(
    bytes: &mut [u8],
    first: usize,
    each: impl Fn([u8; WIDE]) -> [u8; NARROW],
) {
    for index in first..bytes.len() / WIDE {
        let mut element = [0_u8; WIDE];
        element.copy_from_slice(&bytes[index * WIDE..(index + 1) * WIDE]);
        bytes[index * NARROW..(index + 1) * NARROW].copy_from_slice(&each(element));
    }
}
