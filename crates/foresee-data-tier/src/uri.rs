// SPDX-License-Identifier: Apache-2.0
//! Where a data set lies, as its user writes it: a path, `file://`, `s3://bucket/prefix`,
//! `http(s)://host/path`.
//!
//! Apart from the origin: the index and error messages name objects by the same rules, and this is the one
//! place that decides what of a URI may be shown. Refuses to show user names, passwords and query strings
//! (presigned parts); they travel to the origin and nowhere else.

use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::origin::OriginError;

/// A parsed origin URI. `Display` shows it without credentials and presigned parts.
#[derive(Clone, PartialEq, Eq)]
pub struct Uri {
    place: Place,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// A directory of a mounted file system.
    Directory(PathBuf),
    /// An S3 bucket, and the prefix without slashes at its ends.
    Bucket { name: String, prefix: String },
    /// A plain web server. `base` has neither query nor trailing slash; the query is secret.
    Web { base: String, query: Option<String> },
}

impl Uri {
    /// Reads a URI; anything without `scheme://` is a path.
    ///
    /// # Errors
    /// [`OriginError::UnknownScheme`] with the schemes there are; [`OriginError::BadUri`] if a part is missing.
    pub fn parse(text: &str) -> Result<Self, OriginError> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Self::directory(text.as_bytes());
        };
        let bad = |cause| OriginError::BadUri { uri: redact(text), cause };
        match scheme.to_ascii_lowercase().as_str() {
            "file" => {
                if !rest.starts_with('/') {
                    return Err(bad("write file:///absolute/path (three slashes)"));
                }
                Self::directory(&percent_decode(rest))
            }
            "s3" | "s3a" => {
                let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                if name.is_empty() {
                    return Err(bad("the bucket is missing, write s3://bucket/prefix"));
                }
                let (name, prefix) = (name.to_owned(), prefix.trim_matches('/').to_owned());
                Ok(Self { place: Place::Bucket { name, prefix } })
            }
            scheme @ ("http" | "https") => {
                let rest = rest.split_once('#').map_or(rest, |(before, _)| before);
                let (address, query) =
                    rest.split_once('?').map_or((rest, None), |(a, q)| (a, Some(q.to_owned())));
                let (authority, path) = address.split_once('/').unwrap_or((address, ""));
                if authority.is_empty() {
                    return Err(bad("the host is missing, write http://host/path"));
                }
                if authority.contains('@') {
                    return Err(bad(
                        "a user name is not supported, write a presigned http://host/path?query",
                    ));
                }
                let base = format!("{scheme}://{authority}/{path}").trim_end_matches('/').to_owned();
                Ok(Self { place: Place::Web { base, query } })
            }
            "gs" | "gcs" | "az" | "abfs" | "abfss" => Err(OriginError::SchemeComesLater {
                uri: redact(text),
                remedy: "use the store's S3-compatible endpoint through s3:// and AWS_ENDPOINT_URL, or mount it",
            }),
            _ => Err(OriginError::UnknownScheme { uri: redact(text) }),
        }
    }

    /// The URI of a directory, whose name need not be UTF-8.
    ///
    /// # Errors
    /// [`OriginError::BadUri`] if the path is empty.
    pub fn from_path(path: &Path) -> Result<Self, OriginError> {
        Self::directory(path.as_os_str().as_bytes())
    }

    fn directory(path: &[u8]) -> Result<Self, OriginError> {
        if path.is_empty() {
            return Err(OriginError::BadUri {
                uri: String::new(),
                cause: "an empty path names no directory",
            });
        }
        let path = PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()));
        Ok(Self { place: Place::Directory(path) })
    }

    /// Whether it is a mounted directory, not a store behind a network protocol.
    pub const fn is_directory(&self) -> bool {
        matches!(self.place, Place::Directory(_))
    }

    pub(crate) const fn place(&self) -> &Place {
        &self.place
    }

    /// The name of one object for people: bytes that are not UTF-8 are replaced, secrets are left out.
    pub fn join(&self, key: &[u8]) -> String {
        let key = String::from_utf8_lossy(key);
        let key = match &self.place {
            Place::Web { .. } => key.split('?').next().unwrap_or_default(),
            Place::Directory(_) | Place::Bucket { .. } => &key,
        };
        format!("{}/{key}", self.to_string().trim_end_matches('/'))
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Directory(path) => write!(f, "{}", path.display()),
            Place::Bucket { name, prefix } if prefix.is_empty() => write!(f, "s3://{name}"),
            Place::Bucket { name, prefix } => write!(f, "s3://{name}/{prefix}"),
            Place::Web { base, .. } => write!(f, "{base}"),
        }
    }
}

impl fmt::Debug for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Uri({self})")
    }
}

/// `text` with the user part and everything after `?` of each URI in it left out.
pub(crate) fn redact(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for (at, word) in text.split(' ').enumerate() {
        if at > 0 {
            shown.push(' ');
        }
        let Some((scheme, rest)) = word.split_once("://") else {
            shown.push_str(word);
            continue;
        };
        let address = rest.split(['?', '#']).next().unwrap_or_default();
        let authority = address.split('/').next().unwrap_or_default();
        let hidden = authority.rfind('@').map_or(0, |at| at + 1);
        shown.push_str(scheme);
        shown.push_str("://");
        shown.push_str(&address[hidden..]);
        // The closing mark of a quoted or bracketed URI is no part of its query.
        if address.len() < rest.len() {
            let tail = rest.trim_start_matches(|c: char| !matches!(c, ')' | '"' | '\'' | '>' | ','));
            shown.push_str(tail.get(..1).unwrap_or_default());
        }
    }
    shown
}

fn percent_decode(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let code = bytes.get(at + 1..at + 3).and_then(|pair| {
            let pair = std::str::from_utf8(pair).ok()?;
            u8::from_str_radix(pair, 16).ok()
        });
        match (bytes[at], code) {
            (b'%', Some(byte)) => {
                decoded.push(byte);
                at += 3;
            }
            (byte, _) => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        Uri::parse(text).expect("a good URI").to_string()
    }

    #[test]
    fn every_scheme_is_read_and_shown() {
        assert_eq!(shown("/data/train"), "/data/train");
        assert_eq!(shown("data"), "data");
        assert_eq!(shown("file:///data/a%20b"), "/data/a b");
        assert_eq!(shown("s3://bucket"), "s3://bucket");
        assert_eq!(shown("s3://bucket/a/b/"), "s3://bucket/a/b");
        assert_eq!(shown("HTTP://host:80/a/"), "http://host:80/a");
    }

    #[test]
    fn secrets_are_never_shown() {
        let refused = Uri::parse("https://me:pw@host/a").expect_err("no user names").to_string();
        assert!(refused.contains("https://host/a") && !refused.contains("pw"), "{refused}");
        let uri = Uri::parse("https://host/a?X-Amz-Signature=abc#x").expect("a good URI");
        assert_eq!(uri.to_string(), "https://host/a");
        assert_eq!(format!("{uri:?}"), "Uri(https://host/a)");
        assert_eq!(uri.join(b"k.jpg?sig=abc"), "https://host/a/k.jpg");
        assert_eq!(
            redact("GET http://u:p@h/x?sig=1 failed (https://h/y?t=2) twice"),
            "GET http://h/x failed (https://h/y) twice"
        );
    }

    #[test]
    fn a_scheme_that_comes_later_says_what_to_do_and_an_unknown_one_names_those_there_are() {
        let later = Uri::parse("gs://bucket/x").expect_err("not yet").to_string();
        assert!(later.contains("gs://bucket/x") && later.contains("AWS_ENDPOINT_URL"), "{later}");
        let unknown = Uri::parse("ftp://u:secret@h/x").expect_err("no such scheme").to_string();
        assert!(unknown.contains("ftp://h/x") && unknown.contains("s3://"), "{unknown}");
        assert!(Uri::parse("s3:///x").is_err());
        assert!(Uri::parse("http:///x").is_err());
        assert!(Uri::parse("file://x").is_err());
        assert!(Uri::parse("").is_err());
    }
}
