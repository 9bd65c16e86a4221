// SPDX-License-Identifier: Apache-2.0
//! Sums of packets: `((g0 + g1) + g2) + ...`, one true division, one rounding.
//!
//! The slots decide which contributions are added when; this module only computes, so a benchmark can time it
//! alone. The result has the bits of a simple `PyTorch` loop over the ranks in order: 16-bit floats are summed in
//! f32 and rounded once, to nearest even. Integers never wrap in a mean: it is the exact sum, divided and rounded
//! to the nearest integer, ties to even. A single contribution that is not divided is returned unchanged in every
//! bit, so a broadcast is a sum of one.
//!
//! A NaN stays a NaN, and any NaN of a real sum becomes the quiet NaN of its dtype; infinities and -0.0 are
//! preserved.
//!
//! Accumulators and payloads belong to the caller, with any alignment (64 is fastest).
//!
//! The loops are compiled for two processor levels, and each call selects one. A wheel is built for the oldest
//! x86-64, which adds four floats at a time. Nearly every processor adds eight, and converts 16-bit floats several
//! times as fast. On Arm the baseline includes vectors. The oldest supported compiler knows all features used.

mod float;
mod plain;
mod prefetch;
#[cfg(test)]
mod tests;

use std::fmt;

use multiversion::multiversion;

use crate::Dtype;

/// The operation of a round on the contributions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Their sum, divided by the number of live ranks, as in `DistributedDataParallel`: a rank that did not use
    /// the tensor counts as a zero contribution. The server divides: a division before the sum would round twice,
    /// and a sum of f16 could overflow before a later one.
    Mean = 1,
    /// Their sum. Integers beyond their dtype wrap, as in torch. With one contribution it is an exact copy.
    Sum = 2,
}

impl Op {
    /// The divisor of a sum for `alive` live ranks.
    pub const fn divisor(self, alive: u32) -> u32 {
        match self {
            Self::Mean => alive,
            Self::Sum => 1,
        }
    }

    /// The code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The operation with a code, if there is one.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Mean),
            2 => Some(Self::Sum),
            _ => None,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mean => "mean",
            Self::Sum => "sum",
        })
    }
}

/// Bytes of one element during the sum: 16-bit floats use f32, integers twice their bits, which no world can
/// overflow, and the others their own dtype.
pub const fn accumulator_bytes(dtype: Dtype) -> usize {
    match dtype {
        Dtype::F32 | Dtype::Bf16 | Dtype::F16 => 4,
        Dtype::F64 | Dtype::I32 => 8,
        Dtype::I64 => 16,
    }
}

/// Bytes of an accumulator for a payload of `bytes` bytes of `dtype`.
pub const fn accumulator_len(dtype: Dtype, bytes: usize) -> usize {
    bytes / dtype.bytes() * accumulator_bytes(dtype)
}

/// Store `payload`, of `dtype`, as the first contribution in `acc`; its previous content is overwritten.
///
/// # Panics
/// If `payload` is not whole elements, or `acc` does not have [`accumulator_len`] bytes: a defect of the caller.
#[multiversion(targets("x86_64+avx2+f16c+bmi1+bmi2"))]
pub fn start(dtype: Dtype, acc: &mut [u8], payload: &[u8]) {
    check(dtype, acc, payload);
    plain::start(dtype, acc, payload);
}

/// Add `payload` to `acc`, element by element.
///
/// # Panics
/// As [`start`].
#[multiversion(targets("x86_64+avx2+f16c+bmi1+bmi2"))]
pub fn add(dtype: Dtype, acc: &mut [u8], payload: &[u8]) {
    check(dtype, acc, payload);
    plain::add(dtype, acc, payload);
}

/// [`add`] and [`finish`] in one pass with the same bits, for the last contribution if it is the second or a
/// later one. Returns the bytes of the result.
///
/// # Panics
/// As [`add`] and [`finish`].
#[multiversion(targets("x86_64+avx2+f16c+bmi1+bmi2"))]
pub fn add_last(dtype: Dtype, acc: &mut [u8], payload: &[u8], divisor: u32) -> usize {
    assert!(divisor > 0, "a sum has a divisor");
    check(dtype, acc, payload);
    plain::add_last(dtype, acc, payload, divisor);
    payload.len()
}

/// Turn the sum of `contributors` payloads into the result, in place: `acc` then begins with the sum divided by
/// `divisor`, in `dtype`, and the rest is unspecified. Returns the bytes of the result.
///
/// # Panics
/// If `contributors` or `divisor` is 0, or `acc` is not whole elements: a defect of the caller.
#[multiversion(targets("x86_64+avx2+f16c+bmi1+bmi2"))]
pub fn finish(dtype: Dtype, acc: &mut [u8], contributors: u32, divisor: u32) -> usize {
    assert!(contributors > 0 && divisor > 0, "a sum has a contributor, and a divisor");
    assert!(acc.len().is_multiple_of(accumulator_bytes(dtype)), "an accumulator holds whole elements");
    plain::finish(dtype, acc, contributors, divisor);
    acc.len() / accumulator_bytes(dtype) * dtype.bytes()
}

/// Convert elements of `wire` to f32 values of 4 bytes, for a rank that received a result in fewer bits. Other
/// dtypes are copied.
///
/// # Panics
/// If the lengths do not match: a defect of the caller.
#[multiversion(targets("x86_64+avx2+f16c+bmi1+bmi2"))]
pub fn widen(wire: Dtype, wide: &mut [u8], narrow: &[u8]) {
    check_narrowing(wire, wide.len(), narrow.len());
    plain::widen(wire, wide, narrow);
}

/// Convert f32 values to elements of `wire`, to nearest even, for a rank that pushes in fewer bits. Other dtypes
/// are copied.
///
/// # Panics
/// As [`widen`].
#[multiversion(targets("x86_64+avx2+f16c+bmi1+bmi2"))]
pub fn narrow(wire: Dtype, narrow: &mut [u8], wide: &[u8]) {
    check_narrowing(wire, wide.len(), narrow.len());
    plain::narrow(wire, narrow, wide);
}

fn check(dtype: Dtype, acc: &[u8], payload: &[u8]) {
    assert!(payload.len().is_multiple_of(dtype.bytes()), "a payload holds whole elements");
    assert_eq!(acc.len(), accumulator_len(dtype, payload.len()), "an accumulator fits its payload");
}

fn check_narrowing(wire: Dtype, wide: usize, narrow: usize) {
    assert!(narrow.is_multiple_of(wire.bytes()), "a payload holds whole elements");
    let factor = if matches!(wire, Dtype::Bf16 | Dtype::F16) { 2 } else { 1 };
    assert_eq!(wide, narrow * factor, "both sides hold the same elements");
}
