// SPDX-License-Identifier: Apache-2.0
//! Samples that a loader got through the cache of its node, by source, and the time for which it had requests there.
//!
//! Several batches are requested at once, and their answers arrive in parts. Each instant with a request in flight is
//! recorded once, with the part that ends it, so that the seconds of a rank add up to no more than its run.

use foresee_units::{Nanos, Source};

use crate::node::{CopyCount, CopyCounts, NodeHostFacts, NodeStats};

/// The copied samples of a loader.
#[derive(Debug)]
pub(super) struct NodeCopies {
    host: NodeHostFacts,
    copied: CopyCounts,
    /// The end of the time that is recorded.
    until: Nanos,
}

impl NodeCopies {
    pub(super) fn new(host: NodeHostFacts) -> Self {
        Self { host, copied: CopyCounts::default(), until: Nanos::ZERO }
    }

    /// The loader reads through another host from now on.
    pub(super) fn handle_host(&mut self, host: NodeHostFacts) {
        self.host = host;
    }

    /// Count samples of one batch, requested at `begun` and copied at `now`.
    ///
    /// Returns each source that has some, with its count, start and duration. The slowest of them has all of the time
    /// that is not recorded yet, and the others none.
    pub(super) fn record(
        &mut self,
        (begun, now): (Nanos, Nanos),
        by_source: CopyCounts,
    ) -> Vec<(Source, CopyCount, (Nanos, Nanos))> {
        self.copied.add(by_source);
        let start = begun.max(self.until);
        let mut left = now.saturating_sub(start);
        self.until = self.until.max(now);
        let used = by_source.each().into_iter().rev().filter(|(_, count)| count.samples > 0);
        used.map(|(source, count)| (source, count, (start, std::mem::take(&mut left)))).collect()
    }

    pub(super) fn stats(&self, is_attached: bool) -> NodeStats {
        NodeStats { host: self.host.clone(), is_attached, copied: self.copied }
    }
}

#[cfg(test)]
mod tests {
    use foresee_data_node::NodeAddress;
    use foresee_ledger::{NodeCache, NodeCacheRole};
    use foresee_units::Bytes;

    use super::*;

    fn copies() -> NodeCopies {
        let cache =
            NodeCache { id: String::new(), role: NodeCacheRole::Host, ram: Bytes::ZERO, disk: Bytes::ZERO };
        NodeCopies::new(NodeHostFacts { cache, address: NodeAddress::explicit("/a").unwrap() })
    }

    fn record(
        copies: &mut NodeCopies,
        (begun, now): (u64, u64),
        by_source: CopyCounts,
    ) -> Vec<(Source, u64, u64, u64)> {
        let rows = copies.record((Nanos::new(begun), Nanos::new(now)), by_source);
        rows.into_iter()
            .map(|(source, count, (start, duration))| (source, count.samples, start.get(), duration.get()))
            .collect()
    }

    const TWO: CopyCount = CopyCount { samples: 2, bytes: 20 };

    #[test]
    fn batches_in_flight_together_are_timed_once() {
        let mut copies = copies();
        let origin = CopyCounts { origin: TWO, ..CopyCounts::default() };
        let memory = CopyCounts { memory: TWO, ..CopyCounts::default() };
        assert_eq!(record(&mut copies, (0, 10), memory), [(Source::Ram, 2, 0, 10)]);
        assert_eq!(record(&mut copies, (0, 100), origin), [(Source::Origin, 2, 10, 90)]);
        assert_eq!(record(&mut copies, (5, 100), memory), [(Source::Ram, 2, 100, 0)]);
        assert_eq!(record(&mut copies, (150, 170), origin), [(Source::Origin, 2, 150, 20)]);
        let copied = copies.stats(true).copied;
        assert_eq!((copied.memory.samples, copied.origin.bytes), (4, 40));
    }

    #[test]
    fn the_slowest_source_of_a_part_has_its_time() {
        let all = CopyCounts { memory: TWO, disk: TWO, peer: CopyCount::default(), origin: TWO };
        let rows = [(Source::Origin, 2, 0, 30), (Source::Disk, 2, 0, 0), (Source::Ram, 2, 0, 0)];
        assert_eq!(record(&mut copies(), (0, 30), all), rows);
    }
}
