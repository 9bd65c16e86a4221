// SPDX-License-Identifier: Apache-2.0
//! torch's CPU generator: mt19937, and its saved state of 5,056 bytes.
//!
//! Other users of a `generator=` must see the state that torch would have left, so a state is read, advanced here
//! and written back, with the cached normals preserved. States that torch rejects are errors.
//! Source: Matsumoto and Nishimura, "Mersenne twister", 1998; the layout of the state is that of torch 1.1 to 2.15.

use std::fmt;

use crate::OrderError;

/// Words of one block.
const BLOCK: usize = 624;
/// The twist mixes each word with the one this far ahead.
const AHEAD: usize = 397;
/// Bytes before the words: seed, left, seeded, next.
const HEAD_BYTES: usize = 24;
/// Bytes after the words: the cached normals of torch, in double and in single precision.
const TAIL_BYTES: usize = 40;

/// From this range on torch draws 64 bits for a number below it. Measured with torch 2.15; builds have it since
/// pytorch#144819 of early 2025. Older ones had 2^32, and their `RandomSampler(replacement=True)` differs for
/// data sets between the two.
pub(crate) const WIDE_RANGE: u64 = 1 << 28;

/// Bytes of `torch.Generator().get_state()`.
pub const STATE_BYTES: usize = HEAD_BYTES + BLOCK * 8 + TAIL_BYTES;

/// The generator of `torch.Generator()` on the CPU.
#[derive(Clone, PartialEq, Eq)]
pub struct Mt19937 {
    /// The block of the recurrence.
    state: [u32; BLOCK],
    /// The same block tempered, as it is returned.
    words: [u32; BLOCK],
    /// Index of the next word; also 0 for a seeded generator that has drawn nothing.
    next: usize,
    /// Remaining words in the block.
    left: usize,
    /// The result of `torch.Generator.initial_seed()`.
    seed: u64,
    /// The cached normals, unchanged.
    tail: [u8; TAIL_BYTES],
}

impl Mt19937 {
    /// As `torch.Generator().manual_seed(seed)`: only the low 32 bits determine the words.
    ///
    /// A negative seed is its two's complement, `seed.cast_unsigned()`.
    pub fn new(seed: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "torch keeps the low 32 bits")]
        let mut word = seed as u32;
        let state = std::array::from_fn(|place| {
            if place > 0 {
                #[expect(clippy::cast_possible_truncation, reason = "a place is below 624")]
                let step = place as u32;
                word = 1_812_433_253_u32.wrapping_mul(word ^ (word >> 30)).wrapping_add(step);
            }
            word
        });
        Self { state, words: [0; BLOCK], next: 0, left: 0, seed, tail: [0; TAIL_BYTES] }
    }

    /// The next word.
    pub fn u32(&mut self) -> u32 {
        self.next_words(1)[0]
    }

    /// The next two words; the first is the high half.
    pub fn u64(&mut self) -> u64 {
        let high = u64::from(self.u32());
        high << 32 | u64::from(self.u32())
    }

    /// The result of `torch.empty((), dtype=torch.int64).random_()`: 63 bits of two words.
    ///
    /// `DataLoader` draws it at each `iter()` (its `base_seed`), and so does `RandomSampler` without a generator.
    pub fn random63(&mut self) -> u64 {
        self.u64() & (u64::MAX >> 1)
    }

    /// The result of `torch.randint(high, ())` in int64: one word below 2^28, two from there on.
    ///
    /// # Panics
    /// If `high` is 0.
    pub fn below(&mut self, high: u64) -> u64 {
        if high < WIDE_RANGE { u64::from(self.u32()) % high } else { self.u64() % high }
    }

    /// The next words, at least one and at most `limit`: up to the rest of the block.
    ///
    /// A loop over these makes a permutation fast, because it does not check for the end of the block at each
    /// word.
    ///
    /// # Panics
    /// If `limit` is 0.
    pub(crate) fn next_words(&mut self, limit: usize) -> &[u32] {
        assert!(limit > 0, "at least one word must be requested");
        if self.left == 0 {
            self.twist();
        }
        let first = self.next;
        let count = limit.min(self.left);
        self.next += count;
        self.left -= count;
        &self.words[first..self.next]
    }

    /// Skip `words` words, at the cost of generating their blocks.
    pub fn skip(&mut self, mut words: u64) {
        while words > 0 {
            words -= self.next_words(usize::try_from(words).unwrap_or(usize::MAX)).len() as u64;
        }
    }

    /// Generate the next block, in three loops without dependences between their words, which are vectorized.
    fn twist(&mut self) {
        const fn word(here: u32, after: u32, ahead: u32) -> u32 {
            let mixed = (here & 0x8000_0000) | (after & 0x7FFF_FFFF);
            ahead ^ (mixed >> 1) ^ ((mixed & 1).wrapping_neg() & 0x9908_B0DF)
        }
        let state = &mut self.state;
        for i in 0..BLOCK - AHEAD {
            state[i] = word(state[i], state[i + 1], state[i + AHEAD]);
        }
        for i in BLOCK - AHEAD..BLOCK - 1 {
            state[i] = word(state[i], state[i + 1], state[i + AHEAD - BLOCK]);
        }
        state[BLOCK - 1] = word(state[BLOCK - 1], state[0], state[AHEAD - 1]);
        self.temper();
        self.next = 0;
        self.left = BLOCK;
    }

    fn temper(&mut self) {
        for (word, &state) in self.words.iter_mut().zip(&self.state) {
            let mut y = state;
            y ^= y >> 11;
            y ^= (y << 7) & 0x9D2C_5680;
            y ^= (y << 15) & 0xEFC6_0000;
            *word = y ^ (y >> 18);
        }
    }

    /// Restore a generator from the bytes of `torch.Generator.get_state()`.
    pub fn from_state(bytes: &[u8]) -> Result<Self, OrderError> {
        if bytes.len() != STATE_BYTES {
            return Err(OrderError::StateLength { expected: STATE_BYTES, got: bytes.len() });
        }
        let seed = u64_at(bytes, 0);
        let left = u32_at(bytes, 8);
        let seeded = u32_at(bytes, 12);
        let next = u64_at(bytes, 16);
        let invalid = OrderError::StateInvalid { left, seeded, next };
        let (Ok(place), Some(remain)) = (usize::try_from(next), left.checked_sub(1)) else {
            return Err(invalid);
        };
        let remain = remain as usize;
        // Torch has two valid forms: freshly seeded, or within a block.
        if seeded != 1 || (remain, place) != (0, 0) && remain.checked_add(place) != Some(BLOCK) {
            return Err(invalid);
        }
        // Torch stores each 32-bit word in 64 bits; the upper half is unused.
        let state = std::array::from_fn(|i| u32_at(bytes, HEAD_BYTES + 8 * i));
        let mut tail = [0; TAIL_BYTES];
        tail.copy_from_slice(&bytes[STATE_BYTES - TAIL_BYTES..]);
        let mut generator = Self { state, words: [0; BLOCK], next: place, left: remain, seed, tail };
        generator.temper();
        Ok(generator)
    }

    /// The bytes for `torch.Generator.set_state`.
    pub fn state(&self) -> Vec<u8> {
        #[expect(clippy::cast_possible_truncation, reason = "at most a block of 624 is left")]
        let left = self.left as u32 + 1;
        let mut bytes = Vec::with_capacity(STATE_BYTES);
        bytes.extend(self.seed.to_ne_bytes());
        bytes.extend(left.to_ne_bytes());
        bytes.extend(1_u32.to_ne_bytes());
        bytes.extend((self.next as u64).to_ne_bytes());
        for word in self.state {
            bytes.extend(u64::from(word).to_ne_bytes());
        }
        bytes.extend(self.tail);
        bytes
    }
}

impl fmt::Debug for Mt19937 {
    /// The position only; the 624 words would not help a reader.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, next, left, .. } = self;
        f.debug_struct("Mt19937")
            .field("seed", seed)
            .field("next", next)
            .field("left", left)
            .finish_non_exhaustive()
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ten_thousandth_word_of_the_default_seed_is_the_standard_one() {
        // ISO C++ [rand.predef]: the 10,000th invocation of a default-constructed mt19937.
        let mut generator = Mt19937::new(5489);
        let last = (0..10_000).map(|_| generator.u32()).last();
        assert_eq!(last, Some(4_123_659_995));
    }

    #[test]
    fn only_the_low_32_bits_of_a_seed_matter_and_a_negative_one_is_its_complement() {
        let words = |seed| {
            std::array::from_fn::<u32, 4, _>({
                let mut generator = Mt19937::new(seed);
                move |_| generator.u32()
            })
        };
        assert_eq!(words(1 << 32), words(0));
        assert_eq!(words((-1_i64).cast_unsigned()), words(0xFFFF_FFFF));
    }

    #[test]
    fn a_restored_state_continues_with_the_same_words() {
        for drawn in [0, 1, 9, 623, 624, 625, 2000] {
            let mut generator = Mt19937::new(42);
            (0..drawn).for_each(|_| {
                generator.u32();
            });
            let bytes = generator.state();
            let mut copy = Mt19937::from_state(&bytes).unwrap();
            assert_eq!(copy.state(), bytes, "after {drawn} words");
            assert!((0..2000).all(|_| copy.u32() == generator.u32()), "after {drawn} words");
        }
    }

    #[test]
    fn a_state_that_torch_rejects_is_refused_with_its_numbers() {
        let good = Mt19937::new(1).state();
        assert_eq!(
            Mt19937::from_state(&good[1..]),
            Err(OrderError::StateLength { expected: 5056, got: 5055 })
        );
        for (at, value) in [(8, 0_u32), (8, 700), (8, u32::MAX), (12, 0), (16, 5), (20, 1)] {
            let mut bad = good.clone();
            bad[at..at + 4].copy_from_slice(&value.to_ne_bytes());
            assert!(
                matches!(Mt19937::from_state(&bad), Err(OrderError::StateInvalid { .. })),
                "{value} at {at}"
            );
        }
    }

    #[test]
    fn the_cached_normals_of_torch_are_preserved() {
        let mut bytes = Mt19937::new(1).state();
        bytes[STATE_BYTES - 3..].copy_from_slice(&[7, 8, 9]);
        let mut generator = Mt19937::from_state(&bytes).unwrap();
        generator.u64();
        assert_eq!(generator.state()[STATE_BYTES - 3..], [7, 8, 9]);
    }
}
