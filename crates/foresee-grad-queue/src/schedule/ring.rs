// SPDX-License-Identifier: Apache-2.0
//! A slab of values, and rings through its places. Insertion, removal and stepping take constant time, without
//! allocation once the places exist.

use std::ops::{Index, IndexMut};

/// Values at small reusable indices.
#[derive(Clone, Debug)]
pub(super) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(super) const fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            u32::try_from(self.places.len() - 1).expect("memory ends before 2^32 of them")
        });
        self.places[place as usize] = Some(value);
        place
    }

    pub(super) fn remove(&mut self, place: u32) -> T {
        self.free.push(place);
        self.places[place as usize].take().expect("a place in use")
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0_u32..).zip(&self.places).filter_map(|(place, value)| Some((place, value.as_ref()?)))
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;
    fn index(&self, place: u32) -> &T {
        self.places[place as usize].as_ref().expect("a place in use")
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, place: u32) -> &mut T {
        self.places[place as usize].as_mut().expect("a place in use")
    }
}

/// Both ends of a ring of places; [`Links`] stores the links.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ring {
    ends: Option<(u32, u32)>,
}

impl Ring {
    pub(super) fn head(self) -> Option<u32> {
        self.ends.map(|(head, _)| head)
    }
}

/// Predecessor and successor of each place. With one set of links a place is in one ring at most.
#[derive(Clone, Debug, Default)]
pub(super) struct Links {
    around: Vec<(Option<u32>, Option<u32>)>,
}

impl Links {
    pub(super) fn push_back(&mut self, ring: &mut Ring, place: u32) {
        if self.around.len() <= place as usize {
            self.around.resize(place as usize + 1, (None, None));
        }
        let tail = ring.ends.map(|(_, tail)| tail);
        self.around[place as usize] = (tail, None);
        if let Some(tail) = tail {
            self.around[tail as usize].1 = Some(place);
        }
        ring.ends = Some((ring.head().unwrap_or(place), place));
    }

    /// Remove `place`, which must be in `ring`.
    pub(super) fn remove(&mut self, ring: &mut Ring, place: u32) {
        let (before, after) = self.around[place as usize];
        if let Some(before) = before {
            self.around[before as usize].1 = after;
        }
        if let Some(after) = after {
            self.around[after as usize].0 = before;
        }
        ring.ends = ring.ends.and_then(|(head, tail)| {
            let head = if head == place { after } else { Some(head) };
            let tail = if tail == place { before } else { Some(tail) };
            head.zip(tail)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foresee_testkit::property;
    use proptest::prelude::*;

    fn drain(links: &mut Links, mut ring: Ring) -> Vec<u32> {
        std::iter::from_fn(|| {
            let head = ring.head()?;
            links.remove(&mut ring, head);
            Some(head)
        })
        .collect()
    }

    proptest! {
        #![proptest_config(property(256))]

        #[test]
        fn a_ring_keeps_the_order_of_entry_after_any_removal(
            leavers in prop::collection::vec(0_u32..40, 0..60),
        ) {
            let (mut links, mut ring) = (Links::default(), Ring::default());
            let mut expected: Vec<u32> = (0..40).collect();
            for &place in &expected {
                links.push_back(&mut ring, place);
            }
            for place in leavers {
                if let Some(at) = expected.iter().position(|&other| other == place) {
                    expected.remove(at);
                    links.remove(&mut ring, place);
                } else {
                    expected.push(place);
                    links.push_back(&mut ring, place);
                }
            }
            prop_assert_eq!(drain(&mut links.clone(), ring), expected);
        }
    }

    #[test]
    fn a_place_is_used_again() {
        let mut slab = Slab::new();
        let first = slab.insert('a');
        let second = slab.insert('b');
        assert_eq!(slab.remove(first), 'a');
        assert_eq!(slab.insert('c'), first);
        assert_eq!((slab[first], slab[second], slab.iter().count()), ('c', 'b', 2));
    }
}
