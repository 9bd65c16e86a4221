// SPDX-License-Identifier: Apache-2.0
//! The requests of one consumer by access number, of which most are contiguous and end in order.

use std::collections::VecDeque;

use super::consumer::ConsumerRequest;

/// Ended requests between others beyond the number of others that trigger no clean-up.
const ENDED_SLACK: usize = 1024;

/// A queue in order of the access numbers, in which a request is mostly found by its distance to the first.
#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    /// The first has not ended.
    queue: VecDeque<(u64, Option<ConsumerRequest>)>,
    pending: usize,
}

impl PendingRequests {
    pub(super) fn get(&self, access: u64) -> Option<&ConsumerRequest> {
        self.queue[self.find(access).ok()?].1.as_ref()
    }

    pub(super) fn get_mut(&mut self, access: u64) -> Option<&mut ConsumerRequest> {
        let at = self.find(access).ok()?;
        self.queue[at].1.as_mut()
    }

    /// Add a request, or replace that of the same access.
    pub(super) fn insert(&mut self, access: u64, request: ConsumerRequest) {
        let at = match self.find(access) {
            Ok(at) => at,
            Err(at) => {
                self.queue.insert(at, (access, None));
                at
            }
        };
        self.pending += usize::from(self.queue[at].1.replace(request).is_none());
    }

    pub(super) fn remove(&mut self, access: u64) -> Option<ConsumerRequest> {
        let at = self.find(access).ok()?;
        let removed = self.queue[at].1.take()?;
        self.pending -= 1;
        if self.queue.len() > 2 * self.pending + ENDED_SLACK {
            self.queue.retain(|(_, request)| request.is_some());
        }
        while self.queue.front().is_some_and(|(_, request)| request.is_none()) {
            self.queue.pop_front();
        }
        Some(removed)
    }

    /// Remove the requests for which `ends` holds; return them in order of their accesses.
    pub(super) fn remove_if(
        &mut self,
        ends: impl Fn(&ConsumerRequest) -> bool,
    ) -> Vec<(u64, ConsumerRequest)> {
        let pending = std::mem::take(self).queue.into_iter();
        let mut removed = Vec::new();
        for (access, request) in pending.filter_map(|(access, request)| Some((access, request?))) {
            if ends(&request) {
                removed.push((access, request));
            } else {
                self.insert(access, request);
            }
        }
        removed
    }

    /// Pending requests in order of their accesses.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &ConsumerRequest)> {
        self.queue.iter().filter_map(|(access, request)| Some((*access, request.as_ref()?)))
    }

    /// The place of an access in the queue, or that at which it would be.
    fn find(&self, access: u64) -> Result<usize, usize> {
        let (Some(&(first, _)), Some(&(last, _))) = (self.queue.front(), self.queue.back()) else {
            return Err(0);
        };
        if access > last {
            return Err(self.queue.len());
        }
        let distance = usize::try_from(access.saturating_sub(first)).unwrap_or(usize::MAX);
        if self.queue.get(distance).is_some_and(|&(found, _)| found == access) {
            return Ok(distance);
        }
        self.queue.binary_search_by_key(&access, |&(found, _)| found)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use foresee_testkit::Dice;

    use super::super::consumer::RequestState;
    use super::*;

    fn request(entry: u32) -> ConsumerRequest {
        ConsumerRequest { entry, state: RequestState::TakenBack }
    }

    #[test]
    fn it_is_a_map_in_order() {
        for seed in 0..64 {
            let mut dice = Dice::new(seed);
            let (mut requests, mut map) = (PendingRequests::default(), BTreeMap::new());
            let mut next = 0;
            for step in 0..4000 {
                if dice.one_in(2) {
                    next += 1 + if dice.one_in(20) { dice.below(9) as u64 } else { 0 };
                    requests.insert(next, request(step));
                    map.insert(next, step);
                } else if dice.one_in(300) {
                    let removed = requests.remove_if(|one| one.entry % 2 == 0);
                    let expected: Vec<_> = map.extract_if(.., |_, entry| *entry % 2 == 0).collect();
                    assert_eq!(
                        removed.iter().map(|(access, one)| (*access, one.entry)).collect::<Vec<_>>(),
                        expected
                    );
                } else {
                    // Mostly the first one.
                    let nth = if dice.one_in(4) { dice.below(map.len() + 1) } else { 0 };
                    let access = map.keys().nth(nth).copied().unwrap_or(next + 1);
                    if dice.one_in(5) && map.contains_key(&access) {
                        requests.insert(access, request(step));
                        map.insert(access, step);
                    }
                    assert_eq!(requests.get(access).map(|one| one.entry), map.get(&access).copied());
                    assert_eq!(requests.get_mut(access).map(|one| one.entry), map.get(&access).copied());
                    assert_eq!(
                        requests.remove(access).map(|one| one.entry),
                        map.remove(&access),
                        "seed {seed}"
                    );
                }
                assert_eq!(requests.pending, map.len(), "seed {seed}");
            }
            let found: Vec<_> = requests.iter().map(|(access, one)| (access, one.entry)).collect();
            assert_eq!(found, map.into_iter().collect::<Vec<_>>(), "seed {seed}");
        }
    }
}
