// SPDX-License-Identifier: Apache-2.0
//! Suggestions for a missing directory or prefix, from the names next to it.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Maximum number of names in a message.
const SHOWN: usize = 4;

/// The suggestion for the missing directory at `path`.
pub(super) fn for_directory(path: &Path) -> String {
    let text = path.to_string_lossy();
    if let Some((scheme, rest)) = text.split_once(":/").filter(|(scheme, _)| is_scheme(scheme)) {
        return format!("a URI has two slashes: write \"{scheme}://{}\"", rest.trim_start_matches('/'));
    }
    let mut missing = path;
    while let Some(above) = missing.parent() {
        let folder = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        if let Ok(entries) = std::fs::read_dir(folder) {
            let is_folder = |entry: &std::fs::DirEntry| entry.path().is_dir();
            let names = entries.flatten().filter(is_folder).map(|entry| lossy(entry.file_name().as_bytes()));
            let name = missing.file_name().map(|name| lossy(name.as_bytes())).unwrap_or_default();
            return format!("{} has {}", folder.display(), closest_names(&name, names.collect(), "folders"));
        }
        missing = above;
    }
    "check the path".to_owned()
}

fn is_scheme(text: &str) -> bool {
    text.len() > 1
        && text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

fn lossy(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Text with the names that are most similar to `wanted`.
pub(super) fn closest_names(wanted: &str, mut names: Vec<String>, what: &str) -> String {
    if names.is_empty() {
        return format!("no {what}");
    }
    // `false` is first.
    names.sort_by_cached_key(|name| (edit_distance(wanted, name), name.starts_with('.'), name.clone()));
    let shown = names.iter().take(SHOWN).map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => format!("the {what} {shown}"),
        more => format!("the {what} {shown} and {more} more"),
    }
}

/// Levenshtein distance, of at most the first 64 characters.
fn edit_distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) =
        (one.chars().take(64).collect(), other.chars().take(64).collect());
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (place, own) in other.iter().enumerate() {
            let change = diagonal + usize::from(letter != own);
            diagonal = row[place + 1];
            row[place + 1] = change.min(diagonal + 1).min(row[place] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_similar_folder_is_first() {
        let root = tempfile::tempdir().expect("a directory");
        for name in ["val", "train", "test", "extra", "more", ".hidden"] {
            std::fs::create_dir(root.path().join(name)).expect("a directory");
        }
        let found = for_directory(&root.path().join("trains/cat"));
        let expected = format!("{} has the folders \"train\", ", root.path().display());
        assert!(found.starts_with(&expected) && found.ends_with(" and 2 more"), "{found}");
        assert_eq!(closest_names("x", Vec::new(), "folders"), "no folders");
    }

    #[test]
    fn a_uri_with_one_slash_is_written_with_two() {
        assert_eq!(for_directory(Path::new("s3:/b/x")), "a URI has two slashes: write \"s3://b/x\"");
    }

    #[test]
    fn the_edit_distance_counts_changed_letters() {
        for (one, other, letters) in
            [("", "", 0), ("a", "", 1), ("train", "rain", 1), ("val", "vel", 1), ("é", "e", 1)]
        {
            assert_eq!(edit_distance(one, other), letters, "{one} {other}");
        }
    }
}
