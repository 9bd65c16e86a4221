// SPDX-License-Identifier: Apache-2.0
//! Announced accesses of all consumers, with the next use of each entry by each consumer.
//!
//! A table of last uses by consumer and entry, as a rank's window has, would take 4 bytes per entry and consumer. Here
//! the accesses themselves are linked: those of one consumer and entry form a ring, and an entry has a list of the
//! rings of its consumers. This takes 12 bytes per access and 4 per entry, for any number of consumers.

use std::collections::VecDeque;

use crate::hint;
use crate::next_use::narrow;

/// "No access", in every table of slots.
pub(super) const NONE: u32 = u32::MAX;
/// Accesses per chunk: a consumer holds memory in these units.
const CHUNK: usize = 1024;
/// Maximum number of accesses that may be announced and not requested, by all consumers together.
pub(super) const ACCESSES_MAX: usize = 1 << 30;

/// An announced access.
#[derive(Clone, Copy, Debug)]
struct Link {
    entry: u32,
    /// The next access of the same consumer and entry; from the last one, the first.
    next: u32,
    /// In the last access of a ring: the last access of the next ring of the entry.
    sibling: u32,
}

/// An owner of [`CHUNK`] consecutive slots.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    consumer: u32,
    /// Access number of the first slot.
    first: u64,
}

/// The announced accesses of one consumer: numbers `first..first + len`.
#[derive(Debug, Default)]
struct Announced {
    chunks: VecDeque<u32>,
    first: u64,
    len: usize,
    has_ended: bool,
}

/// A use of an entry: who uses it, at which of its accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Use {
    pub(super) slot: u32,
    pub(super) consumer: usize,
    pub(super) number: u64,
}

/// The announced accesses of all consumers.
#[derive(Debug, Default)]
pub(super) struct Accesses {
    links: Vec<Link>,
    chunks: Vec<Chunk>,
    free: Vec<u32>,
    /// By entry: the last access of its first ring.
    heads: Vec<u32>,
    consumers: Vec<Announced>,
    total: usize,
}

impl Accesses {
    pub(super) fn add_entry(&mut self) {
        self.heads.push(NONE);
    }

    /// Start the numbers of a consumer at 0; it may not have announced accesses.
    pub(super) fn attach(&mut self, consumer: usize) {
        if self.consumers.len() <= consumer {
            self.consumers.resize_with(consumer + 1, Announced::default);
        }
        self.consumers[consumer] = Announced::default();
    }

    pub(super) fn end(&mut self, consumer: usize) {
        self.consumers[consumer].has_ended = true;
    }

    pub(super) fn resume(&mut self, consumer: usize) {
        self.consumers[consumer].has_ended = false;
    }

    pub(super) fn has_ended(&self, consumer: usize) -> bool {
        self.consumers[consumer].has_ended
    }

    /// Number of the consumer's first announced access, which is its next one.
    pub(super) fn first(&self, consumer: usize) -> u64 {
        self.consumers[consumer].first
    }

    pub(super) fn len(&self, consumer: usize) -> usize {
        self.consumers[consumer].len
    }

    /// Number of announced accesses of all consumers.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// Reserve memory for this many further accesses of one consumer.
    pub(super) fn reserve(&mut self, accesses: usize) {
        let chunks = accesses.div_ceil(CHUNK).saturating_sub(self.free.len());
        self.chunks.reserve_exact(chunks);
        self.links.reserve_exact(chunks * CHUNK);
    }

    /// Prefetch the entry's list.
    pub(super) fn prefetch(&self, entry: u32) {
        hint::prefetch(&self.heads, entry as usize);
    }

    /// Prefetch the first ring of the entry, whose list was prefetched before.
    pub(super) fn prefetch_ring(&self, entry: u32) {
        hint::prefetch(&self.links, self.heads[entry as usize] as usize);
    }

    /// Append an access; return it if it is the consumer's next use of the entry.
    pub(super) fn announce(&mut self, consumer: usize, entry: u32) -> Option<Use> {
        let slot = self.append(consumer);
        let number = self.locate(slot).number;
        let mut before = NONE;
        let mut last = self.heads[entry as usize];
        while last != NONE && self.locate(last).consumer != consumer {
            before = last;
            last = self.links[last as usize].sibling;
        }
        if last == NONE {
            // At the end, because `advance` mostly removes the ring that was announced first.
            self.links[slot as usize] = Link { entry, next: slot, sibling: NONE };
            self.set_sibling(entry, before, slot);
            return Some(Use { slot, consumer, number });
        }
        let Link { next, sibling, .. } = self.links[last as usize];
        self.links[slot as usize] = Link { entry, next, sibling };
        self.links[last as usize].next = slot;
        self.set_sibling(entry, before, slot);
        None
    }

    /// Remove the consumer's first announced access, if there is one; return its entry and slot.
    pub(super) fn advance(&mut self, consumer: usize) -> Option<(u32, u32)> {
        let announced = &mut self.consumers[consumer];
        if announced.len == 0 {
            return None;
        }
        let offset = offset_in_chunk(announced.first);
        let chunk = announced.chunks[0];
        let slot = chunk * narrow(CHUNK) + narrow(offset);
        announced.first += 1;
        announced.len -= 1;
        self.total -= 1;
        if offset + 1 == CHUNK || announced.len == 0 {
            // The next access starts in a chunk of its own: `append` relies on it.
            announced.chunks.pop_front();
            self.free.push(chunk);
        }
        let entry = self.links[slot as usize].entry;
        self.unlink(entry, slot);
        Some((entry, slot))
    }

    /// The next use of an entry by each consumer that announced one.
    pub(super) fn next_uses(&self, entry: u32) -> impl Iterator<Item = Use> {
        let mut last = self.heads[entry as usize];
        std::iter::from_fn(move || {
            if last == NONE {
                return None;
            }
            let Link { next, sibling, .. } = self.links[last as usize];
            last = sibling;
            Some(self.locate(next))
        })
    }

    /// Consumer and number of the announced access in a slot.
    pub(super) fn locate(&self, slot: u32) -> Use {
        let Chunk { consumer, first } = self.chunks[slot as usize / CHUNK];
        let number = first + (slot as usize % CHUNK) as u64;
        Use { slot, consumer: consumer as usize, number }
    }

    /// The entry and slot of the consumer's access with this number, which must be announced.
    pub(super) fn access(&self, consumer: usize, number: u64) -> (u32, u32) {
        let announced = &self.consumers[consumer];
        let chunk = (number / CHUNK as u64) - (announced.first / CHUNK as u64);
        let chunk = announced.chunks[usize::try_from(chunk).expect("the access is announced")];
        let slot = chunk * narrow(CHUNK) + narrow(offset_in_chunk(number));
        (self.links[slot as usize].entry, slot)
    }

    pub(super) fn table_bytes(&self) -> u64 {
        let chunks: usize = self.consumers.iter().map(|one| one.chunks.capacity()).sum();
        (self.links.capacity() * size_of::<Link>()
            + self.chunks.capacity() * size_of::<Chunk>()
            + (self.free.capacity() + self.heads.capacity() + chunks) * size_of::<u32>()) as u64
    }

    /// A slot for the consumer's next announced access.
    fn append(&mut self, consumer: usize) -> u32 {
        assert!(self.total < ACCESSES_MAX, "more than {ACCESSES_MAX} accesses are announced");
        let announced = &mut self.consumers[consumer];
        let number = announced.first + announced.len as u64;
        let offset = offset_in_chunk(number);
        if offset == 0 || announced.len == 0 {
            let owner = Chunk { consumer: narrow(consumer), first: number - offset as u64 };
            let chunk = self.free.pop().unwrap_or_else(|| {
                self.chunks.push(owner);
                self.links.resize(self.chunks.len() * CHUNK, Link { entry: NONE, next: NONE, sibling: NONE });
                narrow(self.chunks.len() - 1)
            });
            self.chunks[chunk as usize] = owner;
            announced.chunks.push_back(chunk);
        }
        announced.len += 1;
        self.total += 1;
        let chunk = *announced.chunks.back().expect("a chunk was added with the first access");
        chunk * narrow(CHUNK) + narrow(offset)
    }

    /// Remove the first access of a ring.
    fn unlink(&mut self, entry: u32, slot: u32) {
        let mut before = NONE;
        let mut last = self.heads[entry as usize];
        while self.links[last as usize].next != slot {
            before = last;
            last = self.links[last as usize].sibling;
        }
        if last == slot {
            let sibling = self.links[slot as usize].sibling;
            self.set_sibling(entry, before, sibling);
        } else {
            self.links[last as usize].next = self.links[slot as usize].next;
        }
    }

    /// Let the ring `before`, or the entry itself, continue with the ring `last`.
    fn set_sibling(&mut self, entry: u32, before: u32, last: u32) {
        if before == NONE {
            self.heads[entry as usize] = last;
        } else {
            self.links[before as usize].sibling = last;
        }
    }
}

fn offset_in_chunk(number: u64) -> usize {
    usize::try_from(number % CHUNK as u64).expect("below the size of a chunk")
}

#[cfg(test)]
mod tests {
    use foresee_testkit::{Dice, seeds};

    use super::*;

    #[test]
    fn next_uses_are_those_of_plain_lists() {
        for seed in seeds(2_000) {
            let mut dice = Dice::new(seed);
            let entries = 1 + dice.below(40);
            let (mut accesses, mut lists) = (Accesses::default(), vec![VecDeque::new(); 4]);
            let mut firsts = [0_u64; 4];
            (0..entries).for_each(|_| accesses.add_entry());
            (0..4).for_each(|consumer| accesses.attach(consumer));
            for _ in 0..300 {
                let consumer = dice.below(4);
                for _ in 0..dice.pick(&[1, 1, 1, 60, 1100]) {
                    if dice.one_in(2) {
                        let entry = narrow(dice.below(entries));
                        let is_first = !lists[consumer].contains(&entry);
                        let found = accesses.announce(consumer, entry);
                        assert_eq!(found.is_some(), is_first, "seed {seed}");
                        lists[consumer].push_back(entry);
                    } else {
                        let entry = accesses.advance(consumer).map(|(entry, _)| entry);
                        assert_eq!(entry, lists[consumer].pop_front(), "seed {seed}");
                        firsts[consumer] += u64::from(entry.is_some());
                    }
                }
                let entry = narrow(dice.below(entries));
                let mut uses: Vec<_> =
                    accesses.next_uses(entry).map(|one| (one.consumer, one.number)).collect();
                uses.sort_unstable();
                let expected = |consumer: usize| {
                    let at = lists[consumer].iter().position(|&one| one == entry)?;
                    Some((consumer, firsts[consumer] + at as u64))
                };
                assert_eq!(uses, (0..4).filter_map(expected).collect::<Vec<_>>(), "seed {seed}");
            }
            for (consumer, list) in lists.iter().enumerate() {
                for (&entry, number) in list.iter().zip(accesses.first(consumer)..) {
                    let (found, slot) = accesses.access(consumer, number);
                    assert_eq!(found, entry, "seed {seed}");
                    assert_eq!(accesses.locate(slot), Use { slot, consumer, number }, "seed {seed}");
                }
            }
            assert_eq!(accesses.total(), lists.iter().map(VecDeque::len).sum::<usize>());
        }
    }

    #[test]
    fn chunks_are_used_again() {
        let mut accesses = Accesses::default();
        accesses.add_entry();
        accesses.attach(0);
        for _ in 0..100 {
            (0..2 * CHUNK).for_each(|_| _ = accesses.announce(0, 0));
            while accesses.advance(0).is_some() {}
        }
        assert!(accesses.table_bytes() < 8 * (CHUNK as u64) * 12, "{}", accesses.table_bytes());
    }
}
