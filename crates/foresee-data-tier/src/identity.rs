// SPDX-License-Identifier: Apache-2.0
//! Identity of cached bytes: where an object is stored, which version of it, and which range.
//!
//! Two data sets that contain the same object share its entry, and a data set with one changed object finds all other
//! entries. Credentials and presigned parts of a URI are excluded, because they may change between runs.

use std::fmt::Write as _;

use foresee_units::SampleId;
use xxhash_rust::xxh3::xxh3_128;

use crate::origin::{OriginError, OriginOptions, store_endpoint};
use crate::uri::{Uri, UriParts};

/// Identity of some bytes at an origin, 128 bits: equal keys mean equal bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryKey(pub [u8; 16]);

/// Location of a data set's objects: kind of store, endpoint, bucket and prefix; or a directory; or a key of the user.
///
/// ```
/// use foresee_data_tier::{OriginIdentity, OriginOptions, Uri};
/// let origin = |uri: &str| OriginIdentity::new(&Uri::parse(uri)?, &OriginOptions::default());
/// // The boundary between URI and key does not matter.
/// let whole = origin("s3://bucket/train")?.entry(b"cat/1.jpg", b"etag", 0, 100);
/// assert_eq!(whole, origin("s3://bucket")?.entry(b"train/cat/1.jpg", b"etag", 0, 100));
/// assert_ne!(whole, origin("s3://other")?.entry(b"train/cat/1.jpg", b"etag", 0, 100));
/// # Ok::<_, foresee_data_tier::OriginError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginIdentity {
    store: Vec<u8>,
    /// Precedes each key; ends with a slash.
    prefix: Vec<u8>,
    folder: String,
}

/// Characters of the URI or of the user's key in a folder's name.
const READABLE: usize = 40;

impl OriginIdentity {
    /// The identity for `uri` and `options`. A directory is identified by its real path, so two links to it are one
    /// origin.
    ///
    /// # Errors
    /// [`OriginError::BadOption`] for a setting that the store does not have.
    pub fn new(uri: &Uri, options: &OriginOptions) -> Result<Self, OriginError> {
        let (store, prefix) = match uri.parts() {
            UriParts::Directory(path) => {
                let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
                (fields(&[b"file"]), real.into_os_string().into_encoded_bytes())
            }
            UriParts::Repository(path) => {
                let endpoint = store_endpoint(uri, options)?;
                let repository = format!("{}{}", path.kind.in_front(), path.repository);
                // Files with equal tags are equal in every revision.
                let store = fields(&[b"hf", endpoint.as_bytes(), repository.as_bytes()]);
                (store, path.prefix.clone().into_bytes())
            }
            UriParts::Bucket { kind, name, prefix, .. } => {
                let endpoint = store_endpoint(uri, options)?;
                let store = fields(&[kind.scheme().as_bytes(), endpoint.as_bytes(), name.as_bytes()]);
                (store, prefix.clone().into_bytes())
            }
            UriParts::Web { base, .. } => (fields(&[b"http"]), base.clone().into_bytes()),
        };
        let mut prefix = prefix;
        if !prefix.is_empty() && !prefix.ends_with(b"/") {
            prefix.push(b'/');
        }
        let folder = folder_name(&uri.to_string(), &fields(&[&store, &prefix]));
        Ok(Self { store, prefix, folder })
    }

    /// The identity of samples that the user names by `key`. `variant` has everything else that has to be equal where
    /// their bytes are.
    pub fn of_key(key: &str, variant: &str) -> Self {
        let (store, prefix) = (fields(&[b"key", key.as_bytes()]), fields(&[variant.as_bytes()]));
        let folder = folder_name(&format!("key {key}"), &fields(&[&store, &prefix]));
        Self { store, prefix, folder }
    }

    /// Key of `len` bytes from `start` of the object `key` in the version `tag`.
    pub fn entry(&self, key: &[u8], tag: &[u8], start: u64, len: u64) -> EntryKey {
        let mut bytes = Vec::with_capacity(48 + self.store.len() + self.prefix.len() + key.len() + tag.len());
        push_field(&mut bytes, &self.store);
        bytes.extend_from_slice(&((self.prefix.len() + key.len()) as u64).to_le_bytes());
        bytes.extend_from_slice(&self.prefix);
        bytes.extend_from_slice(key);
        push_field(&mut bytes, tag);
        bytes.extend_from_slice(&start.to_le_bytes());
        bytes.extend_from_slice(&len.to_le_bytes());
        EntryKey(xxh3_128(&bytes).to_be_bytes())
    }

    /// Key of a sample that the user numbers, and whose length is not known before it is read.
    pub fn numbered_entry(&self, sample: SampleId) -> EntryKey {
        self.entry(&sample.0.to_le_bytes(), &[], 0, 0)
    }

    /// Identity of the store: kind, endpoint and bucket; the kind alone for a directory and for a web server.
    pub fn store(&self) -> &[u8] {
        &self.store
    }

    /// Name of its folder in a cache directory: the end of the URI, for people, and 16 hexadecimal digits.
    pub fn folder(&self) -> &str {
        &self.folder
    }
}

/// Concatenate byte strings, each after its length.
fn fields(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        push_field(&mut bytes, part);
    }
    bytes
}

fn push_field(bytes: &mut Vec<u8>, field: &[u8]) {
    bytes.extend_from_slice(&(field.len() as u64).to_le_bytes());
    bytes.extend_from_slice(field);
}

fn folder_name(shown: &str, identity: &[u8]) -> String {
    let words = shown.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let plain = words.collect::<Vec<_>>().join("-");
    let mut name = plain[plain.len().saturating_sub(READABLE)..].trim_start_matches('-').to_owned();
    let digest = u64::try_from(xxh3_128(identity) >> 64).expect("64 bits");
    write!(name, "-{digest:016x}").expect("a String takes everything");
    name.trim_start_matches('-').to_owned()
}

/// Whether `name` is the name of an origin's folder in a cache directory.
pub(crate) fn is_origin_folder(name: &str) -> bool {
    let digits = name.rsplit('-').next().unwrap_or_default();
    digits.len() == 16 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(uri: &str, storage: &[(&str, &str)]) -> OriginIdentity {
        let storage = storage.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let options = OriginOptions { storage, ..OriginOptions::default() };
        OriginIdentity::new(&Uri::parse(uri).expect("a URI"), &options).expect("known settings")
    }

    #[test]
    fn every_part_of_an_identity_matters_except_credentials() {
        let endpoint = ("aws_endpoint", "http://127.0.0.1:9000");
        let here = identity("s3://b/train", &[endpoint]);
        let key = here.entry(b"a", b"t", 0, 5);
        let others = [
            identity("s3://b/train", &[("aws_endpoint", "http://127.0.0.1:9001")]).entry(b"a", b"t", 0, 5),
            identity("s3://c/train", &[endpoint]).entry(b"a", b"t", 0, 5),
            here.entry(b"b", b"t", 0, 5),
            here.entry(b"a", b"u", 0, 5),
            here.entry(b"a", b"t", 1, 5),
            here.entry(b"a", b"t", 0, 6),
            here.entry(b"at", b"", 0, 5),
        ];
        assert!(others.iter().all(|other| *other != key), "{others:?}");
        let secrets = [endpoint, ("aws_access_key_id", "me"), ("aws_secret_access_key", "secret")];
        assert_eq!(identity("s3://b/train", &secrets), here);
        let signed = [identity("https://h/a?sig=1", &[]), identity("https://h/a?sig=2", &[])];
        assert_eq!(signed[0], signed[1]);
    }

    #[test]
    fn keys_stay_the_same_from_version_to_version() {
        let key = identity("http://host/data", &[]).entry(b"cat/1.jpg", b"\"etag\"", 0, 100);
        assert_eq!(format!("{:032x}", u128::from_be_bytes(key.0)), "c63fcea032a58b67b7fd165dc7b370e8");
    }

    #[test]
    fn samples_under_another_key_variant_or_number_have_another_key() {
        let entry = |key: &str, variant: &str, sample| {
            OriginIdentity::of_key(key, variant).numbered_entry(SampleId(sample))
        };
        let others = [entry("b", "5", 1), entry("a", "6", 1), entry("a", "5", 2), entry("a5", "", 1)];
        assert!(others.iter().all(|other| *other != entry("a", "5", 1)), "{others:?}");
        let folders = [("a", "5"), ("b", "5"), ("a", "6")]
            .map(|(key, variant)| OriginIdentity::of_key(key, variant).folder().to_owned());
        assert!(folders[0].starts_with("key-a-") && folders[0] != folders[2], "{folders:?}");
        assert!(folders.iter().all(|folder| is_origin_folder(folder)), "{folders:?}");
    }

    #[test]
    fn the_key_of_a_numbered_sample_stays_the_same_from_version_to_version() {
        let key = OriginIdentity::of_key("pictures-1", "5 samples").numbered_entry(SampleId(3));
        assert_eq!(format!("{:032x}", u128::from_be_bytes(key.0)), "2aeb8081ccb5c5b01212aa8b2030c65c");
    }

    #[test]
    fn links_to_a_directory_are_one_origin() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let data = dir.path().join("data");
        std::fs::create_dir(&data).expect("a folder");
        std::os::unix::fs::symlink(&data, dir.path().join("link")).expect("a link");
        let of = |name: &str| {
            let uri = Uri::from_path(&dir.path().join(name)).expect("a path");
            OriginIdentity::new(&uri, &OriginOptions::default()).expect("an identity").entry(b"1", b"", 0, 1)
        };
        assert_eq!(of("data"), of("link"));
    }

    #[test]
    fn a_folders_name_is_readable_short_and_plain() {
        let name = identity("s3://my bucket/../train/", &[]).folder().to_owned();
        assert!(name.starts_with("s3-my-bucket-train-") && is_origin_folder(&name), "{name}");
        assert!(identity(&format!("s3://b/{}", "é/".repeat(100)), &[]).folder().len() < 64);
        assert!(is_origin_folder(identity("/", &[]).folder()));
        assert!(!is_origin_folder("partition-0") && !is_origin_folder("0".repeat(32).as_str()));
    }
}
