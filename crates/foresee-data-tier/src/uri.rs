// SPDX-License-Identifier: Apache-2.0
//! The URI of a data set, as its user writes it: a path, `file://`, `s3://bucket/prefix`, `http(s)://host/path`.
//!
//! The index and error messages name objects by the same rules. User names, passwords and query strings (presigned
//! parts) are sent to the origin and never shown.

use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use percent_encoding::percent_decode;

/// Why a text is no URI of an origin, with what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UriError {
    /// The URI lacks a part.
    #[error("origin uri {uri:?} cannot be read: {cause}")]
    Malformed {
        /// Without secrets.
        uri: String,
        /// What is wrong and how it is written.
        cause: &'static str,
    },
    /// A scheme that is not supported.
    #[error("origin uri {uri:?}: {scheme}:// is not supported; {remedy}")]
    Scheme {
        /// Without secrets.
        uri: String,
        /// As given.
        scheme: String,
        /// What to do instead.
        remedy: &'static str,
    },
}

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
    /// [`UriError::Scheme`] with what to do instead; [`UriError::Malformed`] if a part is missing.
    pub fn parse(text: &str) -> Result<Self, UriError> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Self::directory(text.as_bytes());
        };
        let bad = |cause| UriError::Malformed { uri: redact(text), cause };
        match scheme.to_ascii_lowercase().as_str() {
            "file" => {
                if !rest.starts_with('/') {
                    return Err(bad("write file:///absolute/path (three slashes)"));
                }
                Self::directory(&percent_decode(rest.as_bytes()).collect::<Vec<u8>>())
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
            other => Err(UriError::Scheme {
                uri: redact(text),
                scheme: scheme.to_owned(),
                remedy: instead_of(other),
            }),
        }
    }

    /// The URI of a directory, whose name need not be UTF-8.
    ///
    /// # Errors
    /// [`UriError::Malformed`] if the path is empty.
    pub fn from_path(path: &Path) -> Result<Self, UriError> {
        Self::directory(path.as_os_str().as_bytes())
    }

    fn directory(path: &[u8]) -> Result<Self, UriError> {
        if path.is_empty() {
            return Err(UriError::Malformed {
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

/// What to do with data behind a scheme that is not supported.
fn instead_of(scheme: &str) -> &'static str {
    match scheme {
        "gs" | "gcs" => {
            "use Google's S3 API: s3://bucket/prefix with endpoint https://storage.googleapis.com and an HMAC key in \
             storage_options= (--option) or the AWS_ variables, or mount the bucket with gcsfuse"
        }
        "az" | "azure" | "abfs" | "abfss" | "adl" | "wasb" | "wasbs" => {
            "Azure has no S3 API: mount the container with blobfuse2 and give the directory, or list the blobs for \
             `foresee index https://ACCOUNT.blob.core.windows.net/CONTAINER?SAS --keys FILE -o NAME.fidx`"
        }
        "hf" => {
            "download the data set with `hf download REPOSITORY --repo-type dataset --local-dir DIRECTORY` and give the \
             directory"
        }
        "r2" | "b2" | "oss" | "cos" | "obs" | "minio" | "swift" | "oci" | "cos-n" | "cosn" | "s3n" => {
            "use the store's S3 API: s3://bucket/prefix, and its address as endpoint in storage_options= (--option) or \
             as AWS_ENDPOINT_URL"
        }
        "hdfs" | "webhdfs" | "dbfs" | "nfs" | "smb" | "ssh" | "sftp" | "ftp" | "ftps" | "gdrive" => {
            "mount the file system and give the directory"
        }
        _ => "use a path, file://, s3://, http:// or https://",
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
    fn a_scheme_that_is_not_supported_says_what_to_do_instead() {
        for (uri, remedy) in [
            ("gs://bucket/x", "https://storage.googleapis.com"),
            ("az://container/x", "blobfuse2"),
            ("abfss://container@account.dfs.core.windows.net/x", "blobfuse2"),
            ("hf://datasets/me/set", "hf download"),
            ("R2://bucket/x", "AWS_ENDPOINT_URL"),
            ("hdfs://host/x", "mount"),
            ("ftp://u:secret@h/x", "mount"),
            ("gopher://h/x", "s3://"),
        ] {
            let text = Uri::parse(uri).expect_err(uri).to_string();
            let scheme = uri.split_once("://").expect("a scheme").0;
            assert!(
                text.contains(remedy) && text.contains(&format!("{scheme}:// is not supported")),
                "{text}"
            );
            assert!(!text.contains("secret"), "{text}");
        }
        assert!(Uri::parse("s3:///x").is_err());
        assert!(Uri::parse("http:///x").is_err());
        assert!(Uri::parse("file://x").is_err());
        assert!(Uri::parse("").is_err());
    }
}
