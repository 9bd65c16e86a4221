// SPDX-License-Identifier: Apache-2.0
//! A set of a plan's tensors, which a round's end message carries.
//!
//! It is separate because servers unite such sets and ranks read them. It has no bits beyond the plan.

use crate::{QueueError, TensorId, bits};

/// Tensors of a plan: one bit each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSet {
    words: Box<[u64]>,
    tensors: u32,
}

impl TensorSet {
    /// The empty set, for a plan with `tensors`.
    pub fn none(tensors: u32) -> Self {
        Self { words: bits::empty(tensors), tensors }
    }

    /// The set of all tensors, for a plan with `tensors`.
    pub fn all(tensors: u32) -> Self {
        let none = Self::none(tensors);
        none.complement()
    }

    /// Decode a set: bit t % 8 of byte t / 8 stands for tensor t.
    pub fn from_bytes(bytes: &[u8], tensors: u32) -> Result<Self, QueueError> {
        let mut set = Self::none(tensors);
        let fault = QueueError::TensorSet { bytes: bytes.len(), tensors };
        if bytes.len() != tensors.div_ceil(8) as usize {
            return Err(fault);
        }
        for (word, bytes) in set.words.iter_mut().zip(bytes.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(padded);
        }
        let has_more = set.words.last().is_some_and(|last| last & !tail(tensors) != 0);
        if has_more { Err(fault) } else { Ok(set) }
    }

    /// Check that the set is of a plan with `tensors`.
    pub(crate) fn check(&self, tensors: u32) -> Result<(), QueueError> {
        let bytes = self.tensors.div_ceil(8) as usize;
        if self.tensors == tensors { Ok(()) } else { Err(QueueError::TensorSet { bytes, tensors }) }
    }

    /// Encode the set: one byte for each 8 tensors of the plan, padded with zero bits.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(self.tensors.div_ceil(8) as usize);
        bytes
    }

    /// Add a tensor; return whether it was absent before.
    ///
    /// # Panics
    /// If the plan has no such tensor: ids from the network are checked before.
    pub fn insert(&mut self, tensor: TensorId) -> bool {
        assert!(tensor.0 < self.tensors, "tensor {} is not one of {}", tensor.0, self.tensors);
        bits::insert(&mut self.words, tensor.0)
    }

    /// Whether a tensor is in the set.
    pub fn contains(&self, tensor: TensorId) -> bool {
        bits::contains(&self.words, tensor.0)
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Tensors of the plan.
    pub fn tensors(&self) -> u32 {
        self.tensors
    }

    /// The plan's tensors that are not in the set.
    #[must_use]
    pub fn complement(&self) -> Self {
        let mut words: Box<[u64]> = self.words.iter().map(|word| !word).collect();
        if let Some(last) = words.last_mut() {
            *last &= tail(self.tensors);
        }
        Self { words, tensors: self.tensors }
    }

    /// Add the tensors of `other`, a set of the same plan.
    pub(crate) fn add(&mut self, other: &Self) {
        for (word, more) in self.words.iter_mut().zip(&other.words) {
            *word |= more;
        }
    }

    /// The tensors of the set, in plan order.
    pub fn iter(&self) -> impl Iterator<Item = TensorId> + '_ {
        bits::iter(&self.words).map(TensorId)
    }
}

/// The bits of the last word that stand for tensors.
const fn tail(tensors: u32) -> u64 {
    if tensors.is_multiple_of(64) { u64::MAX } else { (1 << (tensors % 64)) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foresee_testkit::property;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(property(256))]

        #[test]
        fn a_set_has_one_encoding_that_decodes_to_it(tensors in 0..200_u32, seed in prop::collection::vec(any::<u32>(), 0..50)) {
            let mut set = TensorSet::none(tensors);
            for id in seed.iter().filter_map(|id| id.checked_rem(tensors)) {
                set.insert(TensorId(id));
            }
            let bytes = set.to_bytes();
            prop_assert_eq!(&TensorSet::from_bytes(&bytes, tensors).unwrap(), &set);
            let all: Vec<TensorId> = (0..tensors).map(TensorId).filter(|id| set.contains(*id)).collect();
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), all);
            let rest: Vec<TensorId> = (0..tensors).map(TensorId).filter(|id| !set.contains(*id)).collect();
        prop_assert_eq!(set.complement().iter().collect::<Vec<_>>(), rest);
            prop_assert_eq!(set.complement().complement(), set);
        }
    }

    #[test]
    fn other_lengths_and_bits_beyond_the_plan_are_refused() {
        assert!(TensorSet::from_bytes(&[0b111], 3).is_ok());
        assert!(TensorSet::from_bytes(&[0b1000], 3).is_err());
        assert!(TensorSet::from_bytes(&[0, 0], 3).is_err());
        assert!(TensorSet::from_bytes(&[], 3).is_err());
        assert_eq!(TensorSet::from_bytes(&[], 0).unwrap(), TensorSet::all(0));
        assert!(TensorSet::all(70).iter().count() == 70 && TensorSet::none(70).is_empty());
    }
}
