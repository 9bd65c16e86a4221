// SPDX-License-Identifier: Apache-2.0
//! Keys as Python decodes file names: UTF-8 text in which an invalid byte has a code point of its own.
//!
//! torchvision sorts and matches `str`, not bytes. Python decodes a file name with `surrogateescape`: an
//! undecodable byte B becomes the code point U+DC00 + B (PEP 383). Between valid names the order of code points
//! is the order of bytes. An undecodable byte sorts above U+D7FF and below U+E000, so above most letters and
//! below emoji, which differs from the order of bytes.

use std::cmp::Ordering;

/// The order of two names in Python's `sorted`.
pub(crate) fn compare(one: &[u8], other: &[u8]) -> Ordering {
    let differ = one.iter().zip(other).position(|(a, b)| a != b);
    match differ {
        // The prefix is equal, and an ASCII byte is a character of its own, so it decides alone.
        Some(at) if one[at].is_ascii() && other[at].is_ascii() => one[at].cmp(&other[at]),
        _ if str::from_utf8(one).is_ok() && str::from_utf8(other).is_ok() => one.cmp(other),
        _ => code_points(one).cmp(code_points(other)),
    }
}

/// The code points of a name, as in Python.
pub(crate) fn code_points(name: &[u8]) -> impl Iterator<Item = u32> {
    name.utf8_chunks().flat_map(|chunk| {
        let escaped = chunk.invalid().iter().map(|&byte| 0xdc00 + u32::from(byte));
        chunk.valid().chars().map(u32::from).chain(escaped)
    })
}

/// Whether the lower-case name ends with one of `extensions`, as `str.lower().endswith(...)`.
pub(crate) fn ends_with_any(name: &[u8], extensions: &[String]) -> bool {
    let ends_with = |name: &[u8], extension: &str| {
        name.len() >= extension.len()
            && name[name.len() - extension.len()..].eq_ignore_ascii_case(extension.as_bytes())
    };
    if extensions.iter().any(|extension| ends_with(name, extension)) {
        return true;
    }
    // Characters outside of ASCII may have a lower case inside, such as the Kelvin sign.
    !name.is_ascii() && {
        let mut lower = Vec::with_capacity(name.len());
        for chunk in name.utf8_chunks() {
            lower.extend_from_slice(chunk.valid().to_lowercase().as_bytes());
            lower.extend_from_slice(chunk.invalid());
        }
        extensions.iter().any(|extension| lower.ends_with(extension.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foresee_testkit::property;
    use proptest::prelude::*;

    #[test]
    fn an_undecodable_byte_sorts_between_letters_and_emoji() {
        let [latin, han, broken, emoji]: [&[u8]; 4] =
            ["é".as_bytes(), "漢".as_bytes(), b"\xc3", "😀".as_bytes()];
        for (less, more) in [(latin, han), (han, broken), (broken, emoji)] {
            assert_eq!(compare(less, more), Ordering::Less);
            assert_eq!(compare(more, less), Ordering::Greater);
        }
        assert_eq!(
            compare(b"\xc3", "\u{c3}".as_bytes()),
            Ordering::Greater,
            "a byte and its Latin-1 letter differ"
        );
    }

    #[test]
    fn extensions_match_in_any_case_and_also_across_alphabets() {
        let extensions = [".jpg".to_owned(), ".ké".to_owned()];
        for (name, matches) in [
            (&b"a.JPG"[..], true),
            (b".jpg", true),
            (b"a.jpg.txt", false),
            (b"jpg", false),
            (b"\xff.jPg", true),
            ("a.\u{212a}É".as_bytes(), true),
        ] {
            assert_eq!(ends_with_any(name, &extensions), matches, "{name:?}");
        }
    }

    proptest! {
        #![proptest_config(property(256))]

        #[test]
        fn the_shortcuts_agree_with_the_comparison_of_code_points(
            one in prop::collection::vec(prop::sample::select(&b"a/\xc3\xa9\xe2\x82\xac\xff\xf0\x9f\x98\x80"[..]), 0..6),
            other in prop::collection::vec(prop::sample::select(&b"a/\xc3\xa9\xe2\x82\xac\xff\xf0\x9f\x98\x80"[..]), 0..6),
        ) {
            prop_assert_eq!(compare(&one, &other), code_points(&one).cmp(code_points(&other)));
        }
    }
}
