// SPDX-License-Identifier: Apache-2.0
//! Decides which rank lists, and who gets its index. Pure: it sends nothing, and `I` is any index.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use foresee_data_node::{ListingCounts, ListingKey};

/// A message for a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It lists.
    List,
    /// Another rank lists.
    Pending,
    /// Its listing has an index.
    Index,
}

/// A rank reported the end of a listing that it was not asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotLister;

/// All listings of a job on this node, and their ranks by number.
#[derive(Debug)]
pub(super) struct ListingRegistry<I> {
    listings: BTreeMap<ListingKey, Listing<I>>,
    ranks: BTreeMap<u32, ListingKey>,
}

#[derive(Debug)]
struct Listing<I> {
    /// Ranks that list.
    listers: BTreeSet<u32>,
    /// Ranks that wait, in the order of their requests.
    waiting: VecDeque<u32>,
    /// Ranks that have not ended.
    members: usize,
    built: Option<(ListingCounts, I)>,
}

impl<I> Default for ListingRegistry<I> {
    fn default() -> Self {
        Self { listings: BTreeMap::new(), ranks: BTreeMap::new() }
    }
}

impl<I> ListingRegistry<I> {
    /// A new rank requests a listing. The first one lists; others wait for the index.
    pub(super) fn handle_find(&mut self, rank: u32, key: ListingKey) -> Answer {
        self.ranks.insert(rank, key);
        let listing = self.listings.entry(key).or_insert_with(|| Listing {
            listers: BTreeSet::new(),
            waiting: VecDeque::new(),
            members: 0,
            built: None,
        });
        listing.members += 1;
        if listing.built.is_some() {
            Answer::Index
        } else if listing.listers.is_empty() {
            listing.listers.insert(rank);
            Answer::List
        } else {
            listing.waiting.push_back(rank);
            Answer::Pending
        }
    }

    /// A rank still lists: those that wait for it are told so.
    pub(super) fn handle_alive(&self, rank: u32) -> Vec<(u32, Answer)> {
        let listing = self.listing_of(rank).filter(|listing| listing.listers.contains(&rank));
        let waiting = listing.into_iter().flat_map(|listing| &listing.waiting);
        waiting.map(|&other| (other, Answer::Pending)).collect()
    }

    /// A rank has listed: those that wait get the index. Of several, the first one stays.
    pub(super) fn handle_built(
        &mut self,
        rank: u32,
        counts: ListingCounts,
        index: I,
    ) -> Result<Vec<(u32, Answer)>, NotLister> {
        let listing = self.lister_of(rank)?;
        listing.built.get_or_insert((counts, index));
        Ok(listing.waiting.drain(..).map(|other| (other, Answer::Index)).collect())
    }

    /// A rank cannot list. All that wait list now, so that each gets its error at the same time.
    pub(super) fn handle_failed(&mut self, rank: u32) -> Result<Vec<(u32, Answer)>, NotLister> {
        let listing = self.lister_of(rank)?;
        let freed: Vec<_> = listing.waiting.drain(..).collect();
        listing.listers.extend(&freed);
        Ok(freed.into_iter().map(|other| (other, Answer::List)).collect())
    }

    /// A rank has ended: if no other rank lists, the next one that waits does. A listing without ranks is forgotten, so that
    /// a later job with the same identity lists anew.
    pub(super) fn handle_left(&mut self, rank: u32) -> Option<(u32, Answer)> {
        let key = self.ranks.remove(&rank)?;
        let listing = self.listings.get_mut(&key)?;
        listing.members -= 1;
        if listing.members == 0 {
            self.listings.remove(&key);
            return None;
        }
        listing.waiting.retain(|&other| other != rank);
        if !listing.listers.remove(&rank) || !listing.listers.is_empty() || listing.built.is_some() {
            return None;
        }
        let next = listing.waiting.pop_front()?;
        listing.listers.insert(next);
        Some((next, Answer::List))
    }

    /// The index of a rank's listing, once it is built.
    pub(super) fn built(&self, rank: u32) -> Option<&(ListingCounts, I)> {
        self.listing_of(rank)?.built.as_ref()
    }

    fn listing_of(&self, rank: u32) -> Option<&Listing<I>> {
        self.listings.get(self.ranks.get(&rank)?)
    }

    /// The listing of a rank that lists, which then does so no more.
    fn lister_of(&mut self, rank: u32) -> Result<&mut Listing<I>, NotLister> {
        let key = self.ranks.get(&rank).ok_or(NotLister)?;
        let listing = self.listings.get_mut(key).ok_or(NotLister)?;
        if listing.listers.remove(&rank) { Ok(listing) } else { Err(NotLister) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: ListingKey = ListingKey([1; 16]);
    const COUNTS: ListingCounts = ListingCounts { outside: 1, tail_elements: 2, tail_files: 3 };

    /// Three ranks, the first of which lists.
    fn three() -> ListingRegistry<&'static str> {
        let mut registry = ListingRegistry::default();
        assert_eq!(registry.handle_find(0, KEY), Answer::List);
        assert_eq!(registry.handle_find(1, KEY), Answer::Pending);
        assert_eq!(registry.handle_find(2, KEY), Answer::Pending);
        registry
    }

    #[test]
    fn the_first_rank_lists_and_all_others_get_its_index() {
        let mut registry = three();
        assert_eq!(registry.handle_alive(0), [(1, Answer::Pending), (2, Answer::Pending)]);
        let told = registry.handle_built(0, COUNTS, "index").unwrap();
        assert_eq!(told, [(1, Answer::Index), (2, Answer::Index)]);
        assert_eq!(registry.handle_find(3, KEY), Answer::Index);
        assert_eq!(registry.built(3), Some(&(COUNTS, "index")));
        assert_eq!(registry.handle_left(0), None);
        assert_eq!(registry.handle_find(4, KEY), Answer::Index, "the lister is not needed any more");
    }

    #[test]
    fn other_listings_are_independent() {
        let mut registry = three();
        assert_eq!(registry.handle_find(3, ListingKey([2; 16])), Answer::List);
        assert_eq!(registry.handle_built(0, COUNTS, "index").unwrap().len(), 2);
        assert_eq!(registry.built(3), None);
    }

    #[test]
    fn the_next_rank_lists_when_the_lister_has_ended() {
        let mut registry = three();
        assert_eq!(registry.handle_left(0), Some((1, Answer::List)));
        assert_eq!(registry.handle_built(1, COUNTS, "index").unwrap(), [(2, Answer::Index)]);
    }

    #[test]
    fn a_rank_that_ends_while_it_waits_is_not_asked_to_list() {
        let mut registry = three();
        assert_eq!(registry.handle_left(1), None);
        assert_eq!(registry.handle_left(0), Some((2, Answer::List)));
    }

    #[test]
    fn after_a_failure_all_ranks_that_wait_list_at_once() {
        let mut registry = three();
        assert_eq!(registry.handle_failed(0).unwrap(), [(1, Answer::List), (2, Answer::List)]);
        assert_eq!(registry.handle_find(3, KEY), Answer::Pending);
        assert_eq!(registry.handle_left(1), None, "another rank lists");
        assert_eq!(registry.handle_built(2, COUNTS, "index").unwrap(), [(3, Answer::Index)]);
        let mut alone = ListingRegistry::<()>::default();
        assert_eq!(alone.handle_find(0, KEY), Answer::List);
        assert_eq!(alone.handle_failed(0).unwrap(), []);
        assert_eq!(alone.handle_find(1, KEY), Answer::List);
    }

    #[test]
    fn of_two_indexes_of_one_listing_the_first_stays() {
        let mut registry = three();
        registry.handle_failed(0).unwrap();
        registry.handle_built(1, COUNTS, "first").unwrap();
        registry.handle_built(2, ListingCounts::default(), "second").unwrap();
        assert_eq!(registry.built(0), Some(&(COUNTS, "first")));
    }

    #[test]
    fn only_a_rank_that_lists_reports_an_end() {
        let mut registry = three();
        assert_eq!(registry.handle_built(1, COUNTS, "index"), Err(NotLister));
        assert_eq!(registry.handle_failed(2), Err(NotLister));
        assert_eq!(registry.handle_alive(1), []);
        registry.handle_built(0, COUNTS, "index").unwrap();
        assert_eq!(registry.handle_built(0, COUNTS, "again"), Err(NotLister));
        assert_eq!(registry.handle_failed(9), Err(NotLister));
        assert_eq!(registry.handle_left(9), None);
    }

    #[test]
    fn a_listing_without_ranks_is_forgotten() {
        let mut registry = three();
        registry.handle_built(0, COUNTS, "index").unwrap();
        for rank in 0..3 {
            assert_eq!(registry.handle_left(rank), None);
        }
        assert_eq!(registry.handle_find(3, KEY), Answer::List);
    }
}
