// SPDX-License-Identifier: Apache-2.0
//! A compact array with one small number per read of a run, for policies that decide in advance.
//!
//! The meaning of the numbers (tier, source, mark) is the policy's.

use crate::loading::run::Setup;

/// Indexed by position among the reads of all epochs and ranks.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ByRead {
    bytes: Vec<u8>,
    /// A byte has two to the power of this many numbers, from its lowest bits on.
    per_byte: u32,
}

impl ByRead {
    /// Create an array of zeros for numbers below `below`; an error if it does not fit into memory.
    ///
    /// # Panics
    /// If a number could need more than a byte.
    pub(super) fn new(setup: &Setup, below: usize) -> Result<Self, String> {
        let per_byte = match below {
            0..=2 => 3,
            3..=4 => 2,
            5..=16 => 1,
            17..=256 => 0,
            _ => panic!("few tiers"),
        };
        let (reads, epochs) = (setup.epochs.places, setup.epochs.count as usize);
        let mut bytes = Vec::new();
        let count = reads.checked_mul(epochs).map(|reads| reads.div_ceil(1 << per_byte));
        if let Some(count) = count.filter(|&count| bytes.try_reserve_exact(count).is_ok()) {
            bytes.resize(count, 0);
            return Ok(Self { bytes, per_byte });
        }
        let bits = 8 >> per_byte;
        Err(format!("it stores {bits} bits per read, and {epochs} epochs of {reads} do not fit into memory"))
    }

    pub(super) fn get(&self, place: usize) -> u8 {
        let (byte, shift, mask) = self.find(place);
        self.bytes[byte] >> shift & mask
    }

    /// Set a number, which must be below `below`.
    pub(super) fn set(&mut self, place: usize, value: u8) {
        let (byte, shift, mask) = self.find(place);
        debug_assert_eq!(value & !mask, 0, "it does not fit");
        let byte = &mut self.bytes[byte];
        *byte = *byte & !(mask << shift) | value << shift;
    }

    /// The byte, the shift within it, and the mask of its bits.
    const fn find(&self, place: usize) -> (usize, usize, u8) {
        let bits = 8 >> self.per_byte;
        let nth = place & ((1 << self.per_byte) - 1);
        (place >> self.per_byte, nth * bits, u8::MAX >> (8 - bits))
    }
}

#[cfg(test)]
mod tests {
    use super::super::planned::tests::{scenario, setup};
    use super::*;

    #[test]
    fn every_read_has_its_own_number() {
        let setup = setup(scenario(101, 3, 4, 900));
        let reads = setup.epochs.places * 4;
        for (below, per_byte) in [(1, 8), (2, 8), (3, 4), (4, 4), (5, 2), (16, 2), (17, 1), (256, 1)] {
            let mut numbers = ByRead::new(&setup, below).unwrap();
            assert_eq!(numbers.bytes.len(), reads.div_ceil(per_byte), "below {below}");
            let number = |place: usize| u8::try_from(place * 7 % below).unwrap();
            // Set twice, so that the previous value leaves no trace.
            for shift in [3, 0] {
                (0..reads).for_each(|place| numbers.set(place, number(place + shift)));
            }
            assert!((0..reads).all(|place| numbers.get(place) == number(place)), "below {below}");
        }
    }
}
