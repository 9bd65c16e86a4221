// SPDX-License-Identifier: Apache-2.0
//! The tag that tells one version of an object from the next.
//!
//! Apart from reading and listing, which must agree on it: the listing writes a tag into the index, and every
//! read compares it with what it finds. Refuses to guess: an object without a sign of its version has no tag.

/// Tag of a file: size, modification time and inode number, 8 bytes each, little-endian.
pub type PosixTag = [u8; 24];

/// The tag of a file: `size` in bytes, `mtime_ns` since 1970 in nanoseconds, inode number `ino`.
///
/// ```
/// use foresee_data_tier::posix_tag;
/// let tag = posix_tag(3, 1_000_000_007, 42);
/// assert_eq!((tag[0], tag[8], tag[16]), (3, 7, 42));
/// assert_ne!(tag, posix_tag(3, 1_000_000_008, 42));
/// ```
pub fn posix_tag(size: u64, mtime_ns: i64, ino: u64) -> PosixTag {
    let mut tag = [0; 24];
    tag[..8].copy_from_slice(&size.to_le_bytes());
    tag[8..16].copy_from_slice(&mtime_ns.to_le_bytes());
    tag[16..].copy_from_slice(&ino.to_le_bytes());
    tag
}

/// The tag of an object in a store: its `ETag`; without one its `Last-Modified` in whole seconds, as
/// `last-modified:SECONDS`; without either nothing.
pub(crate) fn object_tag(meta: &object_store::ObjectMeta) -> Vec<u8> {
    match meta.e_tag.as_deref() {
        Some(etag) if !etag.trim_matches('"').is_empty() => etag.as_bytes().to_vec(),
        _ if meta.last_modified.timestamp() > 0 => {
            format!("{LAST_MODIFIED}{}", meta.last_modified.timestamp()).into_bytes()
        }
        _ => Vec::new(),
    }
}

/// `tag` as the value of `If-Match`, if it is a strong `ETag`: a weak one never matches there (RFC 9110,
/// 13.1.1).
pub(crate) fn strong_etag(tag: &[u8]) -> Option<&str> {
    let tag = std::str::from_utf8(tag).ok()?;
    let strong = !tag.is_empty() && !tag.starts_with("W/") && !tag.starts_with(LAST_MODIFIED);
    strong.then_some(tag)
}

const LAST_MODIFIED: &str = "last-modified:";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_strong_etag_is_sent_as_a_condition() {
        assert_eq!(strong_etag(b"\"abc\""), Some("\"abc\""));
        assert_eq!(strong_etag(b"W/\"abc\""), None);
        assert_eq!(strong_etag(b"last-modified:12"), None);
        assert_eq!(strong_etag(b""), None);
        assert_eq!(strong_etag(b"\xff"), None);
    }
}
