// SPDX-License-Identifier: Apache-2.0
//! The key that divides a range of keys, so that both halves can be listed at once.
//!
//! It only computes with strings, and does not know which keys exist. One half may be empty, which costs one request.

/// Printable ASCII characters as digits of a number, since keys mostly consist of them.
const FIRST: u8 = b' ';
const DIGITS: u64 = 95;
/// Digits after the common prefix: 95^9 still fits 64 bits.
const PLACES: usize = 9;

/// A key strictly between `low` and `high`, about half way; `None` if none is found.
///
/// `high` `None`: up to the last key with `prefix`.
pub(super) fn midpoint_key(low: &str, high: Option<&str>, prefix: &str) -> Option<String> {
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
    let middle = format!("{}{tail}", &low[..common]);
    (low < middle.as_str() && middle.as_str() < high).then_some(middle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_midpoint_is_strictly_between_its_ends() {
        let ends = ["a", "a/0001", "a/0999.jpg", "a/b", "a/b ", "a/z", "a/~", "a/é", "a/日本", "b"];
        for (at, low) in ends.iter().enumerate() {
            for high in &ends[at + 1..] {
                if let Some(middle) = midpoint_key(low, Some(high), "") {
                    assert!(*low < middle.as_str() && middle.as_str() < *high, "{low} {middle} {high}");
                }
            }
        }
    }

    #[test]
    fn repeated_midpoints_converge_on_numbered_keys() {
        // Keys are 000000 to 999999; a reader at 000999 must soon find a middle below 999999.
        let mut high = None;
        let mut middles = 0;
        while high.as_deref().is_none_or(|high| high > "p/999999") {
            high = Some(midpoint_key("p/000999", high.as_deref(), "p/").expect("a midpoint"));
            middles += 1;
        }
        assert!(middles <= 8, "{middles} middles, the last {high:?}");
    }

    #[test]
    fn a_range_without_keys_has_no_midpoint() {
        assert_eq!(midpoint_key("a", Some("a"), ""), None);
        assert_eq!(midpoint_key("b", Some("a"), ""), None);
        assert_eq!(midpoint_key("p/~~~~~~~~~x", None, "p/"), None);
    }
}
