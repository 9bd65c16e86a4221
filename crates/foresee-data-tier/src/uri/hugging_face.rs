// SPDX-License-Identifier: Apache-2.0
//! The URI of files in a repository of the Hugging Face hub: `hf://datasets/OWNER/NAME@REVISION/prefix`.
//!
//! The forms are those of `huggingface_hub`: `datasets/` or `spaces/` in front, nothing for models; the revision is
//! `main` if it is absent.

use std::fmt;

use percent_encoding::percent_decode_str;

const FORM: &str = "write hf://datasets/OWNER/NAME/prefix, hf://spaces/OWNER/NAME/prefix or hf://OWNER/MODEL/prefix, with \
                    @REVISION after the name if it is not main";

/// A prefix in one revision of a repository.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct RepositoryPath {
    pub(crate) kind: RepositoryKind,
    /// `OWNER/NAME`.
    pub(crate) repository: String,
    /// Branch, tag or commit.
    pub(crate) revision: String,
    /// Without leading and trailing slashes.
    pub(crate) prefix: String,
}

/// The kind of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RepositoryKind {
    Dataset,
    Model,
    Space,
}

impl RepositoryKind {
    /// The plural in paths of the API.
    pub(crate) const fn plural(self) -> &'static str {
        match self {
            Self::Dataset => "datasets",
            Self::Model => "models",
            Self::Space => "spaces",
        }
    }

    /// What precedes the repository in a URL of a file, and in a URI.
    pub(crate) const fn in_front(self) -> &'static str {
        match self {
            Self::Dataset => "datasets/",
            Self::Model => "",
            Self::Space => "spaces/",
        }
    }
}

impl RepositoryPath {
    /// Parse the part after `hf://`; an error says how to write it.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let (kind, rest) = match text.split_once('/') {
            Some(("datasets", rest)) => (RepositoryKind::Dataset, rest),
            Some(("spaces", rest)) => (RepositoryKind::Space, rest),
            Some(("models", rest)) => (RepositoryKind::Model, rest),
            _ => (RepositoryKind::Model, text),
        };
        let (owner, rest) = rest.split_once('/').ok_or(FORM)?;
        let name_end = rest.find(['/', '@']).unwrap_or(rest.len());
        let (name, rest) = rest.split_at(name_end);
        if owner.is_empty() || owner.contains('@') || name.is_empty() {
            return Err(FORM);
        }
        let (revision, prefix) = match rest.strip_prefix('@') {
            None => ("main".to_owned(), rest),
            Some(rest) => {
                let end = revision_end(rest);
                (percent_decode_str(&rest[..end]).decode_utf8_lossy().into_owned(), &rest[end..])
            }
        };
        if revision.is_empty() {
            return Err(FORM);
        }
        let (repository, prefix) = (format!("{owner}/{name}"), prefix.trim_matches('/').to_owned());
        Ok(Self { kind, repository, revision, prefix })
    }
}

/// The end of the revision that `text` begins with. Converted files and pull requests have slashes in theirs.
fn revision_end(text: &str) -> usize {
    let parts = if text.starts_with("refs/convert/") || text.starts_with("refs/pr/") { 3 } else { 1 };
    text.match_indices('/').nth(parts - 1).map_or(text.len(), |(at, _)| at)
}

impl fmt::Display for RepositoryPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf://{}{}", self.kind.in_front(), self.repository)?;
        if self.revision != "main" {
            let has_slashes =
                self.revision.starts_with("refs/convert/") || self.revision.starts_with("refs/pr/");
            let shown = if has_slashes { self.revision.clone() } else { self.revision.replace('/', "%2F") };
            write!(f, "@{shown}")?;
        }
        if self.prefix.is_empty() { Ok(()) } else { write!(f, "/{}", self.prefix) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_huggingface_hub_is_read_and_shown() {
        for (text, shown, revision, prefix) in [
            ("datasets/me/set", "hf://datasets/me/set", "main", ""),
            ("datasets/me/set@main/a/b/", "hf://datasets/me/set/a/b", "main", "a/b"),
            ("me/model@v1.0/x@y", "hf://me/model@v1.0/x@y", "v1.0", "x@y"),
            ("models/me/model", "hf://me/model", "main", ""),
            ("spaces/me/app@my%2Fbranch/x", "hf://spaces/me/app@my%2Fbranch/x", "my/branch", "x"),
            (
                "datasets/me/set@refs/convert/parquet/a",
                "hf://datasets/me/set@refs/convert/parquet/a",
                "refs/convert/parquet",
                "a",
            ),
            ("datasets/me/set@refs/pr/3", "hf://datasets/me/set@refs/pr/3", "refs/pr/3", ""),
        ] {
            let path = RepositoryPath::parse(text).expect(text);
            assert_eq!(
                (path.to_string().as_str(), path.revision.as_str(), path.prefix.as_str()),
                (shown, revision, prefix)
            );
        }
        for text in ["", "datasets/set", "gpt2", "gpt2@main/x", "datasets//set", "datasets/me/set@", "me/@v"]
        {
            assert!(RepositoryPath::parse(text).is_err(), "{text}");
        }
    }
}
