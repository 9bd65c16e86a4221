// SPDX-License-Identifier: Apache-2.0
//! The URI of a data set: a path, `file://`, `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`,
//! `hf://datasets/owner/name/prefix`, `http(s)://host/path`.
//!
//! User names, passwords and query strings (presigned parts) are sent to the origin and never shown.

mod hugging_face;

use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use percent_encoding::percent_decode;

pub(crate) use self::hugging_face::RepositoryPath;

/// Why a text is not the URI of an origin, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UriError {
    /// The URI lacks a part.
    #[error("origin uri {uri:?} cannot be read: {cause}")]
    Malformed {
        /// Without secrets.
        uri: String,
        /// The fault, and the correct form.
        cause: &'static str,
    },
    /// A scheme that is not supported.
    #[error("origin uri {uri:?}: {scheme}:// is not supported; {remedy}")]
    Scheme {
        /// Without secrets.
        uri: String,
        /// As given.
        scheme: String,
        /// The alternative.
        remedy: &'static str,
    },
}

/// A parsed origin URI. `Display` omits credentials and presigned parts.
#[derive(Clone, PartialEq, Eq)]
pub struct Uri {
    parts: UriParts,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum UriParts {
    /// A directory of a mounted file system.
    Directory(PathBuf),
    /// A bucket, and the prefix without leading and trailing slashes. `account` is that of Azure, if the URI names it.
    Bucket { kind: BucketKind, name: String, account: Option<String>, prefix: String },
    /// A repository of the Hugging Face hub.
    Repository(RepositoryPath),
    /// A plain web server. `base` has no query and no trailing slash; the query is secret.
    Web { base: String, query: Option<String> },
}

/// The interface of a bucket's store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BucketKind {
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azure,
}

impl BucketKind {
    /// The kind of a scheme in lower case.
    fn of_scheme(scheme: &str) -> Option<Self> {
        match scheme {
            "s3" | "s3a" => Some(Self::S3),
            "gs" | "gcs" => Some(Self::Gcs),
            "az" | "azure" | "abfs" | "abfss" | "adl" | "wasb" | "wasbs" => Some(Self::Azure),
            _ => None,
        }
    }

    /// The scheme in messages and in an index, and the name of the store in identities.
    pub(crate) const fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Gcs => "gs",
            Self::Azure => "az",
        }
    }

    const fn no_bucket(self) -> &'static str {
        match self {
            Self::S3 => "the bucket is missing, write s3://bucket/prefix",
            Self::Gcs => "the bucket is missing, write gs://bucket/prefix",
            Self::Azure => "the container is missing, write az://container/prefix",
        }
    }
}

/// Message about the host of an account that is not one of Azure's public cloud.
const NO_ACCOUNT: &str = "the host after the container is not ACCOUNT.dfs.core.windows.net or ACCOUNT.blob.core.windows.net; \
                          write az://container/prefix, and name the account as account_name and its address as endpoint in \
                          storage_options= (--option)";

/// The account of a host of Azure's public cloud.
fn account_of_host(host: &str) -> Option<String> {
    let host = host.to_ascii_lowercase();
    let account = ["dfs", "blob"].into_iter().find_map(|service| {
        host.strip_suffix(".core.windows.net")?.strip_suffix(service)?.strip_suffix('.')
    })?;
    let is_name = !account.is_empty() && account.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_name.then(|| account.to_owned())
}

impl Uri {
    /// Parse a URI; text without `scheme://` is a path.
    ///
    /// # Errors
    /// [`UriError::Scheme`] for an unsupported scheme; [`UriError::Malformed`] if a part is missing.
    pub fn parse(text: &str) -> Result<Self, UriError> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Self::directory(text.as_bytes());
        };
        let bad = |cause| UriError::Malformed { uri: redact(text), cause };
        let lower_case = scheme.to_ascii_lowercase();
        if let Some(kind) = BucketKind::of_scheme(&lower_case) {
            let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            if name.is_empty() {
                return Err(bad(kind.no_bucket()));
            }
            let (name, account) = match name.split_once('@') {
                Some((container, host)) if kind == BucketKind::Azure && !container.is_empty() => {
                    (container, Some(account_of_host(host).ok_or_else(|| bad(NO_ACCOUNT))?))
                }
                Some(_) if kind == BucketKind::Azure => return Err(bad(kind.no_bucket())),
                _ => (name, None),
            };
            let (name, prefix) = (name.to_owned(), prefix.trim_matches('/').to_owned());
            return Ok(Self { parts: UriParts::Bucket { kind, name, account, prefix } });
        }
        match lower_case.as_str() {
            "hf" => {
                let path = RepositoryPath::parse(rest).map_err(bad)?;
                Ok(Self { parts: UriParts::Repository(path) })
            }
            "file" => {
                if !rest.starts_with('/') {
                    return Err(bad("write file:///absolute/path (three slashes)"));
                }
                Self::directory(&percent_decode(rest.as_bytes()).collect::<Vec<u8>>())
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
                Ok(Self { parts: UriParts::Web { base, query } })
            }
            other => Err(UriError::Scheme {
                uri: redact(text),
                scheme: scheme.to_owned(),
                remedy: remedy_for(other),
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
        Ok(Self { parts: UriParts::Directory(path) })
    }

    /// Whether this is a directory, as opposed to a store behind a network protocol.
    pub const fn is_directory(&self) -> bool {
        matches!(self.parts, UriParts::Directory(_))
    }

    /// The path of a directory.
    pub fn directory_path(&self) -> Option<&Path> {
        match &self.parts {
            UriParts::Directory(path) => Some(path),
            UriParts::Bucket { .. } | UriParts::Repository(_) | UriParts::Web { .. } => None,
        }
    }

    pub(crate) const fn parts(&self) -> &UriParts {
        &self.parts
    }

    /// The URI of a bucket or repository without its prefix, for messages; other URIs as they are.
    pub(crate) fn root(&self) -> String {
        let mut root = self.clone();
        if let UriParts::Bucket { prefix, .. } | UriParts::Repository(RepositoryPath { prefix, .. }) =
            &mut root.parts
        {
            prefix.clear();
        }
        root.to_string()
    }

    /// What precedes each key in a store: empty, or with a slash at its end.
    pub(crate) fn key_prefix(&self) -> String {
        match &self.parts {
            UriParts::Bucket { prefix, .. } | UriParts::Repository(RepositoryPath { prefix, .. })
                if !prefix.is_empty() =>
            {
                format!("{prefix}/")
            }
            _ => String::new(),
        }
    }

    /// The URI of one object for messages: invalid UTF-8 is replaced, secrets are omitted.
    pub fn join(&self, key: &[u8]) -> String {
        let key = String::from_utf8_lossy(key);
        let key = match &self.parts {
            UriParts::Web { .. } => key.split('?').next().unwrap_or_default(),
            UriParts::Directory(_) | UriParts::Bucket { .. } | UriParts::Repository(_) => &key,
        };
        format!("{}/{key}", self.to_string().trim_end_matches('/'))
    }
}

/// The alternative to an unsupported scheme.
fn remedy_for(scheme: &str) -> &'static str {
    match scheme {
        "r2" | "b2" | "oss" | "cos" | "obs" | "minio" | "swift" | "oci" | "cos-n" | "cosn" | "s3n" => {
            "use the store's S3 API: s3://bucket/prefix, and its address as endpoint in storage_options= (--option) or \
             as AWS_ENDPOINT_URL"
        }
        "hdfs" | "webhdfs" | "dbfs" | "nfs" | "smb" | "ssh" | "sftp" | "ftp" | "ftps" | "gdrive" => {
            "mount the file system and give the directory"
        }
        _ => "use a path, file://, s3://, gs://, az://, hf://, http:// or https://",
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.parts {
            UriParts::Directory(path) => write!(f, "{}", path.display()),
            UriParts::Bucket { kind, name, account, prefix } => {
                match account {
                    Some(account) => write!(f, "abfss://{name}@{account}.dfs.core.windows.net")?,
                    None => write!(f, "{}://{name}", kind.scheme())?,
                }
                if prefix.is_empty() { Ok(()) } else { write!(f, "/{prefix}") }
            }
            UriParts::Repository(path) => write!(f, "{path}"),
            UriParts::Web { base, .. } => write!(f, "{base}"),
        }
    }
}

impl fmt::Debug for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Uri({self})")
    }
}

/// `text` with user names and queries removed from each URI.
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
        // A container of Azure is no user name.
        let is_container =
            scheme.ends_with("abfss") && authority.ends_with(".core.windows.net") && !authority.contains(':');
        let hidden = if is_container { 0 } else { authority.rfind('@').map_or(0, |at| at + 1) };
        shown.push_str(scheme);
        shown.push_str("://");
        shown.push_str(&address[hidden..]);
        // The closing mark of a quoted or bracketed URI is not part of its query.
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

    fn display(text: &str) -> String {
        Uri::parse(text).expect("a good URI").to_string()
    }

    #[test]
    fn every_scheme_is_read_and_shown() {
        assert_eq!(display("/data/train"), "/data/train");
        assert_eq!(display("data"), "data");
        assert_eq!(display("file:///data/a%20b"), "/data/a b");
        assert_eq!(display("s3://bucket"), "s3://bucket");
        assert_eq!(display("s3://bucket/a/b/"), "s3://bucket/a/b");
        assert_eq!(display("gcs://bucket/a"), "gs://bucket/a");
        assert_eq!(display("abfss://container/a"), "az://container/a");
        for host in ["dfs", "blob"].map(|service| format!("me.{service}.core.windows.net")) {
            let shown = display(&format!("wasbs://container@{host}/a/"));
            assert_eq!(shown, "abfss://container@me.dfs.core.windows.net/a");
            assert_eq!(display(&shown), shown);
        }
        assert_eq!(display("hf://datasets/me/set@v1/a/"), "hf://datasets/me/set@v1/a");
        assert_eq!(display("HTTP://host:80/a/"), "http://host:80/a");
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
        let azure = "abfss://c@me.dfs.core.windows.net/x";
        assert_eq!(redact(azure), azure);
        assert_eq!(redact("abfss://me:pw@me.dfs.core.windows.net/x"), "abfss://me.dfs.core.windows.net/x");
    }

    #[test]
    fn an_unsupported_scheme_is_reported_with_a_remedy() {
        for (uri, remedy) in [
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
        for uri in
            ["s3:///x", "gs://", "az:///x", "abfss://c@host/x", "abfss://c@.dfs.core.windows.net", "hf://x"]
        {
            let text = Uri::parse(uri).expect_err(uri).to_string();
            assert!(text.contains("write ") && text.contains("/prefix"), "{text}");
        }
        assert!(Uri::parse("http:///x").is_err());
        assert!(Uri::parse("file://x").is_err());
        assert!(Uri::parse("").is_err());
    }
}
