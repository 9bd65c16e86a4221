// SPDX-License-Identifier: Apache-2.0
//! Locations of objects: the base URI, keys below it, and the parts of a URI that may be shown or stored.
//!
//! It is separate from the layouts, so that credentials are removed in one place. Every URI that is shown or
//! stored passes [`redact_uri`]; keys pass [`check_key`] when they are listed and again when they are read back.

use crate::error::IndexError;

/// The longest key of an index, in bytes. S3 allows 1,024 and Linux 4,096; the rest is for stores with deeper
/// nesting.
pub const KEY_BYTES_MAX: usize = 64 * 1024;

/// The longest tag of an index, in bytes: far above that of any store.
pub(crate) const TAG_BYTES_MAX: usize = 64 * 1024;

/// Maximum part of a long key in an error, in bytes.
const SHOWN_BYTES_MAX: usize = 1024;

/// Return the URI without parts that may be secret: user and password, query (presigned parts, tokens) and
/// fragment.
///
/// A path without a scheme is returned unchanged: `?` and `#` are ordinary letters there. A password with an
/// unescaped `/`, `?` or `#` is detected if the part before it is not a host and port.
///
/// ```
/// use foresee_data_index::redact_uri;
/// assert_eq!(redact_uri("https://me:secret@host/a.npy?X-Amz-Signature=9f#top"), "https://host/a.npy");
/// assert_eq!(redact_uri("/data/what?/a#1"), "/data/what?/a#1");
/// ```
pub fn redact_uri(uri: &str) -> String {
    let Some((scheme, mut rest)) = uri.split_once("://").filter(|(scheme, _)| is_scheme(scheme)) else {
        return uri.to_owned();
    };
    loop {
        let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
        let user_end = match authority.rfind('@') {
            _ if names_container(scheme, authority) => None,
            None if !has_port(authority) => rest.rfind('@'),
            user_end => user_end,
        };
        match user_end {
            Some(at) => rest = &rest[at + 1..],
            None => break,
        }
    }
    let end = rest.find(['?', '#']).unwrap_or(rest.len());
    format!("{scheme}://{}", &rest[..end])
}

/// Whether the part before the `@` is a container of Azure, as in `abfss://container@account.dfs.core.windows.net`.
fn names_container(scheme: &str, authority: &str) -> bool {
    let is_azure = ["abfs", "abfss", "wasb", "wasbs"].iter().any(|name| scheme.eq_ignore_ascii_case(name));
    let is_container =
        |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-$".contains(&byte));
    let parts = authority.split_once('@').filter(|_| is_azure);
    parts.is_some_and(|(name, host)| {
        is_container(name) && host.ends_with(".core.windows.net") && !host.contains('@')
    })
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// Whether `authority` can be a host, with or without a port; `user:secret` cannot.
fn has_port(authority: &str) -> bool {
    let after_address = authority.rfind(']').map_or(authority, |end| &authority[end + 1..]);
    after_address.split_once(':').is_none_or(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The base as an index stores it: redacted, and ending where a key begins.
pub(crate) fn base_uri(uri: &str) -> String {
    let mut base = redact_uri(uri);
    if !base.ends_with('/') {
        base.push('/');
    }
    base
}

/// An object's URI for messages: invalid UTF-8 is replaced, control characters are escaped, a key beyond
/// [`SHOWN_BYTES_MAX`] is cut, and below a web server nothing after a `?` is shown.
pub(crate) fn display(base: &str, key: &[u8]) -> String {
    let shown = &key[..key.len().min(SHOWN_BYTES_MAX)];
    let shown = match shown.iter().position(|&byte| byte == b'?') {
        Some(query) if is_http(base) => &shown[..query],
        _ => shown,
    };
    let text = String::from_utf8_lossy(shown);
    let text = if is_http(base) && text.contains("://") { redact_uri(&text) } else { text.into_owned() };
    let mut uri = String::with_capacity(base.len() + text.len());
    uri.push_str(base);
    for letter in text.chars() {
        if letter.is_control() { uri.extend(letter.escape_default()) } else { uri.push(letter) }
    }
    if key.len() > SHOWN_BYTES_MAX {
        uri.push_str("...");
    }
    uri
}

/// A path or URI as given, for messages: invalid UTF-8 is replaced, and a long one is cut.
pub(crate) fn shortened(text: &[u8]) -> String {
    let mut shown = String::from_utf8_lossy(&text[..text.len().min(SHOWN_BYTES_MAX)]).into_owned();
    if text.len() > SHOWN_BYTES_MAX {
        shown.push_str("...");
    }
    shown
}

/// Check that an index may contain a key; `base` must be redacted.
pub(crate) fn check_key(base: &str, key: &[u8]) -> Result<(), IndexError> {
    if key.is_empty() {
        return Err(IndexError::KeyEmpty { uri: base.to_owned() });
    }
    if key.len() > KEY_BYTES_MAX {
        return Err(IndexError::KeyTooLong {
            uri: display(base, key),
            bytes: key.len() as u64,
            max: KEY_BYTES_MAX as u64,
        });
    }
    if !stays_inside(key) || (is_http(base) && key.windows(3).any(|window| window == b"://")) {
        return Err(IndexError::KeyEscapes { uri: display(base, key) });
    }
    if is_http(base) && key.contains(&b'?') {
        return Err(IndexError::KeyPresigned { uri: display(base, key) });
    }
    Ok(())
}

/// Whether a key joined to its base stays below it: not empty, not absolute, no `..` among its parts.
pub(crate) fn stays_inside(key: &[u8]) -> bool {
    !key.is_empty() && key[0] != b'/' && key.split(|&byte| byte == b'/').all(|part| part != b"..")
}

fn is_http(base: &str) -> bool {
    let is = |scheme: &str| base.get(..scheme.len()).is_some_and(|head| head.eq_ignore_ascii_case(scheme));
    is("http://") || is("https://")
}

#[cfg(test)]
mod tests {
    use super::*;
    use foresee_testkit::property;
    use proptest::prelude::*;

    #[test]
    fn redaction_drops_user_query_and_fragment_and_nothing_else() {
        for (uri, shown) in [
            ("s3://bucket/train/", "s3://bucket/train/"),
            ("s3://AKIA123:wJalr@bucket/train", "s3://bucket/train"),
            ("https://host:8080/a?sig=abc&se=1", "https://host:8080/a"),
            ("https://host?token=1", "https://host"),
            ("abfss://c-1@me.dfs.core.windows.net/a?sig=1", "abfss://c-1@me.dfs.core.windows.net/a"),
            ("abfss://me:secret@host.core.windows.net/a", "abfss://host.core.windows.net/a"),
            ("abfss://secret@host/a", "abfss://host/a"),
            ("https://host/a#access_token=1", "https://host/a"),
            ("https://me:p@ss@host/@team/a", "https://host/@team/a"),
            ("http://[::1]:9000/a@b", "http://[::1]:9000/a@b"),
            ("https://me:p/ss@host/a", "https://host/a"),
            ("https://me:p?ss@host/a?b", "https://host/a"),
            ("/data/user@home?/#1", "/data/user@home?/#1"),
            ("file:///data/x", "file:///data/x"),
            ("https://u@host:bad/x@y", "https://y"),
            ("data/a?b://c@d", "data/a?b://c@d"),
        ] {
            assert_eq!(redact_uri(uri), shown, "of {uri}");
        }
    }

    proptest! {
        #![proptest_config(property(256))]

        #[test]
        fn redaction_is_idempotent_and_leaves_no_query(rest in "[a:@/?#1\\[\\]]{0,12}") {
            let once = redact_uri(&format!("https://{rest}"));
            prop_assert!(!once.contains(['?', '#']));
            prop_assert_eq!(redact_uri(&once), once);
        }
    }

    #[test]
    fn keys_outside_of_their_data_set_are_refused_and_dots_in_names_are_not() {
        for key in ["..", "../a", "a/../../b", "a/..", "/etc/passwd"] {
            assert!(
                matches!(check_key("/data/", key.as_bytes()), Err(IndexError::KeyEscapes { .. })),
                "{key}"
            );
        }
        for key in ["a..b", "..a/b", ".hidden", "a/.../b", "a//b", "what?.jpg", "a://b"] {
            assert!(check_key("s3://bucket/", key.as_bytes()).is_ok(), "{key}");
        }
        assert!(matches!(check_key("/data/", b""), Err(IndexError::KeyEmpty { .. })));
    }

    #[test]
    fn a_presigned_key_is_refused_and_its_signature_is_not_repeated() {
        let error = check_key("https://host/", b"a.jpg?X-Amz-Signature=9f2c").unwrap_err().to_string();
        assert!(error.contains("https://host/a.jpg") && !error.contains("9f2c"), "{error}");
        let error = check_key("https://host/", b"https://me:secret@host/a?sig=1").unwrap_err().to_string();
        assert!(!error.contains("secret") && !error.contains("sig=1"), "{error}");
    }

    #[test]
    fn a_key_of_the_longest_length_of_s3_fits_and_one_past_the_limit_is_cut_in_the_message() {
        assert!(check_key("s3://b/", &[b'k'; 1024]).is_ok());
        assert!(check_key("s3://b/", &vec![b'k'; KEY_BYTES_MAX]).is_ok());
        let error = check_key("s3://b/", &vec![b'k'; KEY_BYTES_MAX + 1]).unwrap_err().to_string();
        assert!(error.len() < 2 * SHOWN_BYTES_MAX && error.contains("65537"), "{error}");
    }

    #[test]
    fn a_uri_in_messages_has_no_control_characters() {
        assert_eq!(display("/d/", b"a\nb\xff"), "/d/a\\nb\u{fffd}");
    }
}
