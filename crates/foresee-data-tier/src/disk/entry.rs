// SPDX-License-Identifier: Apache-2.0
//! An entry of the cache in a segment: a header of 64 bytes, then the payload.
//!
//! Only this file knows the bytes of the format (`docs/formats/disk-cache.md`). An entry is self-describing: it has
//! its key and length, and checksums of header and payload, so no list of entries needs to be trusted. This file does
//! no I/O.

use crate::identity::EntryKey;

/// The unit of segments: a cache line, and the length of a header.
pub(super) const GRANULE: u64 = 64;
/// Bytes before the payload.
pub(super) const HEADER: usize = 64;
/// From this length on, a payload takes whole pages: 4 KiB of padding are at most 6 % of it.
pub(super) const LARGE: u64 = 64 << 10;
pub(super) const PAGE: u64 = 4096;

const MAGIC: [u8; 4] = *b"4ent";
const VERSION: u16 = 2;
/// The position of the header's checksum.
const CRC_AT: usize = HEADER - 4;
/// Bytes from here to the checksum are 0 in this version.
const UNUSED_AT: usize = 44;

/// A verified or new header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: EntryKey,
    /// Payload bytes.
    pub(super) len: u64,
    /// Counts the writes of a partition: of two entries with one key, the later one is valid.
    pub(super) sequence: u64,
    pub(super) payload_crc: u32,
}

/// The granules of an entry, and the alignment of its start.
pub(super) const fn layout(len: u64) -> (u64, u64) {
    let bytes = len.saturating_add(HEADER as u64);
    if len < LARGE {
        (bytes.div_ceil(GRANULE), 1)
    } else {
        (bytes.div_ceil(PAGE).saturating_mul(PAGE / GRANULE), PAGE / GRANULE)
    }
}

impl Entry {
    pub(super) fn encode(&self) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[0..4].copy_from_slice(&MAGIC);
        header[4..6].copy_from_slice(&VERSION.to_le_bytes());
        // 6..8: flags, none defined.
        header[8..24].copy_from_slice(&self.key.0);
        header[24..32].copy_from_slice(&self.len.to_le_bytes());
        header[32..40].copy_from_slice(&self.sequence.to_le_bytes());
        header[40..44].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = crc32c::crc32c(&header[..CRC_AT]);
        header[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        header
    }

    /// Decode a header of this version with a valid checksum. The payload has a checksum of its own.
    pub(super) fn decode(header: &[u8; HEADER]) -> Option<Self> {
        let valid = header[0..4] == MAGIC
            && header[4..6] == VERSION.to_le_bytes()
            && header[6..8] == [0, 0]
            && header[UNUSED_AT..CRC_AT].iter().all(|byte| *byte == 0)
            && number::<4>(header, CRC_AT) == u64::from(crc32c::crc32c(&header[..CRC_AT]));
        let mut key = EntryKey::default();
        key.0.copy_from_slice(&header[8..24]);
        valid.then(|| Self {
            key,
            len: number::<8>(header, 24),
            sequence: number::<8>(header, 32),
            payload_crc: u32::try_from(number::<4>(header, 40)).expect("four bytes"),
        })
    }

    /// Whether this is the entry of `key`, with the given payload.
    pub(super) fn matches(&self, key: &EntryKey, payload: &[u8]) -> bool {
        self.key == *key && self.len == payload.len() as u64 && self.payload_crc == crc32c::crc32c(payload)
    }
}

/// `N` bytes from `at`, at most 8, little-endian.
fn number<const N: usize>(header: &[u8; HEADER], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes[..N].copy_from_slice(&header[at..at + N]);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry { key: EntryKey([3; 16]), len: 5, sequence: 11, payload_crc: crc32c::crc32c(b"hello") }
    }

    #[test]
    fn a_header_is_decoded_and_matches_its_payload_only() {
        let entry = entry();
        assert_eq!(Entry::decode(&entry.encode()), Some(entry));
        assert!(entry.matches(&entry.key, b"hello"));
        assert!(!entry.matches(&entry.key, b"hellO") && !entry.matches(&entry.key, b"hell"));
        assert!(!entry.matches(&EntryKey([4; 16]), b"hello"));
    }

    #[test]
    fn a_header_with_a_flipped_bit_is_not_decoded() {
        for bit in 0..HEADER * 8 {
            let mut header = entry().encode();
            header[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Entry::decode(&header), None, "bit {bit}");
        }
    }

    #[test]
    fn the_format_does_not_change_by_accident() {
        let mut golden = [0; HEADER];
        golden[..8].copy_from_slice(b"4ent\x02\0\0\0");
        golden[8..24].fill(3);
        (golden[24], golden[32]) = (5, 11);
        golden[40..44].copy_from_slice(b"\x4c\xbb\x71\x9a");
        golden[60..].copy_from_slice(b"\x39\x0f\xf3\xc7");
        assert_eq!(entry().encode(), golden);
    }

    #[test]
    fn small_entries_pack_tightly_and_large_ones_start_on_pages() {
        assert_eq!(layout(0), (1, 1));
        assert_eq!(layout(3000), (48, 1));
        assert_eq!(layout(LARGE), (17 * 64, 64));
        assert_eq!(layout(u64::MAX).1, 64, "an absurd length overflows nothing");
    }
}
