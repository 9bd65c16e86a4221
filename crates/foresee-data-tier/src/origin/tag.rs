// SPDX-License-Identifier: Apache-2.0
//! The tag that identifies a version of an object.
//!
//! The listing stores a tag in the index, and every read compares it with the current one. An object whose version is
//! unknown has no tag.

/// The tag of a file: `size` in bytes, `mtime_ns` since 1970 in nanoseconds and, optionally, the inode number; 8
/// bytes each, little-endian.
///
/// By default the inode number is omitted: a copy that preserves times (`cp -a`, `rsync -a`) and a remount have other
/// inode numbers and the same content. With it, a file that was replaced by one of equal size and time is detected.
///
/// ```
/// use foresee_data_tier::posix_tag;
/// let tag = posix_tag(3, 1_000_000_007, None);
/// assert_eq!((tag.len(), tag[0], tag[8]), (16, 3, 7));
/// assert_ne!(tag, posix_tag(3, 1_000_000_008, None));
/// assert_eq!(posix_tag(3, 1_000_000_007, Some(42)), [&tag[..], &42_u64.to_le_bytes()].concat());
/// ```
pub fn posix_tag(size: u64, mtime_ns: i64, inode: Option<u64>) -> Vec<u8> {
    let mut tag = Vec::with_capacity(WITH_INODE);
    tag.extend_from_slice(&size.to_le_bytes());
    tag.extend_from_slice(&mtime_ns.to_le_bytes());
    tag.extend(inode.map(u64::to_le_bytes).into_iter().flatten());
    tag
}

/// Length of a file's tag with the inode number.
pub(super) const WITH_INODE: usize = 24;

/// The tag of an object in a store: its `ETag`; otherwise its `Last-Modified` in whole seconds, as
/// `last-modified:SECONDS`; otherwise empty. Listings of Azure and of some other servers omit the quotes of an `ETag`
/// that its header has.
pub(crate) fn object_tag(meta: &object_store::ObjectMeta) -> Vec<u8> {
    match meta.e_tag.as_deref() {
        Some(etag) if !etag.trim_matches('"').is_empty() => {
            let has_quotes = etag.starts_with('"') || etag.starts_with("W/");
            if has_quotes { etag.as_bytes().to_vec() } else { format!("\"{etag}\"").into_bytes() }
        }
        _ if meta.last_modified.timestamp() > 0 => {
            format!("{LAST_MODIFIED}{}", meta.last_modified.timestamp()).into_bytes()
        }
        _ => Vec::new(),
    }
}

/// `tag` as the value of `If-Match`, if it is a strong `ETag`: a weak one never matches (RFC 9110, 13.1.1).
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
