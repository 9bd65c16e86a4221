// SPDX-License-Identifier: Apache-2.0
//! Conversions between f32 and 16-bit floats, one element at a time and without a branch.
//!
//! The compiler vectorizes the loops only if they contain no branches, and a library's conversions branch.
//! Subnormals are converted by integer and additive steps alone, because some processors multiply subnormals
//! slowly. Every result is the nearest value, ties to even. The handling of NaN payloads is an argument, see
//! [`Rounding`].

#![expect(clippy::inline_always, reason = "a call per element would leave no vectors")]

/// How a value is converted to fewer bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rounding {
    /// A sum: a NaN becomes the quiet NaN of its dtype. Processors and operand orders differ in the payload that
    /// an addition keeps, but the result's bits must not.
    Nearest,
    /// A value that was widened from this dtype: every bit is restored, including those of a NaN.
    Exact,
}

/// The quiet NaN that replaces any other.
pub(super) const NAN_F32: u32 = 0x7fc0_0000;
pub(super) const NAN_F64: u64 = 0x7ff8_0000_0000_0000;
pub(super) const NAN_BF16: u16 = 0x7fc0;
pub(super) const NAN_F16: u16 = 0x7e00;

#[inline(always)]
pub(super) const fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the upper half of 32 bits")]
pub(super) const fn f32_to_bf16(value: f32, rounding: Rounding) -> u16 {
    let bits = value.to_bits();
    // Half a unit of the dropped bits, minus one bit if the retained part is even: a tie rounds to even.
    let nearest = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let exact = bits >> 16;
    let nan = if matches!(rounding, Rounding::Exact) { exact } else { NAN_BF16 as u32 };
    (if value.is_nan() { nan } else { nearest }) as u16
}

/// Exponent bits of an f32 whose value is the smallest normal of f16, 2^-14.
const F16_NORMAL_MIN: u32 = 113 << 23;

#[inline(always)]
pub(super) const fn f16_to_f32(bits: u16) -> f32 {
    let sign = ((bits & 0x8000) as u32) << 16;
    let magnitude = (bits & 0x7fff) as u32;
    let shifted = magnitude << 13;
    // The exponent bias is 127 instead of 15; infinities and NaN move to the end of the range.
    let normal = shifted + (112 << 23);
    let special = shifted + (224 << 23);
    // A subnormal's bits become the fraction of 2^-14, which is then subtracted: exact, and never subnormal.
    let subnormal = (f32::from_bits(shifted + F16_NORMAL_MIN) - f32::from_bits(F16_NORMAL_MIN)).to_bits();
    let value = if magnitude >= 0x7c00 {
        special
    } else if magnitude < 0x0400 {
        subnormal
    } else {
        normal
    };
    f32::from_bits(value | sign)
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "each case is below 2^16")]
pub(super) const fn f32_to_f16(value: f32, rounding: Rounding) -> u16 {
    /// 2^16, the first power of two beyond f16; values below it that exceed f16 round to infinity.
    const TOO_LARGE: u32 = 143 << 23;
    const INFINITE: u32 = 255 << 23;
    /// 0.5: adding it rounds a value of f16's subnormal range to units of 2^-24, f16's smallest.
    const ALIGN: u32 = 126 << 23;
    let bits = value.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    let subnormal = (f32::from_bits(magnitude) + f32::from_bits(ALIGN)).to_bits().wrapping_sub(ALIGN);
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + odd) >> 13;
    let payload = 0x7c00 | ((magnitude >> 13) & 0x3ff);
    let nan = if matches!(rounding, Rounding::Exact) { payload | sign } else { NAN_F16 as u32 };
    (if magnitude > INFINITE {
        nan
    } else if magnitude >= TOO_LARGE {
        0x7c00 | sign
    } else if magnitude < F16_NORMAL_MIN {
        subnormal | sign
    } else {
        normal | sign
    }) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn every_16_bit_pattern_widens_as_in_the_library_and_is_restored() {
        for bits in 0..=u16::MAX {
            let (wide, theirs) = (f16_to_f32(bits), f16::from_bits(bits).to_f32());
            if theirs.is_nan() {
                assert!(wide.is_nan(), "{bits:#06x}");
            } else {
                assert_eq!(wide.to_bits(), theirs.to_bits(), "{bits:#06x}");
                assert_eq!(f32_to_f16(wide, Rounding::Nearest), bits);
            }
            assert_eq!(f32_to_f16(wide, Rounding::Exact), bits, "a lone value keeps its bits");
            let wide = bf16_to_f32(bits);
            assert_eq!(wide.to_bits(), u32::from(bits) << 16);
            assert_eq!(f32_to_bf16(wide, Rounding::Exact), bits);
        }
    }

    #[test]
    fn f32_rounds_to_nearest_even_as_the_library_does() {
        // Every exponent and sign, with mantissas around each rounding boundary.
        let mantissas = (0..23).flat_map(|bit| {
            let one = 1_u32 << bit;
            [one - 1, one, one + 1, 0x7f_ffff ^ one, 0x7f_ffff - one, one | one << 1, 0x55_5555 ^ one]
        });
        for mantissa in mantissas.chain([0, 0x7f_ffff]) {
            for top in 0..512_u32 {
                let value = f32::from_bits(top << 23 | mantissa & 0x7f_ffff);
                let (ours, ours16) =
                    (f32_to_bf16(value, Rounding::Nearest), f32_to_f16(value, Rounding::Nearest));
                if value.is_nan() {
                    assert_eq!((ours, ours16), (NAN_BF16, NAN_F16));
                } else {
                    assert_eq!(ours, bf16::from_f32(value).to_bits(), "{value:e}");
                    assert_eq!(ours16, f16::from_f32(value).to_bits(), "{value:e}");
                }
            }
        }
    }
}
