// SPDX-License-Identifier: Apache-2.0
//! Class folders: `URI/CLASS/.../file`, exactly as torchvision's `ImageFolder` reads them.
//!
//! Source: torchvision 0.29, `datasets/folder.py`. Classes are the sorted names of the first level's folders,
//! including empty ones. Samples are sorted by class, then by their folder's whole path, then by file name, each
//! as Python compares text ([`super::text`]). A comparison of whole keys would differ: `a.b/x` comes after `a/x`,
//! because the folder `a` comes before `a.b`, although `.` is below `/`.
//!
//! A class without samples is an error unless `allow_empty` is set, and so is a data set without classes. A
//! folder whose name begins with `.` or `_` and that has no sample is not a class, unless `allow_empty` is set:
//! editors, operating systems and Spark create such folders (`.ipynb_checkpoints`, `_temporary`).

use std::cmp::Ordering;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::text;
use crate::error::IndexError;
use crate::uri;

/// The file extensions of images in torchvision: `IMG_EXTENSIONS`.
pub const IMAGE_EXTENSIONS: [&str; 9] =
    [".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"];

/// The files of a class folder that are samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FolderOptions {
    /// Ends of file names, in lower case; empty: every file. Default [`IMAGE_EXTENSIONS`].
    pub extensions: Vec<String>,
    /// Whether a class may have no sample; it then has a label too. False by default.
    pub allow_empty: bool,
}

impl Default for FolderOptions {
    fn default() -> Self {
        Self { extensions: IMAGE_EXTENSIONS.map(str::to_owned).to_vec(), allow_empty: false }
    }
}

/// The class of a key: its first part, if another part follows.
pub(crate) fn class(key: &[u8]) -> Option<&[u8]> {
    key.iter().position(|&byte| byte == b'/').map(|end| &key[..end])
}

/// Whether a folder of this name is a class only if it has samples.
pub(crate) fn is_leftover(name: &[u8]) -> bool {
    name.starts_with(b".") || name.starts_with(b"_")
}

/// The order of samples.
pub(crate) fn compare(one: &[u8], other: &[u8]) -> Ordering {
    let (one_folder, one_name) = split(one);
    let (other_folder, other_name) = split(other);
    if one_folder == other_folder {
        return text::compare(one_name, other_name);
    }
    let class_of = |folder| class(folder).unwrap_or(folder);
    text::compare(class_of(one_folder), class_of(other_folder))
        .then_with(|| text::compare(one_folder, other_folder))
        .then_with(|| text::compare(one_name, other_name))
}

/// The folder without its final `/`, and the file name.
fn split(key: &[u8]) -> (&[u8], &[u8]) {
    match key.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&key[..at], &key[at + 1..]),
        None => (&[], key),
    }
}

/// The classes so far, from samples, other files and folders.
#[derive(Debug, Default)]
pub(crate) struct ClassCollector {
    names: BTreeSet<Vec<u8>>,
    /// The last class: listings are mostly sorted, so the next is mostly the same.
    last: Vec<u8>,
}

impl ClassCollector {
    /// Add a listed key.
    pub(crate) fn add(&mut self, key: &[u8]) {
        // A bucket's keys may have parts that are invalid in directories.
        let Some(class) = class(key).filter(|class| !matches!(*class, b"" | b"..")) else { return };
        if class != self.last {
            self.last = class.to_vec();
            self.names.insert(class.to_vec());
        }
    }

    /// The classes by label, each with its number of samples, from the sorted keys of all samples.
    pub(crate) fn finish<'a>(
        self,
        base: &str,
        options: &FolderOptions,
        keys: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Vec<Class>, IndexError> {
        let mut classes: Vec<Class> = self.names.into_iter().map(|name| Class { name, samples: 0 }).collect();
        classes.sort_by(|one, other| text::compare(&one.name, &other.name));
        let mut current = 0;
        for key in keys {
            while Some(classes[current].name.as_slice()) != class(key) {
                current += 1;
            }
            classes[current].samples += 1;
        }
        if !options.allow_empty {
            classes.retain(|class| class.samples > 0 || !is_leftover(&class.name));
        }
        if classes.is_empty() {
            return Err(IndexError::NoClasses { uri: base.to_owned() });
        }
        let mut empty = classes.iter().filter(|class| class.samples == 0);
        match empty.next() {
            Some(first) if !options.allow_empty => Err(IndexError::EmptyClasses {
                uri: base.to_owned(),
                class: uri::display("", &first.name),
                count: 1 + empty.count() as u64,
                of: classes.len() as u64,
                extensions: options.extensions.join(" "),
            }),
            _ => Ok(classes),
        }
    }
}

/// A class, at the index of its label; its samples follow those of the previous class.
#[derive(Debug)]
pub(crate) struct Class {
    pub(crate) name: Vec<u8>,
    pub(crate) samples: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_before_the_files_of_the_folders_below_and_names_are_not_paths() {
        let sorted: [&[u8]; 8] =
            [b"a/z", b"a/b/c", b"a/b.c/a", b"a/b/c/d", b"a.b/a", b"b/a", "é/a".as_bytes(), b"\xff/a"];
        let mut keys = sorted;
        keys.reverse();
        keys.sort_by(|one, other| compare(one, other));
        assert_eq!(keys, sorted);
    }
}
