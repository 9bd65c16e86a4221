// SPDX-License-Identifier: Apache-2.0
//! Patterns of files and folders that a listing excludes.
//!
//! They are separate from the layouts because a lister needs them too: it does not enter an excluded folder, which
//! it may not be allowed to read.

use crate::error::IndexError;
use crate::layout::text::code_points;

/// Shell patterns of names and paths.
///
/// `*` matches any letters, `?` one letter, `[a-c]` and `[!a-c]` one letter of a set; none of them matches `/`. A
/// pattern without `/` is compared with every name on the path to an object. One with `/` is compared with the
/// path below the data set's URI, and `**` in it matches any number of folders. A pattern that ends in `/`
/// matches folders only. An excluded folder excludes everything below it. Patterns are case-sensitive.
///
/// ```
/// use foresee_data_index::Exclude;
/// let exclude = Exclude::new([".ipynb_checkpoints", "*.tmp", "train/old/"])?;
/// assert!(exclude.matches(b"train/.ipynb_checkpoints/cat-checkpoint.png"));
/// assert!(exclude.matches(b"train/old/cat.png") && !exclude.matches(b"val/old/cat.png"));
/// # Ok::<(), foresee_data_index::IndexError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Exclude {
    patterns: Vec<Pattern>,
}

#[derive(Clone, Debug)]
struct Pattern {
    /// Whether it is compared with the whole path instead of each name.
    is_anchored: bool,
    matches_folders_only: bool,
    parts: Vec<PathPart>,
}

#[derive(Clone, Debug)]
enum PathPart {
    /// `**`
    Folders,
    Name(Vec<Token>),
}

#[derive(Clone, Debug)]
enum Token {
    Letter(u32),
    AnyLetter,
    AnyLetters,
    Set { ranges: Vec<(u32, u32)>, is_negated: bool },
}

impl Exclude {
    /// Parse patterns; bytes that are not UTF-8 match themselves.
    ///
    /// # Errors
    /// [`IndexError::Pattern`] for a pattern that is empty or has a `[` without `]`.
    pub fn new(patterns: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<Self, IndexError> {
        let patterns = patterns.into_iter().map(|pattern| Pattern::read(pattern.as_ref()));
        Ok(Self { patterns: patterns.collect::<Result<_, _>>()? })
    }

    /// Whether an object, or with a final `/` a folder, is excluded. `key` is relative to the data set's URI.
    pub fn matches(&self, key: &[u8]) -> bool {
        if self.patterns.is_empty() {
            return false;
        }
        let (path, is_folder) = match key.strip_suffix(b"/") {
            Some(path) => (path, true),
            None => (key, false),
        };
        let names: Vec<Vec<u32>> =
            path.split(|&byte| byte == b'/').map(|name| code_points(name).collect()).collect();
        self.patterns.iter().any(|pattern| pattern.matches(&names, is_folder))
    }
}

impl Pattern {
    fn read(pattern: &[u8]) -> Result<Self, IndexError> {
        let fault =
            |cause| IndexError::Pattern { pattern: String::from_utf8_lossy(pattern).into_owned(), cause };
        let (path, matches_folders_only) = match pattern.strip_suffix(b"/") {
            Some(path) => (path, true),
            None => (pattern, false),
        };
        let is_anchored = path.contains(&b'/');
        let path = path.strip_prefix(b"/").unwrap_or(path);
        if path.is_empty() {
            return Err(fault("it is empty"));
        }
        let part = |part: &[u8]| match part {
            b"**" => Some(PathPart::Folders),
            name => tokens(&code_points(name).collect::<Vec<_>>()).map(PathPart::Name),
        };
        let parts = path.split(|&byte| byte == b'/').map(part).collect::<Option<_>>();
        Ok(Self { is_anchored, matches_folders_only, parts: parts.ok_or_else(|| fault("[ has no ]"))? })
    }

    fn matches(&self, names: &[Vec<u32>], is_folder: bool) -> bool {
        // All but the last name are folders.
        let last = names.len() - usize::from(self.matches_folders_only && !is_folder);
        let first = |end: usize| if self.is_anchored { 0 } else { end - 1 };
        (1..=last).any(|end| path_matches(&self.parts, &names[first(end)..end]))
    }
}

/// The tokens of a name's pattern; `None` for an unterminated set.
fn tokens(mut rest: &[u32]) -> Option<Vec<Token>> {
    let letter = |letter: char| u32::from(letter);
    let mut tokens = Vec::new();
    while let [first, tail @ ..] = rest {
        rest = tail;
        tokens.push(match char::from_u32(*first) {
            Some('*') => Token::AnyLetters,
            Some('?') => Token::AnyLetter,
            Some('[') => {
                let is_negated = tail.first().is_some_and(|&sign| sign == letter('!') || sign == letter('^'));
                let inside = &tail[usize::from(is_negated)..];
                // A leading ] is a member of the set.
                let end = 1 + inside.get(1..)?.iter().position(|&sign| sign == letter(']'))?;
                rest = &inside[end + 1..];
                Token::Set { ranges: ranges(&inside[..end]), is_negated }
            }
            _ => Token::Letter(*first),
        });
    }
    Some(tokens)
}

fn ranges(mut set: &[u32]) -> Vec<(u32, u32)> {
    let mut ranges = Vec::new();
    while let [first, tail @ ..] = set {
        set = tail;
        match tail {
            [dash, last, after @ ..] if *dash == u32::from('-') => {
                ranges.push((*first, *last));
                set = after;
            }
            _ => ranges.push((*first, *first)),
        }
    }
    ranges
}

fn path_matches(parts: &[PathPart], names: &[Vec<u32>]) -> bool {
    match parts.split_first() {
        None => names.is_empty(),
        Some((PathPart::Folders, rest)) => {
            (0..=names.len()).any(|skipped| path_matches(rest, &names[skipped..]))
        }
        Some((PathPart::Name(tokens), rest)) => names
            .split_first()
            .is_some_and(|(name, below)| name_matches(tokens, name) && path_matches(rest, below)),
    }
}

fn name_matches(tokens: &[Token], name: &[u32]) -> bool {
    let (mut token, mut at) = (0, 0);
    // The position to resume if the rest after the last `*` does not match: one letter later.
    let mut retry: Option<(usize, usize)> = None;
    while at < name.len() {
        match tokens.get(token) {
            Some(Token::AnyLetters) => {
                retry = Some((token + 1, at));
                token += 1;
            }
            Some(one) if one.matches(name[at]) => {
                token += 1;
                at += 1;
            }
            _ => {
                let Some((behind, from)) = retry else { return false };
                retry = Some((behind, from + 1));
                (token, at) = (behind, from + 1);
            }
        }
    }
    tokens[token..].iter().all(|rest| matches!(rest, Token::AnyLetters))
}

impl Token {
    fn matches(&self, letter: u32) -> bool {
        match self {
            Self::Letter(own) => *own == letter,
            Self::AnyLetter => true,
            Self::AnyLetters => false,
            Self::Set { ranges, is_negated } => {
                ranges.iter().any(|&(first, last)| (first..=last).contains(&letter)) != *is_negated
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foresee_testkit::property;
    use proptest::prelude::*;

    fn excludes(pattern: &str, key: &str) -> bool {
        Exclude::new([pattern]).expect("a pattern").matches(key.as_bytes())
    }

    #[test]
    fn a_name_is_matched_on_every_level_and_a_path_from_the_top() {
        for (pattern, key, left_out) in [
            ("old", "old/1.png", true),
            ("old", "a/old/1.png", true),
            ("old", "a/older/1.png", false),
            ("*.tmp", "a/b/1.tmp", true),
            ("*.tmp", "a/1.tmp.png", false),
            ("old/", "a/old", false),
            ("old/", "a/old/", true),
            ("old/", "a/old/x", true),
            ("a/old", "a/old/x", true),
            ("a/old", "b/a/old/x", false),
            ("/old", "old/x", true),
            ("/old", "a/old", false),
            ("a/*", "a/b/c", true),
            ("a/*/c", "a/b/d", false),
            ("**/c", "c", true),
            ("**/c", "a/b/c", true),
            ("a/**/c", "a/c", true),
            ("a/**/c", "a/b/b/c", true),
            ("a/**/c", "b/c", false),
            ("?.png", "a/é.png", true),
            ("?.png", "a/ab.png", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[!a-c]x", "dx", true),
            ("[]-]x", "]x", true),
            ("A", "a", false),
            ("a*b*c", "aXbbYc", true),
            ("a*b*c", "aXbbY", false),
            ("*", "anything/at/all", true),
        ] {
            assert_eq!(excludes(pattern, key), left_out, "{pattern} and {key}");
        }
    }

    #[test]
    fn without_a_pattern_nothing_is_excluded_and_bytes_stand_for_themselves() {
        assert!(!Exclude::default().matches(b"a"));
        assert!(Exclude::new([b"\xff*"]).expect("a pattern").matches(b"a/\xff\xfe/x"));
    }

    #[test]
    fn an_invalid_pattern_is_refused_with_its_text() {
        for pattern in ["", "/", "//", "[a", "a/[!", "[]"] {
            let error = Exclude::new([pattern]).map(|_| ()).expect_err(pattern).to_string();
            assert!(error.contains(&format!("{pattern:?}")), "{error}");
        }
    }

    proptest! {
        #![proptest_config(property(256))]

        #[test]
        fn a_name_matches_as_with_a_naive_matcher(pattern in "[ab*?]{0,6}", name in "[ab]{0,6}") {
            fn naive(pattern: &[u8], name: &[u8]) -> bool {
                match (pattern, name) {
                    ([], []) => true,
                    ([b'*', rest @ ..], _) => naive(rest, name) || (!name.is_empty() && naive(pattern, &name[1..])),
                    ([b'?', rest @ ..], [_, below @ ..]) => naive(rest, below),
                    ([one, rest @ ..], [other, below @ ..]) => one == other && naive(rest, below),
                    _ => false,
                }
            }
            prop_assume!(!pattern.is_empty() && pattern != "**");
            prop_assert_eq!(excludes(&pattern, &name), naive(pattern.as_bytes(), name.as_bytes()));
        }
    }
}
