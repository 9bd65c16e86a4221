// SPDX-License-Identifier: Apache-2.0
//! Assignment of packets to servers: a smooth weighted round robin.
//!
//! Packets are distributed instead of tensors, so that one huge layer loads all servers equally. Each place of
//! the pattern goes to the server with the earliest deadline. Deadlines follow from each server's period, as in
//! fair scheduling of periodic tasks, so no server is ever a whole packet ahead of its share or behind it.
//!
//! No table per packet or per tensor exists: counts, n-th packets and their inverse are computed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use foresee_units::SplitMix64;

use crate::{QueueError, ServerId};

/// The most servers of a job.
pub(crate) const SERVERS_MAX: usize = 65_535;
/// The longest pattern: 4 MiB of tables, and a share of one millionth.
pub(crate) const LENGTH_MAX: u64 = 1 << 20;

/// A repeating pattern of servers. Each tensor starts at some place of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Pattern {
    shares: Vec<u32>,
    /// The server of each place.
    places: Vec<u16>,
    /// For each place, its index among the places of its server.
    nth: Vec<u32>,
    /// Places grouped by server, ascending; server s has `starts[s]..starts[s + 1]`.
    of_server: Vec<u32>,
    starts: Vec<u32>,
}

impl std::fmt::Debug for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pattern").field("shares", &self.shares).finish_non_exhaustive()
    }
}

impl Pattern {
    /// A pattern for the given shares, in any unit: 1 to 65535 servers, whose shares sum to 1 to 2^20 after
    /// common factors are removed. A server with share 0 sums nothing.
    pub fn new(shares: &[u32]) -> Result<Self, QueueError> {
        let divisor = shares.iter().fold(0, |a, b| greatest_common_divisor(a, *b)).max(1);
        let total: u64 = shares.iter().map(|share| u64::from(share / divisor)).sum();
        if shares.len() > SERVERS_MAX || !(1..=LENGTH_MAX).contains(&total) {
            return Err(QueueError::Pattern { servers: shares.len(), total });
        }
        let shares: Vec<u32> = shares.iter().map(|share| share / divisor).collect();
        let places = assign(&shares, total);
        let mut starts = vec![0_u32];
        for share in &shares {
            starts.push(starts[starts.len() - 1] + share);
        }
        let mut used = starts.clone();
        let (mut nth, mut of_server) = (Vec::with_capacity(places.len()), vec![0; places.len()]);
        for (place, server) in (0_u32..).zip(&places) {
            let server = usize::from(*server);
            nth.push(used[server] - starts[server]);
            of_server[used[server] as usize] = place;
            used[server] += 1;
        }
        Ok(Self { shares, places, nth, of_server, starts })
    }

    /// A pattern of one co-located server on the node of each of `ranks` ranks, and `extra` servers on separate
    /// nodes, with the shares of highest throughput. Of `n^2 + k (n - 2)` parts, each co-located server has
    /// `n - k` and each extra one `2 (n - 1)`. With `k >= n` the extra servers sum everything; with `k = 0` the
    /// volume is that of all-reduce.
    ///
    /// Co-located servers come first, by rank. Shares too fine for a pattern of 2^20 places are rounded.
    pub fn mixed(ranks: u16, extra: u16) -> Result<Self, QueueError> {
        let (n, k) = (u64::from(ranks), u64::from(extra));
        let (colocated, dedicated) = if k == 0 {
            (1, 0)
        } else if k >= n {
            (0, 1)
        } else {
            (n - k, 2 * (n - 1))
        };
        let total = (n * colocated + k * dedicated).max(1);
        let fit = |share: u64| {
            let fits = if total <= LENGTH_MAX { share } else { share * LENGTH_MAX / total };
            u32::try_from(if share > 0 { fits.max(1) } else { 0 }).unwrap_or(u32::MAX)
        };
        let mut shares = vec![fit(colocated); usize::from(ranks)];
        shares.extend(vec![fit(dedicated); usize::from(extra)]);
        Self::new(&shares)
    }

    /// The servers' shares of [`len`](Self::len), without common factors.
    pub fn shares(&self) -> &[u32] {
        &self.shares
    }

    /// The servers that sum packets: those with a share above 0.
    pub fn active(&self) -> impl Iterator<Item = ServerId> + '_ {
        let shares = (0..).map(ServerId).zip(&self.shares);
        shares.filter(|(_, share)| **share > 0).map(|(server, _)| server)
    }

    /// The length of the pattern, 1 to 2^20; also the sum of the shares.
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> u32 {
        self.starts[self.shares.len()]
    }

    /// The place where tensor number `tensor` starts: pseudo-random, so that first packets spread as well.
    pub(crate) fn start_of(&self, tensor: u32) -> u32 {
        let spread = SplitMix64::new(u64::from(tensor)).next() % u64::from(self.len());
        u32::try_from(spread).expect("less than the length")
    }

    /// The server of packet `packet` of a tensor that starts at place `start`, and the number of the tensor's
    /// earlier packets on that server.
    pub(crate) fn locate(&self, start: u32, packet: u64) -> (ServerId, u64) {
        let (cycle, place) = self.place(start, packet);
        let server = self.places[place as usize];
        let share = self.shares[usize::from(server)];
        let passed = self.before(server, start);
        let nth = (self.nth[place as usize] + share - passed) % share;
        (ServerId(server), cycle * u64::from(share) + u64::from(nth))
    }

    /// The number of `server`'s packets among the first `packets` packets of a tensor that starts at `start`.
    pub(crate) fn count(&self, start: u32, packets: u64, server: ServerId) -> u64 {
        let Some(share) = self.shares.get(usize::from(server.0)) else { return 0 };
        let (cycles, end) = self.place(start, packets);
        let from = self.before(server.0, start);
        let to = self.before(server.0, end);
        // A window that wraps covers the places from `start` on and those before `end`.
        let rest = if end < start { share - from + to } else { to - from };
        cycles * u64::from(*share) + u64::from(rest)
    }

    /// The `nth` packet, from 0, of `server` in an unbounded tensor that starts at `start`.
    pub(crate) fn nth_packet(&self, start: u32, server: ServerId, nth: u64) -> Option<u64> {
        let share = *self.shares.get(usize::from(server.0)).filter(|share| **share > 0)?;
        let (cycle, nth) = (nth / u64::from(share), u32::try_from(nth % u64::from(share)).ok()?);
        let index = (self.before(server.0, start) + nth) % share;
        let place = self.places_of(server.0)[index as usize];
        let offset = (place + self.len() - start) % self.len();
        cycle.checked_mul(u64::from(self.len()))?.checked_add(u64::from(offset))
    }

    /// The whole cycles before a packet, and its place.
    fn place(&self, start: u32, packet: u64) -> (u64, u32) {
        let len = u64::from(self.len());
        let place = (u64::from(start) + packet % len) % len;
        (packet / len, u32::try_from(place).expect("less than the length"))
    }

    /// The number of `server`'s places below `place`.
    fn before(&self, server: u16, place: u32) -> u32 {
        let before = self.places_of(server).partition_point(|own| *own < place);
        u32::try_from(before).expect("at most the length")
    }

    fn places_of(&self, server: u16) -> &[u32] {
        let server = usize::from(server);
        &self.of_server[self.starts[server] as usize..self.starts[server + 1] as usize]
    }
}

/// Assign each of `total` places to the released server with the earliest deadline.
///
/// The j-th packet of a server with share w is released at place `floor(j T / w)` and due before `ceil((j + 1) T
/// / w)`. The shares sum to one, so earliest deadline first meets every deadline.
fn assign(shares: &[u32], total: u64) -> Vec<u16> {
    let window = |server: u16, nth: u64| {
        let share = u64::from(shares[usize::from(server)]);
        (nth * total / share, ((nth + 1) * total).div_ceil(share))
    };
    let active = (0_u16..).zip(shares).filter(|(_, share)| **share > 0).map(|(server, _)| server);
    // Both by (place, server): of equals, the lower server is first.
    let mut waiting = BinaryHeap::new();
    let mut due: BinaryHeap<_> = active.map(|server| Reverse((window(server, 0).1, server, 0_u64))).collect();
    let mut places = Vec::with_capacity(usize::try_from(total).unwrap_or(0));
    for place in 0..total {
        while let Some(Reverse((from, server, nth))) = waiting.peek().copied() {
            if from > place {
                break;
            }
            waiting.pop();
            due.push(Reverse((window(server, nth).1, server, nth)));
        }
        let Reverse((end, server, nth)) = due.pop().expect("shares add up to one, so one is due");
        assert!(place < end, "earliest deadline first meets every deadline");
        places.push(server);
        if nth + 1 < u64::from(shares[usize::from(server)]) {
            waiting.push(Reverse((window(server, nth + 1).0, server, nth + 1)));
        }
    }
    places
}

const fn greatest_common_divisor(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use foresee_testkit::property;
    use proptest::prelude::*;

    #[test]
    fn mixed_shares_follow_the_formula() {
        let shares = |n, k| Pattern::mixed(n, k).unwrap().shares().to_vec();
        assert_eq!(shares(4, 0), [1, 1, 1, 1]);
        assert_eq!(shares(4, 1), [1, 1, 1, 1, 2]);
        assert_eq!(shares(4, 2), [1, 1, 1, 1, 3, 3]);
        assert_eq!(shares(4, 3), [1, 1, 1, 1, 6, 6, 6]);
        assert_eq!(shares(4, 4), [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(shares(2, 1), [1, 1, 2]);
        assert_eq!(shares(1, 0), [1]);
        assert_eq!(shares(1, 1), [0, 1]);
        let large = Pattern::mixed(4096, 2047).unwrap();
        assert!(large.shares().iter().all(|share| *share > 0));
    }

    #[test]
    fn no_server_no_share_and_too_fine_shares_are_refused() {
        assert!(Pattern::new(&[]).is_err());
        assert!(Pattern::new(&[0, 0]).is_err());
        assert!(Pattern::new(&[u32::MAX, 1]).is_err());
        assert!(Pattern::mixed(0, 0).is_err());
        assert_eq!(Pattern::new(&[1 << 30, 1 << 31]).unwrap().shares(), [1, 2]);
        assert_eq!(Pattern::new(&[1, 1, 1]).unwrap().places, [0, 1, 2]);
    }

    proptest! {
        #![proptest_config(property(1_500))]

        #[test]
        fn every_prefix_is_within_one_packet_of_the_shares(shares in prop::collection::vec(0..60_u32, 1..12)) {
            prop_assume!(shares.iter().any(|share| *share > 0));
            let pattern = Pattern::new(&shares).unwrap();
            let len = u64::from(pattern.len());
            let mut counts = vec![0_u64; pattern.shares.len()];
            for (packets, server) in (1..).zip(&pattern.places) {
                counts[usize::from(*server)] += 1;
                for (count, share) in counts.iter().zip(&pattern.shares) {
                    // |count - packets * share / len| < 1, in integers.
                    prop_assert!((count * len).abs_diff(packets * u64::from(*share)) < len);
                }
            }
            prop_assert!(counts.iter().zip(&pattern.shares).all(|(count, share)| *count == u64::from(*share)));
        }

        #[test]
        fn counts_nth_packets_and_places_agree(
            shares in prop::collection::vec(0..9_u32, 1..7), tensor in any::<u32>(), packets in 0..200_u64,
        ) {
            prop_assume!(shares.iter().any(|share| *share > 0));
            let pattern = Pattern::new(&shares).unwrap();
            let start = pattern.start_of(tensor);
            let mut counts = vec![0_u64; shares.len()];
            for packet in 0..packets {
                let (server, nth) = pattern.locate(start, packet);
                let place = (u64::from(start) + packet) % u64::from(pattern.len());
                prop_assert_eq!(server.0, pattern.places[usize::try_from(place).unwrap()]);
                prop_assert_eq!(nth, counts[usize::from(server.0)]);
                prop_assert_eq!(pattern.nth_packet(start, server, nth), Some(packet));
                counts[usize::from(server.0)] += 1;
            }
            for (server, count) in (0..).map(ServerId).zip(counts) {
                prop_assert_eq!(pattern.count(start, packets, server), count);
            }
        }
    }

    #[test]
    fn packets_beyond_2_to_the_32_are_found_without_a_table() {
        let pattern = Pattern::mixed(4, 2).unwrap();
        let (start, packet) = (pattern.start_of(3), (1_u64 << 40) + 12_345);
        let (server, nth) = pattern.locate(start, packet);
        assert_eq!(pattern.nth_packet(start, server, nth), Some(packet));
        assert_eq!(pattern.count(start, packet, server), nth);
        assert_eq!(pattern.nth_packet(start, server, u64::MAX), None);
        assert_eq!(pattern.nth_packet(start, ServerId(99), 0), None);
    }
}
