// SPDX-License-Identifier: Apache-2.0
//! A rank's share of its link when servers share the ranks' nodes, and the fastest distribution of packets.
//!
//! It is separate from `link`, which models the overhead on the wire. All nodes have equal links.

use crate::ModelError;
use crate::number::check;

/// Servers of one exchange: one on each rank's node, and some on nodes of their own.
///
/// Each summed byte belongs to one server. `c` is the share of all bytes on each co-located server, `d` that on
/// each dedicated one. A rank's node sends its own gradients except the local share (`1 - c`), and the sums of
/// its server to the other ranks (`c (n - 1)`); a dedicated node sends `d n`. The downlinks carry the same. The
/// slower of the two determines the time.
///
/// # Examples
/// ```
/// # use foresee_model::ServerMix;
/// let mix = ServerMix::best(4, 2)?;
/// assert_eq!(mix.share_of_link(), 5.0 / 6.0); // 0.667 without dedicated servers, 1 with four
/// assert_eq!((mix.colocated(), mix.dedicated()), (0.1, 0.3));
/// # Ok::<(), foresee_model::ModelError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServerMix {
    ranks: u32,
    dedicated: u32,
    colocated_share: f64,
    dedicated_share: f64,
}

impl ServerMix {
    /// The fastest mix for `ranks` ranks and `dedicated` further nodes.
    ///
    /// All links are equally busy: `(n - k) / D` for each co-located server and `2 (n - 1) / D` for each
    /// dedicated one, with `D = n^2 + k (n - 2)`. From `k = n` dedicated servers on, they sum everything. Without
    /// one the volume is that of an all-reduce. The derivation is our own, and matches `Hash_Mixed_Mode` of
    /// `BytePS`.
    ///
    /// # Errors
    /// [`ModelError::InvalidInput`] for fewer than 2 ranks: one alone exchanges nothing.
    pub fn best(ranks: u32, dedicated: u32) -> Result<Self, ModelError> {
        check_ranks(ranks)?;
        if dedicated >= ranks {
            return Self::dedicated_only(ranks, dedicated);
        }
        let (n, k) = (f64::from(ranks), f64::from(dedicated));
        let denominator = n * n + k * (n - 2.0);
        Ok(Self {
            ranks,
            dedicated,
            colocated_share: (n - k) / denominator,
            dedicated_share: if dedicated == 0 { 0.0 } else { 2.0 * (n - 1.0) / denominator },
        })
    }

    /// A mix without servers on the ranks' nodes; the dedicated ones share evenly.
    ///
    /// # Errors
    /// [`ModelError::InvalidInput`] for fewer than 2 ranks or no server.
    pub fn dedicated_only(ranks: u32, dedicated: u32) -> Result<Self, ModelError> {
        check_ranks(ranks)?;
        check(dedicated > 0, "dedicated servers", 0.0, "1 or more where no server is co-located")?;
        Ok(Self { ranks, dedicated, colocated_share: 0.0, dedicated_share: 1.0 / f64::from(dedicated) })
    }

    /// Fraction of all bytes that each co-located server sums.
    pub const fn colocated(&self) -> f64 {
        self.colocated_share
    }

    /// Fraction of all bytes that each dedicated server sums; 0 without one.
    pub const fn dedicated(&self) -> f64 {
        self.dedicated_share
    }

    /// Fraction of a link for one rank's gradients, equal in both directions: the factor of `B_eff`.
    ///
    /// `(n^2 + k (n - 2)) / (2 n (n - 1))` for the best mix of `k < n` dedicated servers, 1 from `k = n` on;
    /// `min(1, k / n)` for dedicated ones alone.
    pub fn share_of_link(&self) -> f64 {
        let n = f64::from(self.ranks);
        let of_rank = 1.0 + self.colocated_share * (n - 2.0);
        let of_dedicated = n * self.dedicated_share;
        1.0 / of_rank.max(of_dedicated)
    }

    /// Ranks, 2 or more.
    pub const fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Dedicated servers.
    pub const fn dedicated_servers(&self) -> u32 {
        self.dedicated
    }
}

fn check_ranks(ranks: u32) -> Result<f64, ModelError> {
    check(ranks >= 2, "ranks", f64::from(ranks), "2 or more; one rank exchanges nothing")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn formula(n: f64, k: f64) -> f64 {
        if k >= n { 1.0 } else { (n * n + k * (n - 2.0)) / (2.0 * n * (n - 1.0)) }
    }

    #[test]
    fn the_best_mix_follows_the_formula_and_distributes_every_byte_once() {
        for n in 2..40_u32 {
            for k in 0..60_u32 {
                let mix = ServerMix::best(n, k).unwrap();
                let (wide_n, wide_k) = (f64::from(n), f64::from(k));
                let factor = mix.share_of_link();
                assert!((factor - formula(wide_n, wide_k)).abs() < 1e-12, "n={n} k={k}: {factor}");
                let sum = wide_n * mix.colocated() + wide_k * mix.dedicated();
                assert!((sum - 1.0).abs() < 1e-12, "n={n} k={k}: {sum}");
            }
        }
    }

    #[test]
    fn no_other_mix_is_faster() {
        for n in 2..12_u32 {
            for k in 1..12_u32 {
                let best = ServerMix::best(n, k).unwrap();
                for tenth in 0..=100 {
                    let colocated_share = f64::from(tenth) / 100.0 / f64::from(n);
                    let dedicated_share = (1.0 - f64::from(tenth) / 100.0) / f64::from(k);
                    let other = ServerMix { colocated_share, dedicated_share, ..best };
                    assert!(other.share_of_link() <= best.share_of_link() + 1e-12, "n={n} k={k} {other:?}");
                }
            }
        }
    }

    #[test]
    fn dedicated_servers_alone_are_slower_until_there_is_one_per_rank() {
        let share = |n, k| ServerMix::dedicated_only(n, k).unwrap().share_of_link();
        assert_eq!((share(4, 1), share(4, 2), share(4, 4), share(4, 9)), (0.25, 0.5, 1.0, 1.0));
        for k in 0..5 {
            assert!((ServerMix::best(2, k).unwrap().share_of_link() - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn one_rank_and_no_server_at_all_are_refused() {
        assert!(ServerMix::best(1, 3).is_err());
        assert!(ServerMix::best(0, 0).is_err());
        assert!(ServerMix::dedicated_only(2, 0).is_err());
        let mix = ServerMix::best(u32::MAX, 7).unwrap();
        assert_eq!((mix.ranks(), mix.dedicated_servers()), (u32::MAX, 7));
    }
}
