// SPDX-License-Identifier: Apache-2.0
//! What a node tells the other nodes of its job before they exchange samples. Whoever runs the job carries it to them.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// See the module. Nodes exchange samples if all but address, capacity and contents are equal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerOffer {
    /// Version of the Foresee package.
    pub foresee: String,
    /// Identity of the loader within the job.
    pub loader: [u8; 16],
    /// How often the loader has continued elsewhere before.
    pub generation: u32,
    /// The epoch in which it has continued.
    pub epoch: u64,
    /// The global position there.
    pub position: u64,
    /// Where the node listens.
    pub address: SocketAddr,
    /// What it reserves, in bytes.
    pub capacity: u64,
    /// Each sample takes a multiple of so many bytes of it, at least 1.
    pub align: u64,
    /// And so many more bytes.
    pub overhead: u64,
    /// The samples that it has: a bit for each, the lowest bit of the first byte first.
    pub contents: Vec<u8>,
}

impl PeerOffer {
    /// The encoded offer.
    #[expect(clippy::missing_panics_doc, reason = "no value of the fields leads to an error")]
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("only memory bounds the length")
    }

    /// Decode exactly one offer; `None` if the bytes are not the encoding of one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (offer, rest) = postcard::take_from_bytes::<Self>(bytes).ok()?;
        (rest.is_empty() && offer.align > 0).then_some(offer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_is_read_as_it_was_written_and_not_in_part() {
        let offer = PeerOffer {
            foresee: "1".into(),
            loader: [1; 16],
            generation: 0,
            epoch: 2,
            position: 3,
            address: ([127, 0, 0, 1], 4).into(),
            capacity: 5,
            align: 64,
            overhead: 0,
            contents: vec![6, 7],
        };
        let mut bytes = offer.encode();
        assert_eq!(PeerOffer::decode(&bytes).as_ref(), Some(&offer));
        for len in 0..bytes.len() {
            assert_eq!(PeerOffer::decode(&bytes[..len]), None);
        }
        bytes.push(0);
        assert_eq!(PeerOffer::decode(&bytes), None);
        assert_eq!(PeerOffer::decode(&PeerOffer { align: 0, ..offer }.encode()), None);
    }
}
