// SPDX-License-Identifier: Apache-2.0
//! A listing in memory for sorting: ten million keys and tags without ten million allocations.
//!
//! Keys and tags are concatenated in blocks, with 24 further bytes per object: a growing vector would hold
//! everything twice during each reallocation. The caller validates objects before.

/// One object as a store lists it.
///
/// A key that ends in `/` is a folder (a console's placeholder object, or a directory that the lister reports).
/// It is never a sample, but in a folder data set it defines a class, even an empty one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Listed {
    /// Relative to the data set's URI, without a leading `/`; any bytes.
    pub key: Vec<u8>,
    /// The object's size in bytes; 0 is valid.
    pub size: u64,
    /// The store's `ETag` as sent, or its substitute on a file system; empty without one.
    pub tag: Vec<u8>,
}

/// Bytes per block; also 2 to the power of the bits of a position's offset.
const BLOCK_BYTES: usize = 1 << BLOCK_BITS;
const BLOCK_BITS: u32 = 22;

/// A listed object, 24 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListedRef {
    position: u64,
    key_bytes: u32,
    tag_bytes: u32,
    pub(crate) size: u64,
}

impl ListedRef {
    /// A number that is unique in the listing.
    pub(crate) fn position(self) -> u64 {
        self.position
    }

    pub(crate) fn key_bytes(self) -> u64 {
        u64::from(self.key_bytes)
    }

    pub(crate) fn tag_bytes(self) -> u64 {
        u64::from(self.tag_bytes)
    }
}

/// The keys and tags of all listed objects.
#[derive(Debug, Default)]
pub(crate) struct ListingStore {
    blocks: Vec<Vec<u8>>,
}

impl ListingStore {
    /// Add an object; key and tag must each be below [`crate::KEY_BYTES_MAX`].
    pub(crate) fn add(&mut self, listed: &Listed) -> ListedRef {
        let wanted = listed.key.len() + listed.tag.len();
        if self.blocks.last().is_none_or(|block| block.len() + wanted > BLOCK_BYTES) {
            self.blocks.push(Vec::with_capacity(BLOCK_BYTES.max(wanted)));
        }
        let number = self.blocks.len() - 1;
        let block = &mut self.blocks[number];
        let position = (number as u64) << BLOCK_BITS | block.len() as u64;
        block.extend_from_slice(&listed.key);
        block.extend_from_slice(&listed.tag);
        let short = |length: usize| u32::try_from(length).expect("checked against the limits before");
        ListedRef {
            position,
            key_bytes: short(listed.key.len()),
            tag_bytes: short(listed.tag.len()),
            size: listed.size,
        }
    }

    /// The key of an object of this store.
    pub(crate) fn key(&self, object: ListedRef) -> &[u8] {
        &self.text(object)[..object.key_bytes as usize]
    }

    /// The tag of an object of this store.
    pub(crate) fn tag(&self, object: ListedRef) -> &[u8] {
        &self.text(object)[object.key_bytes as usize..]
    }

    fn text(&self, object: ListedRef) -> &[u8] {
        let offset =
            usize::try_from(object.position & (BLOCK_BYTES as u64 - 1)).expect("below a block's size");
        let block = usize::try_from(object.position >> BLOCK_BITS).expect("as many blocks as fit in memory");
        &self.blocks[block][offset..][..object.key_bytes as usize + object.tag_bytes as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_restored_across_blocks() {
        let mut store = ListingStore::default();
        let listed: Vec<Listed> = (0_u64..300)
            .map(|size| Listed { key: vec![b'k'; 60_000], size, tag: size.to_string().into_bytes() })
            .collect();
        let objects: Vec<ListedRef> = listed.iter().map(|one| store.add(one)).collect();
        assert!(store.blocks.len() > 3);
        for (one, &object) in listed.iter().zip(&objects) {
            assert_eq!((store.key(object), store.tag(object), object.size), (&*one.key, &*one.tag, one.size));
        }
    }
}
