// SPDX-License-Identifier: Apache-2.0
//! A fake of the Hugging Face hub: the buckets in memory as repositories `me/BUCKET` with the revision `main`.
//!
//! It has the two parts of the hub's interface that a reader needs: the tree of a repository, in pages, and files,
//! of which it redirects to another path for those of [`LARGE`] bytes or more, with another tag, as the hub redirects
//! to another server. No token is checked.

use hyper::StatusCode;
use hyper::header::{ETAG, HeaderMap, HeaderName, HeaderValue, LINK, LOCATION};
use hyper::http::request::Parts;
use percent_encoding::percent_decode_str;
use serde_json::json;

use crate::listing::{After, Found, Query};
use crate::memory::MemoryBuckets;
use crate::server::Answer;

/// Size from which on a file is large, in bytes.
const LARGE: u64 = 8;

/// The path of large files.
const LARGE_FILES: &str = "/large-files/";

/// The owner of all repositories.
const OWNER: &str = "me";

/// The answer to a request for the hub; `None` for other paths.
pub(crate) fn answer(memory: &MemoryBuckets, head: &Parts) -> Option<Answer> {
    let path = head.uri.path();
    if let Some(rest) = path.strip_prefix(LARGE_FILES) {
        let (bucket, key) = decoded(rest)?;
        let mut answer = memory.read(&bucket, &key, head);
        if answer.headers.contains_key(ETAG) {
            answer.headers.insert(ETAG, HeaderValue::from_static("\"of another server\""));
        }
        return Some(answer);
    }
    if let Some(rest) = path.strip_prefix("/api/datasets/") {
        let (repository, place) = rest.split_once("/tree/")?;
        return Some(tree(memory, repository, place, head));
    }
    let (repository, place) = path.strip_prefix("/datasets/")?.split_once("/resolve/")?;
    Some(file(memory, repository, place, head))
}

fn file(memory: &MemoryBuckets, repository: &str, place: &str, head: &Parts) -> Answer {
    let bucket = match bucket_of(repository, place) {
        Ok(bucket) => bucket,
        Err((status, code, message)) => return refusal(status, code, message),
    };
    let path = place.split_once('/').map_or("", |(_, path)| path);
    let key: Vec<u8> = percent_decode_str(path).collect();
    let Some(facts) = memory.facts(bucket.as_bytes(), &key) else {
        return refusal(StatusCode::NOT_FOUND, "EntryNotFound", "Entry not found");
    };
    if facts.size < LARGE {
        return memory.read(bucket.as_bytes(), &key, head);
    }
    let mut answer = Answer::of_bytes(StatusCode::FOUND, "text/plain", "elsewhere");
    let size = facts.size.to_string();
    for (name, value) in [
        (LOCATION, format!("{LARGE_FILES}{bucket}/{path}?Signature=hush").as_str()),
        (HeaderName::from_static("x-linked-etag"), facts.tag.as_str()),
        (HeaderName::from_static("x-linked-size"), size.as_str()),
    ] {
        set(&mut answer.headers, name, value);
    }
    answer
}

fn tree(memory: &MemoryBuckets, repository: &str, place: &str, head: &Parts) -> Answer {
    let bucket = match bucket_of(repository, place) {
        Ok(bucket) => bucket,
        Err((status, code, message)) => return refusal(status, code, message),
    };
    let folder = place.split_once('/').map_or("", |(_, path)| path);
    let mut prefix: Vec<u8> = percent_decode_str(folder).collect();
    if !prefix.is_empty() {
        prefix.push(b'/');
    }
    let text = head.uri.query().unwrap_or("");
    let value = |name: &str| {
        text.split('&')
            .filter_map(|pair| pair.split_once('='))
            .find(|(key, _)| *key == name)
            .map(|pair| pair.1)
    };
    let cursor: Option<Vec<u8>> = value("cursor").map(|cursor| percent_decode_str(cursor).collect());
    let after = match cursor.as_deref().map(After::from_token) {
        Some(Err(reason)) => return refusal(StatusCode::BAD_REQUEST, "InvalidCursor", &reason),
        Some(Ok(after)) => after,
        None => After::default(),
    };
    let is_recursive = value("recursive") == Some("true");
    let query = Query::of_tree(prefix.clone(), !is_recursive, after);
    let page = memory.page(bucket.as_bytes(), query).unwrap_or_default();
    if page.found.is_empty() && !prefix.is_empty() {
        return refusal(StatusCode::NOT_FOUND, "EntryNotFound", "no such folder in this revision");
    }
    let entries: Vec<_> = page
        .found
        .iter()
        .map(|found| match found {
            Found::Prefix(key) => {
                let path = String::from_utf8_lossy(key);
                json!({"type": "directory", "oid": "0", "size": 0, "path": path.trim_end_matches('/')})
            }
            Found::Object(key, facts) => {
                let (path, oid) = (String::from_utf8_lossy(key), facts.tag.trim_matches('"'));
                if facts.size < LARGE {
                    json!({"type": "file", "oid": oid, "size": facts.size, "path": path})
                } else {
                    let large = json!({"oid": oid, "size": facts.size, "pointerSize": 1});
                    json!({"type": "file", "oid": "0", "size": facts.size, "path": path, "lfs": large})
                }
            }
        })
        .collect();
    let body = serde_json::to_vec(&entries).expect("texts and numbers");
    let mut answer = Answer::of_bytes(StatusCode::OK, "application/json", body);
    if let Some(last) = page.found.last().filter(|_| page.is_truncated) {
        let cursor = percent_encoding::utf8_percent_encode(&last.token(), percent_encoding::NON_ALPHANUMERIC)
            .to_string();
        let next =
            format!("<http://hub{}?recursive={is_recursive}&cursor={cursor}>; rel=\"next\"", head.uri.path());
        set(&mut answer.headers, LINK, &next);
    }
    answer
}

/// The bucket of a repository; status, code and message if it or the revision in `place` does not exist.
fn bucket_of<'a>(
    repository: &'a str,
    place: &str,
) -> Result<&'a str, (StatusCode, &'static str, &'static str)> {
    let Some((OWNER, bucket)) = repository.split_once('/') else {
        return Err((StatusCode::UNAUTHORIZED, "RepoNotFound", "Repository not found"));
    };
    match place.split('/').next() {
        Some("main") => Ok(bucket),
        _ => Err((StatusCode::NOT_FOUND, "RevisionNotFound", "Invalid rev id")),
    }
}

/// Bucket and key of a path.
fn decoded(path: &str) -> Option<(Vec<u8>, Vec<u8>)> {
    let (bucket, key) = path.split_once('/')?;
    Some((bucket.as_bytes().to_vec(), percent_decode_str(key).collect()))
}

/// The hub's form of an error: code and message are headers.
fn refusal(status: StatusCode, code: &str, message: &str) -> Answer {
    let mut answer = Answer::of_bytes(status, "text/plain", message.to_owned());
    set(&mut answer.headers, HeaderName::from_static("x-error-code"), code);
    set(&mut answer.headers, HeaderName::from_static("x-error-message"), message);
    answer
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str) -> Answer {
        let memory = MemoryBuckets::new(2);
        for key in ["a/1", "a/2", "b/large", "small"] {
            let body = if key.contains("large") { "0123456789" } else { "x" };
            memory.put(b"set", key.as_bytes(), body.into());
        }
        let (head, ()) = hyper::Request::get(path).body(()).expect("a request").into_parts();
        answer(&memory, &head).expect("a path of the hub")
    }

    #[test]
    fn a_large_file_is_redirected_and_a_small_one_is_not() {
        let answer = get("/datasets/me/set/resolve/main/b/large");
        assert_eq!(answer.status, StatusCode::FOUND);
        assert_eq!(answer.headers["x-linked-size"], "10");
        assert_eq!(answer.headers[LOCATION], "/large-files/set/b/large?Signature=hush");
        assert_eq!(get("/datasets/me/set/resolve/main/small").status, StatusCode::OK);
        let missing = get("/datasets/me/set/resolve/v9/small");
        assert_eq!(
            (missing.status, &missing.headers["x-error-code"]),
            (StatusCode::NOT_FOUND, &HeaderValue::from_static("RevisionNotFound"))
        );
    }

    #[test]
    fn a_tree_has_pages_with_a_link_to_the_next() {
        let first = get("/api/datasets/me/set/tree/main?recursive=false");
        let link = first.headers[LINK].to_str().expect("text").to_owned();
        assert!(link.ends_with("cursor=pb%252F>; rel=\"next\""), "{link}");
        let next = get("/api/datasets/me/set/tree/main?recursive=false&cursor=pb%252F");
        assert!(!next.headers.contains_key(LINK));
    }
}
