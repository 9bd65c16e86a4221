// SPDX-License-Identifier: Apache-2.0
//! A sample as it lies in a segment: 64 bytes of header, then the payload.
//!
//! The one place that knows the bytes of the format (`docs/formats/disk-cache.md`). A cell proves itself: it
//! names its sample, its version and its length, and two sums cover header and payload, so no list of cells
//! has to be believed. Refuses to read or write files.

use foresee_units::SampleId;

use crate::op::{Fingerprint, SampleKey, TagHash};

/// Segments are counted in these: a cache line of bytes, and the length of a header.
pub(super) const GRANULE: u64 = 64;
/// Bytes before the payload.
pub(super) const HEADER: usize = 64;
/// From here on a payload is worth whole pages: 4 KiB of padding are at most 6 % of it.
pub(super) const LARGE: u64 = 64 << 10;
pub(super) const PAGE: u64 = 4096;

const MAGIC: [u8; 4] = *b"4cel";
const VERSION: u16 = 1;

/// A header that has been checked, or is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) key: SampleKey,
    /// Payload bytes.
    pub(super) len: u64,
    /// Counts the writes of a lane: of two cells of one sample the later one is meant.
    pub(super) sequence: u64,
    pub(super) payload_crc: u32,
}

/// Granules that a cell takes, and the multiple of granules that it starts at.
pub(super) const fn layout(len: u64) -> (u64, u64) {
    let bytes = len.saturating_add(HEADER as u64);
    if len < LARGE {
        (bytes.div_ceil(GRANULE), 1)
    } else {
        (bytes.div_ceil(PAGE).saturating_mul(PAGE / GRANULE), PAGE / GRANULE)
    }
}

impl Cell {
    pub(super) fn encode(&self) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[0..4].copy_from_slice(&MAGIC);
        header[4..6].copy_from_slice(&VERSION.to_le_bytes());
        // 6..8: flags, none defined.
        header[8..24].copy_from_slice(&self.key.fingerprint.0);
        header[24..32].copy_from_slice(&self.key.id.0.to_le_bytes());
        header[32..40].copy_from_slice(&self.len.to_le_bytes());
        header[40..48].copy_from_slice(&self.key.tag.0.to_le_bytes());
        header[48..56].copy_from_slice(&self.sequence.to_le_bytes());
        header[56..60].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = crc32c::crc32c(&header[..60]);
        header[60..64].copy_from_slice(&crc.to_le_bytes());
        header
    }

    /// The header, if it is one of this version and whole. Its length is what was written, which says
    /// nothing about what is there.
    pub(super) fn decode(header: &[u8; HEADER]) -> Option<Self> {
        let whole = header[0..4] == MAGIC
            && header[4..6] == VERSION.to_le_bytes()
            && header[6..8] == [0, 0]
            && number::<4>(header, 60) == u64::from(crc32c::crc32c(&header[..60]));
        let mut fingerprint = Fingerprint::default();
        fingerprint.0.copy_from_slice(&header[8..24]);
        whole.then(|| Self {
            key: SampleKey {
                fingerprint,
                id: SampleId(number::<8>(header, 24)),
                tag: TagHash(number::<8>(header, 40)),
            },
            len: number::<8>(header, 32),
            sequence: number::<8>(header, 48),
            payload_crc: u32::try_from(number::<4>(header, 56)).expect("four bytes"),
        })
    }

    /// Whether this is the cell of `key`, `len` bytes long, and `payload` is what it was written with.
    pub(super) fn proves(&self, key: &SampleKey, payload: &[u8]) -> bool {
        self.key == *key && self.len == payload.len() as u64 && self.payload_crc == crc32c::crc32c(payload)
    }
}

/// `N` bytes from `at`, 8 or fewer, little end first.
fn number<const N: usize>(header: &[u8; HEADER], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes[..N].copy_from_slice(&header[at..at + N]);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell() -> Cell {
        Cell {
            key: SampleKey { fingerprint: Fingerprint([3; 16]), id: SampleId(7), tag: TagHash(9) },
            len: 5,
            sequence: 11,
            payload_crc: crc32c::crc32c(b"hello"),
        }
    }

    #[test]
    fn a_header_comes_back_and_proves_its_payload_only() {
        let cell = cell();
        assert_eq!(Cell::decode(&cell.encode()), Some(cell));
        assert!(cell.proves(&cell.key, b"hello"));
        assert!(!cell.proves(&cell.key, b"hellO") && !cell.proves(&cell.key, b"hell"));
        assert!(!cell.proves(&SampleKey { tag: TagHash(0), ..cell.key }, b"hello"));
    }

    #[test]
    fn a_header_with_any_bit_flipped_is_none() {
        for bit in 0..HEADER * 8 {
            let mut header = cell().encode();
            header[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Cell::decode(&header), None, "bit {bit}");
        }
    }

    #[test]
    fn the_format_does_not_change_by_accident() {
        let mut golden = *b"4cel\x01\0\0\0________________\x07_______\x05_______\x09_______\x0b_______\x4c\xbb\x71\x9a\x2a\x0d\xf4\x69";
        golden[8..24].fill(3);
        for number in [24, 32, 40, 48] {
            golden[number + 1..number + 8].fill(0);
        }
        assert_eq!(cell().encode(), golden);
    }

    #[test]
    fn small_cells_pack_tightly_and_large_ones_start_on_pages() {
        assert_eq!(layout(0), (1, 1));
        assert_eq!(layout(3000), (48, 1));
        assert_eq!(layout(LARGE), (17 * 64, 64));
        assert_eq!(layout(u64::MAX).1, 64, "an absurd length overflows nothing");
    }
}
