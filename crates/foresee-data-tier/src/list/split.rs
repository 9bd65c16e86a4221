// SPDX-License-Identifier: Apache-2.0
//! The key at which a range of keys is cut in two, so that both halves can be listed at once.
//!
//! This is arithmetic on strings and does not know which keys exist. A cut may leave one half empty, which costs one
//! request.

/// The printable ASCII characters, as digits of a number: what keys are mostly made of.
const FIRST: u8 = b' ';
const DIGITS: u64 = 95;
/// Digits looked at behind the common part: 95^9 still fits 64 bits.
const PLACES: usize = 9;

/// A key strictly between `low` and `high`, about half way; `None` if there is none to be found.
///
/// `high` `None`: up to the last key that begins with `prefix`.
pub(super) fn between(low: &str, high: Option<&str>, prefix: &str) -> Option<String> {
    let open_end = format!("{prefix}~~~~~~~~~");
    let high = high.unwrap_or(&open_end);
    if low >= high {
        return None;
    }
    let common = low.bytes().zip(high.bytes()).take_while(|(a, b)| a == b).count();
    let common = (0..=common).rev().find(|at| low.is_char_boundary(*at) && high.is_char_boundary(*at))?;
    let number = |text: &str| {
        let digit = |at: usize| {
            text.as_bytes().get(common + at).map_or(0, |byte: &u8| u64::from(byte.saturating_sub(FIRST)))
        };
        (0..PLACES).fold(0, |number, at| number * DIGITS + digit(at).min(DIGITS - 1))
    };
    let mut middle = number(low).midpoint(number(high));
    let mut digits = [FIRST; PLACES];
    for place in digits.iter_mut().rev() {
        *place = FIRST + u8::try_from(middle % DIGITS).unwrap_or(0);
        middle /= DIGITS;
    }
    let tail = std::str::from_utf8(&digits).ok()?.trim_end();
    let cut = format!("{}{tail}", &low[..common]);
    (low < cut.as_str() && cut.as_str() < high).then_some(cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_lies_strictly_between_its_ends() {
        let ends = ["a", "a/0001", "a/0999.jpg", "a/b", "a/b ", "a/z", "a/~", "a/é", "a/日本", "b"];
        for (at, low) in ends.iter().enumerate() {
            for high in &ends[at + 1..] {
                if let Some(cut) = between(low, Some(high), "") {
                    assert!(*low < cut.as_str() && cut.as_str() < *high, "{low} {cut} {high}");
                }
            }
        }
    }

    #[test]
    fn repeated_cuts_home_in_on_numbered_keys() {
        // Keys are 000000 to 999999; a reader at 000999 must soon find a cut below 999999.
        let mut high = None;
        let mut cuts = 0;
        while high.as_deref().is_none_or(|high| high > "p/999999") {
            high = Some(between("p/000999", high.as_deref(), "p/").expect("there is room"));
            cuts += 1;
        }
        assert!(cuts <= 8, "{cuts} cuts, the last {high:?}");
    }

    #[test]
    fn ends_without_room_are_left_uncut() {
        assert_eq!(between("a", Some("a"), ""), None);
        assert_eq!(between("b", Some("a"), ""), None);
        assert_eq!(between("p/~~~~~~~~~x", None, "p/"), None);
    }
}
