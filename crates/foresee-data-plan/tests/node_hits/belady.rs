// SPDX-License-Identifier: Apache-2.0
//! Belady's rule for entries of one size, from the textbook: an independent count of hits.
//!
//! Source: Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 1966.

use std::collections::BTreeMap;

/// Time of an access that never occurs.
const NEVER: u64 = u64::MAX;

/// Hits of a cache for `capacity` entries, which evicts the one that is used latest, and of those with one time the
/// largest. `accesses` are entries in order, with the times at which the cache expects them. With `bypasses`, it does not
/// store an entry that it would evict first; otherwise, it stores every entry.
pub(crate) fn belady(accesses: &[(u32, u64)], capacity: usize, bypasses: bool) -> usize {
    let mut next_uses = vec![NEVER; accesses.len()];
    let mut expected = BTreeMap::new();
    for (index, &(entry, time)) in accesses.iter().enumerate().rev() {
        let next = expected.entry(entry).or_insert(NEVER);
        next_uses[index] = *next;
        *next = time.min(*next);
    }
    // By entry: its next use.
    let mut cached: BTreeMap<u32, u64> = BTreeMap::new();
    let mut hits = 0;
    for (&(entry, _), &next) in accesses.iter().zip(&next_uses) {
        if cached.contains_key(&entry) {
            hits += 1;
        } else if cached.len() == capacity {
            let victim = cached.iter().map(|(&entry, &time)| (time, entry)).max();
            let Some((_, victim)) = victim.filter(|&victim| !bypasses || victim > (next, entry)) else {
                continue;
            };
            cached.remove(&victim);
        }
        cached.insert(entry, next);
    }
    hits
}
