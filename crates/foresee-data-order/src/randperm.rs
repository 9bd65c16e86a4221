// SPDX-License-Identifier: Apache-2.0
//! `torch.randperm(n)`: two shuffles, bit for bit, and the border between them.
//!
//! It costs one pass over the list with its random memory accesses; words come in blocks, and below the border
//! every number has 32 bits.

use crate::ids::{fits_u32, try_with_capacity};
use crate::{Ids, Mt19937, OrderError};

/// The first n for which torch shuffles inside out: `UINT32_MAX / 20`.
const BORDER: u32 = u32::MAX / 20;

/// Return a random permutation of 0 to n - 1, as `torch.randperm(n, generator=g)` draws it in int64 on the CPU.
///
/// It takes n - 1 words of `generator` below n = 214,748,364, and 2n from there on. The list has 4 bytes per
/// sample up to n = 2^32, 8 beyond.
///
/// # Errors
/// [`OrderError::NoMemory`] if the list does not fit.
/// # Examples
/// ```
/// # use foresee_data_order::{randperm, Ids, Mt19937};
/// let order = randperm(10, &mut Mt19937::new(0))?;
/// assert_eq!(order, Ids::U32(vec![4, 1, 7, 5, 3, 9, 0, 8, 6, 2]));
/// # Ok::<(), foresee_data_order::OrderError>(())
/// ```
pub fn randperm(n: u64, generator: &mut Mt19937) -> Result<Ids, OrderError> {
    match u32::try_from(n) {
        Ok(n) if n < BORDER => {
            let mut ids = try_with_capacity(u64::from(n))?;
            ids.extend(0..n);
            swap_forward(&mut ids, generator);
            Ok(Ids::U32(ids))
        }
        #[expect(clippy::cast_possible_truncation, reason = "every id is below 2^32")]
        _ if fits_u32(n) => inside_out(n, generator, |id| id as u32).map(Ids::U32),
        _ => inside_out(n, generator, |id| id).map(Ids::U64),
    }
}

/// The number of words that [`randperm`] takes.
pub(crate) const fn randperm_words(n: u64) -> u64 {
    if n < BORDER as u64 { n.saturating_sub(1) } else { n.saturating_mul(2) }
}

/// Each place in turn gets a random id of those not yet placed.
fn swap_forward(ids: &mut [u32], generator: &mut Mt19937) {
    let mut place = 0;
    while place + 1 < ids.len() {
        for &word in generator.next_words(ids.len() - 1 - place) {
            #[expect(clippy::cast_possible_truncation, reason = "the border is below 2^32")]
            let open = (ids.len() - place) as u32;
            ids.swap(place, place + (word % open) as usize);
            place += 1;
        }
    }
}

/// Each id in turn goes to a random place, whose previous id moves to the end.
fn inside_out<T: Copy>(
    n: u64,
    generator: &mut Mt19937,
    narrow: impl Fn(u64) -> T,
) -> Result<Vec<T>, OrderError> {
    let mut ids = try_with_capacity(n)?;
    for id in 0..n {
        #[expect(clippy::cast_possible_truncation, reason = "a place of a list that fits into memory")]
        let place = (generator.u64() % (id + 1)) as usize;
        let last = ids.len();
        ids.push(narrow(id));
        ids[last] = ids[place];
        ids[place] = narrow(id);
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_shuffles_are_permutations_and_take_the_words_that_torch_takes() {
        for n in [0, 1, 2, 3, 624, 625, 626, 5000] {
            let mut generator = Mt19937::new(7);
            let mut ids: Vec<u64> = randperm(n, &mut generator).unwrap().iter().map(|id| id.0).collect();
            ids.sort_unstable();
            assert!(ids.into_iter().eq(0..n), "{n}");
            let mut words = Mt19937::new(7);
            (1..n).for_each(|_| {
                words.u32();
            });
            assert_eq!(generator.u32(), words.u32(), "words for {n}");

            let mut generator = Mt19937::new(7);
            let mut ids = inside_out(n, &mut generator, |id| id).unwrap();
            ids.sort_unstable();
            assert!(ids.into_iter().eq(0..n), "{n}");
            let mut words = Mt19937::new(7);
            (0..2 * n).for_each(|_| {
                words.u32();
            });
            assert_eq!(generator.u32(), words.u32(), "words for {n}");
        }
    }

    #[test]
    fn a_permutation_larger_than_memory_is_an_error_with_its_remedy() {
        let error = randperm(1 << 61, &mut Mt19937::new(0)).unwrap_err();
        assert!(error.to_string().ends_with("order=\"keyed\" needs none"), "{error}");
    }
}
