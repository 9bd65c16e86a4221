// SPDX-License-Identifier: Apache-2.0
//! Encoding of memberships: one bit per rank, rank 0 in the lowest bit of the first byte.
//!
//! `Members::new` validates decoded ranks.

use foresee_grad_queue::Members;
use foresee_units::Rank;

/// The bytes of a membership, up to the byte of its last member.
pub fn to_bits(members: &Members) -> Vec<u8> {
    let mut bits = Vec::new();
    for Rank(rank) in members.iter() {
        bits.resize(rank as usize / 8 + 1, 0);
        bits[rank as usize / 8] |= 1 << (rank % 8);
    }
    bits
}

/// The ranks of a membership, in rank order.
pub fn from_bits(bits: &[u8]) -> impl Iterator<Item = Rank> + '_ {
    let bytes = (0_u32..).zip(bits);
    bytes.flat_map(|(at, byte)| {
        (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| Rank(8 * at + bit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_membership_is_decoded_from_its_bits() {
        for world in [1, 8, 9, 70] {
            let odd = (0..world).filter(|rank| rank % 3 != 1 || world == 1).map(Rank);
            let members = Members::new(2, world, odd).unwrap();
            let back = Members::new(2, world, from_bits(&to_bits(&members))).unwrap();
            assert_eq!(back, members);
        }
    }
}
