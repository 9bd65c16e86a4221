// SPDX-License-Identifier: Apache-2.0
//! A list of sample ids in the narrowest width: 4 bytes per sample up to 2^32, 8 beyond.
//!
//! The width is chosen once, when the list is created, and no other code branches on it.

use foresee_units::SampleId;

use crate::OrderError;

/// A list of sample ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ids {
    /// All below 2^32.
    U32(Vec<u32>),
    /// Some may be 2^32 or more.
    U64(Vec<u64>),
}

impl Ids {
    /// The number of ids.
    pub fn len(&self) -> u64 {
        match self {
            Self::U32(ids) => ids.len() as u64,
            Self::U64(ids) => ids.len() as u64,
        }
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The id at `place`.
    ///
    /// # Panics
    /// If `place` is not below [`len`](Self::len).
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a place beyond the address space is out of bounds too"
    )]
    pub fn get(&self, place: u64) -> SampleId {
        assert!(place < self.len(), "place {place} of a list of {}", self.len());
        SampleId(match self {
            Self::U32(ids) => u64::from(ids[place as usize]),
            Self::U64(ids) => ids[place as usize],
        })
    }

    /// All ids, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = SampleId> + '_ {
        let count = match self {
            Self::U32(ids) => ids.len(),
            Self::U64(ids) => ids.len(),
        };
        (0..count).map(move |place| {
            SampleId(match self {
                Self::U32(ids) => u64::from(ids[place]),
                Self::U64(ids) => ids[place],
            })
        })
    }

    /// Collect `len` ids that are below `n`.
    ///
    /// # Errors
    /// [`OrderError::NoMemory`].
    pub fn try_collect(n: u64, len: u64, ids: impl Iterator<Item = SampleId>) -> Result<Self, OrderError> {
        let mut list = Self::with_capacity(n, len)?;
        match &mut list {
            #[expect(clippy::cast_possible_truncation, reason = "the width was chosen for every id")]
            Self::U32(list) => list.extend(ids.map(|id| id.0 as u32)),
            Self::U64(list) => list.extend(ids.map(|id| id.0)),
        }
        Ok(list)
    }

    /// An empty list with capacity for `len` ids below `n`.
    pub(crate) fn with_capacity(n: u64, len: u64) -> Result<Self, OrderError> {
        if fits_u32(n) {
            try_with_capacity(len).map(Self::U32)
        } else {
            try_with_capacity(len).map(Self::U64)
        }
    }

    /// Append the first `count` ids of another list of the same data set, or all of it if it has fewer.
    pub(crate) fn append_head(&mut self, other: &Self, count: u64) {
        let count = usize::try_from(count.min(other.len())).expect("the other list fits into memory");
        match (self, other) {
            (Self::U32(ids), Self::U32(more)) => ids.extend_from_slice(&more[..count]),
            (Self::U64(ids), Self::U64(more)) => ids.extend_from_slice(&more[..count]),
            _ => unreachable!("lists of one data set have one width"),
        }
    }
}

/// Whether every id of a data set of `n` samples fits into 32 bits.
pub(crate) const fn fits_u32(n: u64) -> bool {
    n <= 1 << 32
}

/// An empty vector with capacity for `len` elements, or an error with the missing size.
pub(crate) fn try_with_capacity<T>(len: u64) -> Result<Vec<T>, OrderError> {
    let mut list = Vec::new();
    usize::try_from(len)
        .ok()
        .and_then(|len| list.try_reserve_exact(len).ok())
        .ok_or(OrderError::NoMemory { n: len, bytes: len.saturating_mul(size_of::<T>() as u64) })?;
    Ok(list)
}

impl FromIterator<SampleId> for Ids {
    /// Begin with 32 bits and widen at the first id that needs more.
    fn from_iter<I: IntoIterator<Item = SampleId>>(ids: I) -> Self {
        let mut narrow = Vec::new();
        let mut ids = ids.into_iter();
        while let Some(SampleId(id)) = ids.next() {
            if let Ok(id) = u32::try_from(id) {
                narrow.push(id);
            } else {
                let mut wide: Vec<u64> = narrow.into_iter().map(u64::from).collect();
                wide.push(id);
                wide.extend(ids.map(|id| id.0));
                return Self::U64(wide);
            }
        }
        Self::U32(narrow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_widens_at_the_first_id_that_needs_64_bits() {
        let ids: Ids = [1, 2, 1 << 32, 3].map(SampleId).into_iter().collect();
        assert_eq!(ids, Ids::U64(vec![1, 2, 1 << 32, 3]));
        let ids: Ids = [1, 2].map(SampleId).into_iter().collect();
        assert_eq!(ids, Ids::U32(vec![1, 2]));
    }

    #[test]
    fn a_list_larger_than_memory_is_an_error_and_not_an_abort() {
        let error = Ids::with_capacity(u64::MAX, 1 << 62).unwrap_err();
        assert_eq!(error, OrderError::NoMemory { n: 1 << 62, bytes: u64::MAX });
    }

    #[test]
    #[should_panic(expected = "place 2 of a list of 2")]
    fn a_place_past_the_end_panics() {
        Ids::U32(vec![0, 1]).get(2);
    }
}
