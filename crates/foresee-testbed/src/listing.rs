// SPDX-License-Identifier: Apache-2.0
//! `ListObjectsV2`, and `List Blobs` of Azure, over a folder tree: keys in byte order, in pages.
//!
//! Folders are only traversed as far as a page needs. A folder's sorted names are cached while its modification
//! time is unchanged, because a flat folder of a million files is listed in a thousand pages.

mod azure;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_encode};

use crate::folder::{Facts, describe, internal, refusal};
use crate::server::Answer;
use crate::stamp::Stamp;

/// S3's longest page.
pub(crate) const PAGE_KEYS_MAX: usize = 1_000;

/// A folder that changed this recently may change again within one tick of its clock; it is not cached.
const SETTLED: Duration = Duration::from_secs(2);

/// First character of the token of an empty page; the token of the page that was requested follows.
const AFTER_EMPTY: &str = "e";

/// Characters of a key that `encoding-type=url` leaves unescaped.
const KEY_SET: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'/').remove(b'~');

/// The parameters of a listing.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Query {
    pub(crate) prefix: Vec<u8>,
    pub(crate) delimited: bool,
    pub(crate) after: After,
    pub(crate) max_keys: usize,
    url_encoded: bool,
}

/// The start of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct After {
    /// Keys up to and including this one were listed.
    key: Vec<u8>,
    /// `key` is a common prefix, and all keys with it were listed.
    with_all_below: bool,
}

/// One page of a listing.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) found: Vec<Found>,
    pub(crate) is_truncated: bool,
}

#[derive(Debug)]
pub(crate) enum Found {
    Object(Vec<u8>, Facts),
    Prefix(Vec<u8>),
}

/// The cached sorted names of folders.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    cached: Mutex<BTreeMap<PathBuf, (SystemTime, Names)>>,
}

/// Names in the order of their keys; those of folders end in `/`.
type Names = Arc<[Vec<u8>]>;

impl Query {
    /// A page below `prefix`, whose maximum length is that of S3.
    pub(crate) fn of_tree(prefix: Vec<u8>, delimited: bool, after: After) -> Self {
        Self { prefix, delimited, after, max_keys: PAGE_KEYS_MAX, url_encoded: false }
    }

    /// Parse a query string; an unsupported parameter is named in the error.
    pub(crate) fn parse(query: &str) -> Result<Self, String> {
        let mut parsed = Self { max_keys: PAGE_KEYS_MAX, ..Self::default() };
        let mut version = None;
        let mut start_after = Vec::new();
        for (name, value) in query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, ""))) {
            let value: Vec<u8> = percent_decode(value.replace('+', " ").as_bytes()).collect();
            match name {
                "list-type" => version = Some(value),
                "prefix" => parsed.prefix = value,
                "delimiter" if value.is_empty() => {}
                "delimiter" if value == b"/" => parsed.delimited = true,
                "delimiter" => return Err("the only delimiter of this testbed is /".to_owned()),
                "start-after" => start_after = value,
                "continuation-token" => parsed.after = After::from_token(&value)?,
                "max-keys" => {
                    let wanted: usize = String::from_utf8_lossy(&value)
                        .parse()
                        .map_err(|_| "max-keys is a number, 0 or more".to_owned())?;
                    parsed.max_keys = wanted.min(PAGE_KEYS_MAX);
                }
                "encoding-type" => parsed.url_encoded = value == b"url",
                _ => {}
            }
        }
        if version.as_deref() != Some(b"2") {
            return Err("a bucket is listed with list-type=2 (ListObjectsV2)".to_owned());
        }
        if parsed.after == After::default() {
            parsed.after.key = start_after;
        }
        Ok(parsed)
    }
}

impl After {
    pub(crate) fn from_token(token: &[u8]) -> Result<Self, String> {
        let token: Vec<u8> =
            percent_decode(token.strip_prefix(AFTER_EMPTY.as_bytes()).unwrap_or(token)).collect();
        match token.split_first() {
            Some((b'k', key)) => Ok(Self { key: key.to_vec(), with_all_below: false }),
            Some((b'p', key)) => Ok(Self { key: key.to_vec(), with_all_below: true }),
            _ => Err("continuation-token was not given out by this testbed".to_owned()),
        }
    }

    /// Whether the object `key` belongs to an earlier page.
    pub(crate) fn is_past(&self, key: &[u8]) -> bool {
        key <= &self.key[..] || self.with_all_below && key.starts_with(&self.key)
    }

    /// Whether all objects whose key begins with `folder` (which ends in `/`) belong to an earlier page.
    fn is_past_all(&self, folder: &[u8]) -> bool {
        if self.with_all_below && folder.starts_with(&self.key) {
            return true;
        }
        folder < &self.key[..] && !self.key.starts_with(folder)
    }
}

impl Listings {
    /// The page of `bucket` for `query`.
    pub(crate) fn list(&self, bucket: &Path, query: &Query) -> io::Result<Page> {
        let mut page = Page::default();
        if query.max_keys == 0 {
            return Ok(page);
        }
        let _ = self.visit_tree(bucket, &mut Vec::new(), query, &mut |found| {
            if page.found.len() == query.max_keys {
                page.is_truncated = true;
                return ControlFlow::Break(());
            }
            page.found.push(found);
            ControlFlow::Continue(())
        })?;
        Ok(page)
    }

    /// Visit the tree below `folder`, whose key is `key`, in order of keys.
    fn visit_tree(
        &self,
        folder: &Path,
        key: &mut Vec<u8>,
        query: &Query,
        visit: &mut dyn FnMut(Found) -> ControlFlow<()>,
    ) -> io::Result<ControlFlow<()>> {
        let names = self.names(folder)?;
        let begin = key.len();
        for name in names.iter() {
            key.truncate(begin);
            key.extend_from_slice(name);
            let path = folder.join(std::ffi::OsStr::from_bytes(name.strip_suffix(b"/").unwrap_or(name)));
            let step = if name.ends_with(b"/") {
                let on_the_way = key.starts_with(&query.prefix) || query.prefix.starts_with(key);
                if !on_the_way || query.after.is_past_all(key) {
                    continue;
                }
                if query.delimited && key.starts_with(&query.prefix) && key.len() > query.prefix.len() {
                    if !self.has_objects(&path, key, query)? {
                        continue;
                    }
                    visit(Found::Prefix(key.clone()))
                } else {
                    self.visit_tree(&path, key, query, visit)?
                }
            } else {
                if !key.starts_with(&query.prefix) || query.after.is_past(key) {
                    continue;
                }
                match describe(&path) {
                    Some(facts) => visit(Found::Object(key.clone(), facts)),
                    None => continue,
                }
            };
            if step.is_break() {
                return Ok(step);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Whether a page has any object below `folder`.
    fn has_objects(&self, folder: &Path, key: &[u8], query: &Query) -> io::Result<bool> {
        let flat = Query { prefix: key.to_vec(), after: query.after.clone(), ..Query::default() };
        let end = self.visit_tree(folder, &mut key.to_vec(), &flat, &mut |_| ControlFlow::Break(()))?;
        Ok(end.is_break())
    }

    /// The names in `folder`; none if it has vanished.
    fn names(&self, folder: &Path) -> io::Result<Names> {
        let changed = match fs::metadata(folder).and_then(|meta| meta.modified()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Names::default()),
            changed => changed?,
        };
        if let Some((when, names)) = self.cached.lock().unwrap_or_else(PoisonError::into_inner).get(folder)
            && *when == changed
        {
            return Ok(Arc::clone(names));
        }
        let mut names = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            let is_folder = kind.is_dir() || kind.is_symlink() && entry.path().is_dir();
            let mut name = entry.file_name().into_vec();
            if is_folder {
                name.push(b'/');
            }
            names.push(name);
        }
        names.sort_unstable();
        let names: Names = names.into();
        if changed.elapsed().is_ok_and(|age| age > SETTLED) {
            let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
            cached.insert(folder.to_path_buf(), (changed, Arc::clone(&names)));
        }
        Ok(names)
    }
}

impl Page {
    /// The page in S3's XML.
    pub(crate) fn to_xml(&self, bucket: &str, query: &Query) -> String {
        let text = |key: &[u8]| {
            if query.url_encoded {
                percent_encode(key, KEY_SET).to_string()
            } else {
                escape(&String::from_utf8_lossy(key))
            }
        };
        let mut xml = String::from(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">",
        );
        let mut element = |name: &str, value: &str| {
            let _ = write!(xml, "<{name}>{value}</{name}>");
        };
        element("Name", &escape(bucket));
        element("Prefix", &text(&query.prefix));
        if query.delimited {
            element("Delimiter", "/");
        }
        if query.url_encoded {
            element("EncodingType", "url");
        }
        element("MaxKeys", &query.max_keys.to_string());
        element("KeyCount", &self.found.len().to_string());
        element("IsTruncated", if self.is_truncated { "true" } else { "false" });
        if let Some(last) = self.found.last().filter(|_| self.is_truncated) {
            element("NextContinuationToken", &last.token());
        }
        for found in &self.found {
            let _ = match found {
                Found::Object(key, facts) => write!(
                    xml,
                    "<Contents><Key>{}</Key><LastModified>{}</LastModified><ETag>{}</ETag><Size>{}</Size>\
                     <StorageClass>STANDARD</StorageClass></Contents>",
                    text(key),
                    Stamp::from_unix(facts.modified).s3(),
                    escape(&facts.tag),
                    facts.size,
                ),
                Found::Prefix(key) => {
                    write!(xml, "<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>", text(key))
                }
            };
        }
        xml.push_str("</ListBucketResult>");
        xml
    }
}

impl Found {
    /// A token of the position after this one; letters and digits only, so that no client changes it.
    pub(crate) fn token(&self) -> String {
        let (kind, key) = match self {
            Self::Object(key, _) => ('k', key),
            Self::Prefix(key) => ('p', key),
        };
        format!("{kind}{}", percent_encode(key, NON_ALPHANUMERIC))
    }
}

/// Answer a request for a bucket: `HEAD`, or a listing whose page `list` returns.
pub(crate) fn answer(
    bucket: &[u8],
    head: &Parts,
    page_keys: usize,
    list: impl FnOnce(&Query) -> io::Result<Page>,
) -> Answer {
    if head.method == Method::HEAD {
        return Answer::of_bytes(StatusCode::OK, "application/xml", Bytes::new());
    }
    let text = head.uri.query().unwrap_or("");
    let is_azure = azure::is_azure(text);
    let mut query = match if is_azure { azure::parse(text) } else { Query::parse(text) } {
        Ok(query) => query,
        Err(reason) => return refusal(StatusCode::NOT_IMPLEMENTED, "NotImplemented", &reason),
    };
    query.max_keys = query.max_keys.min(page_keys);
    match list(&query) {
        Ok(page) => {
            let bucket = String::from_utf8_lossy(bucket);
            let xml = if is_azure { azure::to_xml(&page, &bucket) } else { page.to_xml(&bucket, &query) };
            Answer::of_bytes(StatusCode::OK, "application/xml", xml)
        }
        Err(error) => internal(&error),
    }
}

/// Whether a query string requests a page of a listing.
pub(crate) fn is_list(query: &str) -> bool {
    query.contains("list-type=") || azure::is_azure(query)
}

/// A page without keys whose token leads to the page that `query` requests; `None` if `query` has such a token.
pub(crate) fn empty_page(query: &str) -> Option<String> {
    if azure::is_azure(query) {
        return azure::empty_page(query);
    }
    let value = |name| {
        let (_, value) =
            query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name)?;
        Some(percent_decode(value.replace('+', " ").as_bytes()).collect::<Vec<u8>>())
    };
    let token = match value("continuation-token") {
        Some(token) if token.starts_with(AFTER_EMPTY.as_bytes()) => return None,
        Some(token) => String::from_utf8_lossy(&token).into_owned(),
        None => format!("k{}", percent_encode(&value("start-after").unwrap_or_default(), NON_ALPHANUMERIC)),
    };
    Some(format!(
        "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>{AFTER_EMPTY}{token}\
         </NextContinuationToken></ListBucketResult>"
    ))
}

/// `text` inside of an XML element.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for sign in text.chars() {
        match sign {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // Not allowed in XML 1.0, even as references; S3 uses url encoding for them.
            '\u{0}'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' => escaped.push('\u{fffd}'),
            // A parser may change them unless they are references.
            '\t' | '\n' | '\r' => {
                let _ = write!(escaped, "&#{};", u32::from(sign));
            }
            sign => escaped.push(sign),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(keys: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a temporary folder");
        for key in keys {
            let path = root.path().join(key);
            fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
            fs::write(path, key).expect("a file");
        }
        root
    }

    /// All pages of a listing, and their number.
    fn pages(root: &Path, query: &str) -> (Vec<String>, usize) {
        let listings = Listings::default();
        let (mut seen, mut token, mut count) = (Vec::new(), String::new(), 0);
        loop {
            let more = if token.is_empty() { String::new() } else { format!("&continuation-token={token}") };
            let query = Query::parse(&format!("list-type=2&{query}{more}")).expect("a valid query");
            let page = listings.list(root, &query).expect("a listing");
            count += 1;
            seen.extend(page.found.iter().map(|found| match found {
                Found::Object(key, _) | Found::Prefix(key) => String::from_utf8_lossy(key).into_owned(),
            }));
            if !page.is_truncated {
                return (seen, count);
            }
            token = percent_encode(page.found.last().expect("a key").token().as_bytes(), NON_ALPHANUMERIC)
                .to_string();
        }
    }

    const KEYS: [&str; 7] = ["a-b", "a/1", "a/2", "a/c/3", "a0", "b d/ü&", "z"];

    #[test]
    fn keys_are_in_byte_order_for_any_page_size() {
        let root = tree(&KEYS);
        for size in 1..=8 {
            let (seen, _) = pages(root.path(), &format!("max-keys={size}"));
            assert_eq!(seen, KEYS, "pages of {size}");
        }
    }

    #[test]
    fn a_delimiter_folds_folders_and_the_next_page_does_not_repeat_them() {
        let root = tree(&KEYS);
        for size in 1..=5 {
            let (seen, _) = pages(root.path(), &format!("delimiter=/&max-keys={size}"));
            assert_eq!(seen, ["a-b", "a/", "a0", "b d/", "z"], "pages of {size}");
        }
        assert_eq!(pages(root.path(), "delimiter=/&prefix=a/").0, ["a/1", "a/2", "a/c/"]);
        assert_eq!(pages(root.path(), "delimiter=/&prefix=a").0, ["a-b", "a/", "a0"]);
    }

    #[test]
    fn start_after_begins_behind_a_key_that_need_not_exist() {
        let root = tree(&KEYS);
        assert_eq!(pages(root.path(), "start-after=a/1x").0, ["a/2", "a/c/3", "a0", "b d/ü&", "z"]);
        assert_eq!(pages(root.path(), "prefix=a/&start-after=a/2").0, ["a/c/3"]);
        assert_eq!(pages(root.path(), "delimiter=/&start-after=a/2").0, ["a/", "a0", "b d/", "z"]);
        assert_eq!(pages(root.path(), "delimiter=/&start-after=a/z").0, ["a0", "b d/", "z"]);
    }

    #[test]
    fn an_empty_folder_is_not_a_prefix() {
        let root = tree(&["a/1"]);
        fs::create_dir_all(root.path().join("empty/deeper")).expect("folders");
        assert_eq!(pages(root.path(), "delimiter=/").0, ["a/"]);
    }

    #[test]
    fn a_file_added_later_is_listed() {
        let root = tree(&["a"]);
        let listings = Listings::default();
        let query = Query::parse("list-type=2").expect("a valid query");
        assert_eq!(listings.list(root.path(), &query).expect("a listing").found.len(), 1);
        fs::write(root.path().join("b"), "").expect("a file");
        assert_eq!(listings.list(root.path(), &query).expect("a listing").found.len(), 2);
    }

    #[test]
    fn a_page_has_the_form_of_s3() {
        let root = tree(&["b d/ü&"]);
        let query = Query::parse("list-type=2&prefix=b+d%2F&encoding-type=url").expect("a valid query");
        let xml = Listings::default().list(root.path(), &query).expect("a listing").to_xml("data", &query);
        for part in
            ["<Name>data</Name>", "<Prefix>b%20d/</Prefix>", "<Key>b%20d/%C3%BC%26</Key>", "<Size>7</Size>"]
        {
            assert!(xml.contains(part), "{part} in {xml}");
        }
        let plain = Query::parse("list-type=2").expect("a valid query");
        let xml = Listings::default().list(root.path(), &plain).expect("a listing").to_xml("data", &plain);
        assert!(xml.contains("<Key>b d/ü&amp;</Key>"), "{xml}");
    }

    #[test]
    fn an_unsupported_parameter_is_named() {
        for (query, part) in [
            ("", "list-type=2"),
            ("list-type=2&delimiter=-", "delimiter"),
            ("list-type=2&max-keys=-1", "max-keys"),
            ("list-type=2&continuation-token=x", "continuation-token"),
        ] {
            assert!(Query::parse(query).expect_err(query).contains(part), "{query}");
        }
    }
}
