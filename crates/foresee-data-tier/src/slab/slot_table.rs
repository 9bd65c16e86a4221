// SPDX-License-Identifier: Apache-2.0
//! The slot of a sample: a map from (data set, id) to a 32-bit number.
//!
//! Its size matters at 10 million samples: pages of 64 ids take 4 bytes per neighbouring id, and a distant id takes
//! one page instead of a table up to it.

use std::collections::HashMap;

use foresee_units::SampleId;

use crate::op::Fingerprint;

/// Ids on a page.
const PAGE: usize = 64;

/// Ids to slots, for all data sets of one slab.
#[derive(Debug, Default)]
pub(crate) struct SlotTable {
    sets: Vec<Fingerprint>,
    /// Slot + 1, or 0 without a slot.
    pages: HashMap<(SetNumber, u64), Box<[u32; PAGE]>>,
}

/// A data set's number within one slab.
pub(crate) type SetNumber = u16;

impl SlotTable {
    /// The number of a known data set.
    pub(crate) fn find_set(&self, fingerprint: Fingerprint) -> Option<SetNumber> {
        let nth = self.sets.iter().position(|set| *set == fingerprint)?;
        SetNumber::try_from(nth).ok()
    }

    /// The number of a data set, which is assigned if it is new; `None` past 65,536 of them.
    pub(crate) fn number_set(&mut self, fingerprint: Fingerprint) -> Option<SetNumber> {
        self.find_set(fingerprint).or_else(|| {
            let number = SetNumber::try_from(self.sets.len()).ok()?;
            self.sets.push(fingerprint);
            Some(number)
        })
    }

    /// The data set with an assigned number.
    pub(crate) fn set(&self, number: SetNumber) -> Fingerprint {
        self.sets[usize::from(number)]
    }

    /// The slot of an id.
    pub(crate) fn get(&self, set: SetNumber, id: SampleId) -> Option<u32> {
        let (page, nth) = split(id);
        self.pages.get(&(set, page))?[nth].checked_sub(1)
    }

    /// Set the slot of an id, and return the previous one.
    pub(crate) fn insert(&mut self, set: SetNumber, id: SampleId, slot: u32) -> Option<u32> {
        let (page, nth) = split(id);
        let entry = &mut self.pages.entry((set, page)).or_insert_with(|| Box::new([0; PAGE]))[nth];
        std::mem::replace(entry, slot + 1).checked_sub(1)
    }

    /// Remove the slot of an id, and its page with the last slot.
    pub(crate) fn remove(&mut self, set: SetNumber, id: SampleId) {
        let (page, nth) = split(id);
        if let Some(entries) = self.pages.get_mut(&(set, page)) {
            entries[nth] = 0;
            if entries.iter().all(|entry| *entry == 0) {
                self.pages.remove(&(set, page));
            }
        }
    }

    /// Memory of the table, in bytes.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        // A page, and in the hash table its key, its pointer and one byte of control data.
        self.pages.len() * size_of::<[u32; PAGE]>() + self.pages.capacity() * 25
    }
}

fn split(id: SampleId) -> (u64, usize) {
    let page = PAGE as u64;
    (id.0 / page, usize::try_from(id.0 % page).expect("below 64"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_data_set_has_its_own_slot_for_an_id_of_any_size() {
        let mut table = SlotTable::default();
        for (slot, (set, id)) in (0..).zip([(0, 0), (1, 0), (0, 63), (0, 64), (0, u64::MAX)]) {
            assert_eq!(table.insert(set, SampleId(id), slot), None);
        }
        assert_eq!(table.get(1, SampleId(0)), Some(1));
        assert_eq!(table.get(0, SampleId(u64::MAX)), Some(4));
        assert_eq!(table.insert(0, SampleId(63), 9), Some(2));
        assert_eq!(table.get(2, SampleId(0)), None);
    }

    #[test]
    fn a_data_set_keeps_its_number() {
        let mut table = SlotTable::default();
        let sets = [Fingerprint([1; 16]), Fingerprint([2; 16])];
        assert_eq!(sets.map(|set| table.number_set(set)), [Some(0), Some(1)]);
        assert_eq!(table.number_set(sets[0]), Some(0));
        assert_eq!((table.find_set(Fingerprint([3; 16])), table.set(1)), (None, sets[1]));
    }

    #[test]
    fn ten_thousand_neighbouring_ids_take_less_than_six_bytes_each_and_none_after_removal() {
        let mut table = SlotTable::default();
        (0..10_000).for_each(|id| assert_eq!(table.insert(0, SampleId(id), 1), None));
        assert!(table.memory() < 60_000, "{}", table.memory());
        (0..10_000).for_each(|id| table.remove(0, SampleId(id)));
        assert!(table.pages.is_empty());
    }
}
