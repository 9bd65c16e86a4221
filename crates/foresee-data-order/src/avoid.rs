// SPDX-License-Identifier: Apache-2.0
//! `avoid-1`: samples that a run does not read, and the substitute of each.
//!
//! It applies to all orders and changes no length and no position. A substitute is a function of (n, seed, epoch,
//! sample) and of the avoided ids, so all ranks and all resumed runs have the same one. The definition is frozen
//! under its name:
//!
//! ```text
//! h(a) = s(s(s(s(seed) ^ epoch) ^ sample) ^ a),   s(v) = mix(v + g),   mix and g as in splitmix64
//! substitute = h(a) mod n for the first a of 0, 1, .. 99 for which that id is not avoided;
//!              else the first id after h(99) mod n, cyclically, that is not avoided
//! ```

use std::sync::Arc;

use foresee_units::{Epoch, GAMMA, SampleId, mix};

use crate::OrderError;

/// Number of hashes before the ids after the last one are tried in turn.
const ATTEMPTS: u64 = 100;

/// A set of sample ids below `n`, which leaves at least one. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Avoid {
    n: u64,
    /// Ascending.
    ids: Arc<[u64]>,
}

impl Avoid {
    /// Create the set of `ids`, in any order, in a data set of `n` samples.
    ///
    /// # Errors
    /// [`OrderError::NoSuchSample`] for an id that is not below `n`, [`OrderError::AvoidsAll`] if no id is left.
    pub fn new(n: u64, ids: impl IntoIterator<Item = SampleId>) -> Result<Self, OrderError> {
        let mut ids: Vec<u64> = ids.into_iter().map(|id| id.0).collect();
        ids.sort_unstable();
        ids.dedup();
        if let Some(&last) = ids.last().filter(|&&last| last >= n) {
            return Err(OrderError::NoSuchSample { sample: SampleId(last), n });
        }
        if !ids.is_empty() && ids.len() as u64 == n {
            return Err(OrderError::AvoidsAll { n });
        }
        Ok(Self { n, ids: ids.into() })
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The avoided ids, ascending.
    pub fn ids(&self) -> impl Iterator<Item = SampleId> + '_ {
        self.ids.iter().map(|&id| SampleId(id))
    }

    /// Whether `id` is avoided.
    pub fn contains(&self, id: SampleId) -> bool {
        self.ids.binary_search(&id.0).is_ok()
    }

    /// The sample to read at a place of `id`: itself, unless it is avoided.
    #[expect(clippy::missing_panics_doc, reason = "`new` refuses to avoid all samples")]
    pub fn substitute(&self, seed: u64, epoch: Epoch, id: SampleId) -> SampleId {
        if !self.contains(id) {
            return id;
        }
        let prefix = [seed, epoch.0, id.0].into_iter().fold(0, absorb);
        let hashed = |attempt| SampleId(absorb(prefix, attempt) % self.n);
        (0..ATTEMPTS).map(hashed).find(|&id| !self.contains(id)).unwrap_or_else(|| {
            let last = hashed(ATTEMPTS - 1).0;
            let mut after = (last..self.n).chain(0..last).map(SampleId);
            after.find(|&id| !self.contains(id)).expect("not all samples are avoided")
        })
    }
}

const fn absorb(hash: u64, word: u64) -> u64 {
    mix((hash ^ word).wrapping_add(GAMMA))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn avoid(n: u64, ids: impl IntoIterator<Item = u64>) -> Avoid {
        Avoid::new(n, ids.into_iter().map(SampleId)).unwrap()
    }

    #[test]
    fn avoid_1_is_frozen() {
        let few = avoid(1000, [17, 23]);
        let substitute = |seed: u64, epoch, id| few.substitute(seed, Epoch(epoch), SampleId(id)).0;
        assert_eq!([substitute(0, 0, 17), substitute(5, 3, 17), substitute(5, 3, 23)], [908, 804, 835]);
        assert_eq!(
            avoid(1000, (0..1000).filter(|&id| id != 400)).substitute(0, Epoch(0), SampleId(1)).0,
            400
        );
    }

    #[test]
    fn no_substitute_is_avoided_and_other_samples_stay() {
        for n in [2, 3, 10, 100] {
            for kept in [0, n / 2, n - 1] {
                let most = avoid(n, (0..n).filter(|&id| id != kept));
                for epoch in 0..20 {
                    let ids = (0..n).map(|id| most.substitute(7, Epoch(epoch), SampleId(id)).0);
                    assert!(ids.into_iter().all(|id| id == kept));
                }
            }
            let one = avoid(n, [0]);
            assert_ne!(one.substitute(1, Epoch(2), SampleId(0)).0, 0);
            assert_eq!(one.substitute(1, Epoch(2), SampleId(1)).0, 1);
        }
    }

    #[test]
    fn unknown_samples_and_all_samples_are_refused() {
        let new = |ids: &[u64]| Avoid::new(3, ids.iter().copied().map(SampleId));
        assert_eq!(new(&[1, 3]).unwrap_err(), OrderError::NoSuchSample { sample: SampleId(3), n: 3 });
        assert_eq!(new(&[2, 1, 0, 1]).unwrap_err(), OrderError::AvoidsAll { n: 3 });
        assert!(new(&[]).unwrap().is_empty());
        assert!(Avoid::new(0, []).unwrap().is_empty());
        assert_eq!(new(&[2, 0, 2]).unwrap().ids().collect::<Vec<_>>(), [SampleId(0), SampleId(2)]);
    }
}
