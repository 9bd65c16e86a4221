// SPDX-License-Identifier: Apache-2.0
//! The finaliser of splitmix64, shared by the keyed permutation and by the audit.
//!
//! Separate and frozen: two saved meanings hang on these constants, `keyed-1` and `audit-1`.
//! Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014, with Stafford's
//! variant 13 of the constants.

/// What splitmix64 adds between two words: 2^64 divided by the golden ratio, made odd.
pub(crate) const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// A bijection of 64 bits after which no input bit is recognisable.
pub(crate) const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_from_zero_is_the_published_one() {
        let words = [1, 2, 3].map(|i: u64| mix(GAMMA.wrapping_mul(i)));
        assert_eq!(words, [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4, 0x06C4_5D18_8009_454F]);
    }
}
