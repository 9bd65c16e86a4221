// SPDX-License-Identifier: Apache-2.0
//! Sets of small numbers as bits of 64-bit words, bit 0 of word 0 first.

/// Words for the numbers below `count`, without any of them.
pub(crate) fn empty(count: u32) -> Box<[u64]> {
    vec![0; count.div_ceil(64) as usize].into()
}

/// Add a number, which must fit the words; return whether it was absent before.
pub(crate) fn insert(words: &mut [u64], number: u32) -> bool {
    let word = &mut words[(number / 64) as usize];
    let before = *word;
    *word |= 1 << (number % 64);
    before != *word
}

/// Remove a number, which must fit the words.
pub(crate) fn remove(words: &mut [u64], number: u32) {
    words[(number / 64) as usize] &= !(1 << (number % 64));
}

/// Whether the set has a number; false beyond the words.
pub(crate) fn contains(words: &[u64], number: u32) -> bool {
    words.get((number / 64) as usize).is_some_and(|word| word >> (number % 64) & 1 == 1)
}

pub(crate) fn count(words: &[u64]) -> u32 {
    words.iter().map(|word| word.count_ones()).sum()
}

/// The numbers of the set, ascending.
pub(crate) fn iter(words: &[u64]) -> impl Iterator<Item = u32> + '_ {
    (0_u32..).zip(words).flat_map(|(index, word)| {
        let mut left = *word;
        std::iter::from_fn(move || {
            let bit = left.trailing_zeros();
            left &= left.wrapping_sub(1);
            (bit < 64).then(|| index * 64 + bit)
        })
    })
}
