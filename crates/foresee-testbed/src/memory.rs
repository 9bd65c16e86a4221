// SPDX-License-Identifier: Apache-2.0
//! Buckets in memory, filled by `PUT`, and a log of the requests for them.
//!
//! Unlike the files of [`crate::folder`], their objects may have any key: with empty parts, `..`, control characters
//! or a final slash. `PUT /BUCKET` creates a bucket, `PUT /BUCKET/KEY` an object.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use hyper::header::{ETAG, IF_MATCH, RANGE};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use percent_encoding::percent_decode_str;

use crate::body::Source;
use crate::folder::{Facts, header, header_value, no_such_bucket, no_such_key, respond};
use crate::hugging_face;
use crate::listing::{self, Found, Page, Query};
use crate::server::Answer;

/// Requests that the log holds; older ones are dropped.
const LOG_LENGTH: usize = 4096;

type Bucket = BTreeMap<Vec<u8>, Object>;

/// All buckets of one server.
#[derive(Debug)]
pub(crate) struct MemoryBuckets {
    /// Maximum number of keys on a page of a listing.
    page_keys: usize,
    buckets: Mutex<BTreeMap<Vec<u8>, Bucket>>,
    requests: Mutex<VecDeque<String>>,
}

#[derive(Clone, Debug)]
struct Object {
    facts: Facts,
    bytes: Bytes,
}

impl MemoryBuckets {
    pub(crate) fn new(page_keys: usize) -> Self {
        Self { page_keys, buckets: Mutex::default(), requests: Mutex::default() }
    }

    /// Store an object, and its bucket if it is new; return the object's tag, which depends on its bytes only.
    pub(crate) fn put(&self, bucket: &[u8], key: &[u8], bytes: Bytes) -> String {
        let hash = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3); // FNV-1a
        let tag = format!("\"{:016x}\"", bytes.iter().fold(0xcbf2_9ce4_8422_2325, hash));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let modified = i64::try_from(now).unwrap_or(i64::MAX);
        let facts = Facts { tag: tag.clone(), size: bytes.len() as u64, modified };
        let mut buckets = self.buckets();
        buckets.entry(bucket.to_vec()).or_default().insert(key.to_vec(), Object { facts, bytes });
        tag
    }

    pub(crate) fn create(&self, bucket: &[u8]) {
        self.buckets().entry(bucket.to_vec()).or_default();
    }

    /// The last requests: `METHOD PATH range=RANGE if-match=TAG`, then ` query=QUERY` if there is one.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Add a request to the log, also one that a fault answers.
    pub(crate) fn log(&self, head: &Parts) {
        let value = |name| header(head, name).unwrap_or("-");
        let path = percent_decode_str(head.uri.path()).decode_utf8_lossy();
        let query = head.uri.query().map(|query| format!(" query={query}")).unwrap_or_default();
        let (range, tag) = (value(&RANGE), value(&IF_MATCH));
        let line = format!("{} {path} range={range} if-match={tag}{query}", head.method);
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        if requests.len() == LOG_LENGTH {
            requests.pop_front();
        }
        requests.push_back(line);
    }

    /// Answer one request; `body` is empty unless it is a `PUT`.
    pub(crate) fn answer(&self, head: &Parts, body: Bytes) -> Answer {
        let path: Vec<u8> = percent_decode_str(head.uri.path().trim_start_matches('/')).collect();
        let slash = path.iter().position(|byte| *byte == b'/').unwrap_or(path.len());
        let (bucket, key) = (&path[..slash], path.get(slash + 1..).unwrap_or_default());
        if head.method == Method::PUT {
            let mut answer = Answer::of_bytes(StatusCode::OK, "application/xml", Bytes::new());
            if key.is_empty() {
                self.create(bucket);
            } else {
                answer.headers.insert(ETAG, header_value(&self.put(bucket, key, body)));
            }
            return answer;
        }
        let mut answer = hugging_face::answer(self, head).unwrap_or_else(|| self.read(bucket, key, head));
        if head.method == Method::HEAD {
            answer.source = Source::Memory(Bytes::new());
            answer.length = None;
        }
        answer
    }

    /// The answer to a `GET` or `HEAD` of S3.
    pub(crate) fn read(&self, bucket: &[u8], key: &[u8], head: &Parts) -> Answer {
        let buckets = self.buckets();
        let Some(objects) = buckets.get(bucket) else { return no_such_bucket() };
        if key.is_empty() {
            return listing::answer(bucket, head, self.page_keys, |query| Ok(page(objects, query)));
        }
        let Some(Object { facts, bytes }) = objects.get(key) else { return no_such_key() };
        let part = |range: std::ops::Range<u64>| {
            let at = |byte: u64| usize::try_from(byte).expect("inside of memory");
            Ok(Source::Memory(bytes.slice(at(range.start)..at(range.end))))
        };
        respond(head, facts, part).expect("memory is always readable")
    }

    /// The page of `bucket` for `query`, with at most the server's number of keys.
    pub(crate) fn page(&self, bucket: &[u8], mut query: Query) -> Option<Page> {
        query.max_keys = query.max_keys.min(self.page_keys);
        self.buckets().get(bucket).map(|objects| page(objects, &query))
    }

    /// Tag and size of an object.
    pub(crate) fn facts(&self, bucket: &[u8], key: &[u8]) -> Option<Facts> {
        self.buckets().get(bucket)?.get(key).map(|object| object.facts.clone())
    }

    fn buckets(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Bucket>> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The page of `objects` for `query`.
fn page(objects: &Bucket, query: &Query) -> Page {
    let mut page = Page::default();
    let from = (Bound::Included(query.prefix.clone()), Bound::Unbounded);
    for (key, object) in objects.range(from).take_while(|(key, _)| key.starts_with(&query.prefix)) {
        if query.after.is_past(key) {
            continue;
        }
        let below = &key[query.prefix.len()..];
        let found = match below.iter().position(|byte| *byte == b'/') {
            Some(slash) if query.delimited => Found::Prefix(key[..=query.prefix.len() + slash].to_vec()),
            _ => Found::Object(key.clone(), object.facts.clone()),
        };
        if matches!((page.found.last(), &found), (Some(Found::Prefix(last)), Found::Prefix(new)) if last == new)
        {
            continue;
        }
        if page.found.len() == query.max_keys {
            page.is_truncated = true;
            break;
        }
        page.found.push(found);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(memory: &MemoryBuckets, query: &str) -> Vec<String> {
        let query = Query::parse(&format!("list-type=2&{query}")).expect("a valid query");
        let page = page(&memory.buckets()[&b"b"[..]], &query);
        let key = |found: &Found| match found {
            Found::Object(key, _) | Found::Prefix(key) => String::from_utf8_lossy(key).into_owned(),
        };
        page.found.iter().map(key).collect()
    }

    #[test]
    fn any_key_is_stored_and_listed() {
        let memory = MemoryBuckets::new(10);
        for key in ["a//b", "a/../b", "a/", "\n", "a/b/c"] {
            memory.put(b"b", key.as_bytes(), Bytes::new());
        }
        assert_eq!(keys(&memory, ""), ["\n", "a/", "a/../b", "a//b", "a/b/c"]);
        assert_eq!(keys(&memory, "delimiter=/"), ["\n", "a/"]);
        assert_eq!(keys(&memory, "prefix=a/&delimiter=/"), ["a/", "a/../", "a//", "a/b/"]);
        assert_eq!(keys(&memory, "start-after=a/..&max-keys=2"), ["a/../b", "a//b"]);
    }

    #[test]
    fn equal_bytes_have_equal_tags() {
        let memory = MemoryBuckets::new(10);
        let tag = memory.put(b"b", b"one", Bytes::from_static(b"same"));
        assert_eq!(memory.put(b"b", b"two", Bytes::from_static(b"same")), tag);
        assert_ne!(memory.put(b"b", b"two", Bytes::from_static(b"other")), tag);
    }
}
