// SPDX-License-Identifier: Apache-2.0
//! A folder as an S3 server: each of its folders is a bucket, each file below it an object.
//!
//! It serves the part of S3 that a reader needs (GET with ranges and conditions, HEAD, `ListObjectsV2`) and plain
//! HTTP on the same paths. It never writes, and never leaves its folder.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use hyper::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue,
    IF_MATCH, IF_NONE_MATCH, LAST_MODIFIED, RANGE,
};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use percent_encoding::percent_decode_str;

use crate::body::{FileRange, PIECE_BYTES, Source, read_at};
use crate::listing::{self, Listings};
use crate::server::Answer;
use crate::stamp::Stamp;

/// The served folder.
#[derive(Debug)]
pub(crate) struct Folder {
    root: PathBuf,
    /// Maximum number of keys on a page of a listing.
    page_keys: usize,
    listings: Listings,
}

/// Tag, size and time of an object.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) tag: String,
    pub(crate) size: u64,
    /// Seconds since 1970.
    pub(crate) modified: i64,
}

impl Folder {
    pub(crate) fn new(root: PathBuf, page_keys: usize) -> Self {
        Self { root, page_keys, listings: Listings::default() }
    }

    /// Answer one request. Files are opened and listed on the threads for blocking work.
    pub(crate) async fn answer(self: &Arc<Self>, head: Parts) -> Answer {
        let folder = Arc::clone(self);
        let answered = tokio::task::spawn_blocking(move || folder.answer_blocking(&head)).await;
        answered.unwrap_or_else(|stopped| internal(&io::Error::other(stopped)))
    }

    fn answer_blocking(&self, head: &Parts) -> Answer {
        let is_head = head.method == Method::HEAD;
        if !is_head && head.method != Method::GET {
            let reason = "this testbed only reads; put files into its folder, or use it as a proxy";
            return refusal(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", reason);
        }
        let mut answer = self.read(head);
        if is_head {
            // The headers contain the length; the bytes are not sent.
            answer.source = Source::Memory(Bytes::new());
            answer.length = None;
        }
        answer
    }

    fn read(&self, head: &Parts) -> Answer {
        let path: Vec<u8> = percent_decode_str(head.uri.path().trim_start_matches('/')).collect();
        let (bucket, key) = match path.iter().position(|byte| *byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&path[..], &[][..]),
        };
        let Some(root) = below(&self.root, bucket).filter(|root| root.is_dir()) else {
            return no_such_bucket();
        };
        if !key.is_empty() {
            return match below(&root, key) {
                Some(path) => object(&path, head).unwrap_or_else(|error| missing_or_internal(&error)),
                None => no_such_key(),
            };
        }
        listing::answer(bucket, head, self.page_keys, |query| self.listings.list(&root, query))
    }
}

/// S3's error document.
pub(crate) fn refusal(status: StatusCode, code: &str, message: &str) -> Answer {
    let message = listing::escape(message);
    let xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    );
    Answer::of_bytes(status, "application/xml", xml)
}

impl From<&Metadata> for Facts {
    /// The tag is opaque, and changes whenever the file is written or replaced.
    fn from(meta: &Metadata) -> Self {
        let tag = format!("\"{:x}-{:x}-{:x}.{:x}\"", meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec());
        Self { tag, size: meta.len(), modified: meta.mtime() }
    }
}

/// `folder` and `key` joined, unless the result could be outside of the folder, or a key that no listing shows.
fn below(folder: &Path, key: &[u8]) -> Option<PathBuf> {
    let mut path = folder.to_path_buf();
    for part in key.split(|byte| *byte == b'/') {
        if part.is_empty() || part == b"." || part == b".." || part.contains(&0) {
            return None;
        }
        path.push(OsStr::from_bytes(part));
    }
    Some(path)
}

fn object(path: &Path, head: &Parts) -> io::Result<Answer> {
    let file = File::open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Ok(no_such_key());
    }
    respond(head, &Facts::from(&meta), |range| {
        Ok(match usize::try_from(range.end - range.start) {
            Ok(small) if small <= PIECE_BYTES => Source::Memory(read_at(&file, range.start, small)?),
            _ => Source::File(FileRange::new(file, range.start, range.end)),
        })
    })
}

/// Answer a `GET` or `HEAD` for an object, whose bytes `read` returns.
pub(crate) fn respond(
    head: &Parts,
    facts: &Facts,
    read: impl FnOnce(Range<u64>) -> io::Result<Source>,
) -> io::Result<Answer> {
    let Facts { tag, size, modified } = facts;
    let size = *size;
    let mut headers = HeaderMap::new();
    let mut set = |name: HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    set(ETAG, tag);
    set(LAST_MODIFIED, &Stamp::from_unix(*modified).http());
    set(ACCEPT_RANGES, "bytes");
    set(CONTENT_TYPE, "application/octet-stream");

    if header(head, &IF_MATCH).is_some_and(|wanted| !tags_match(wanted, tag)) {
        let reason = "the object has another tag";
        return Ok(refusal(StatusCode::PRECONDITION_FAILED, "PreconditionFailed", reason));
    }
    let mut answer = |status, source, length| {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        Answer { status, headers: std::mem::take(&mut headers), source, length: Some(length) }
    };
    if header(head, &IF_NONE_MATCH).is_some_and(|known| tags_match(known, tag)) {
        let mut answer = answer(StatusCode::NOT_MODIFIED, Source::Memory(Bytes::new()), 0);
        answer.headers.remove(CONTENT_LENGTH);
        return Ok(answer);
    }
    let (status, range) = match header(head, &RANGE).map_or(Wanted::All, |value| wanted(value, size)) {
        Wanted::All => (StatusCode::OK, 0..size),
        Wanted::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
        Wanted::Nothing => {
            let reason = "the range begins behind the object's end";
            let mut answer = refusal(StatusCode::RANGE_NOT_SATISFIABLE, "InvalidRange", reason);
            answer.headers.insert(CONTENT_RANGE, header_value(&format!("bytes */{size}")));
            return Ok(answer);
        }
    };
    let length = range.end - range.start;
    let source =
        if head.method == Method::HEAD { Source::Memory(Bytes::new()) } else { read(range.clone())? };
    let mut answer = answer(status, source, length);
    if status == StatusCode::PARTIAL_CONTENT {
        let range = format!("bytes {}-{}/{size}", range.start, range.end - 1);
        answer.headers.insert(CONTENT_RANGE, header_value(&range));
    }
    Ok(answer)
}

/// The range of a `Range` header.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    /// The whole object; also for headers that a server may ignore (several ranges, other units, invalid ones).
    All,
    /// These bytes; never empty.
    Part(Range<u64>),
    /// A range outside of the object.
    Nothing,
}

fn wanted(value: &str, size: u64) -> Wanted {
    let Some((first, last)) = value.strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return Wanted::All;
    };
    let range = match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(first), Ok(last)) if first <= last => first..last.saturating_add(1).min(size),
        (Ok(first), Err(_)) if last.is_empty() => first..size,
        (Err(_), Ok(last)) if first.is_empty() => size.saturating_sub(last)..size,
        _ => return Wanted::All,
    };
    if range.is_empty() { Wanted::Nothing } else { Wanted::Part(range) }
}

fn tags_match(wanted: &str, tag: &str) -> bool {
    // Some clients send the tag without quotes.
    wanted.split(',').map(str::trim).any(|one| one == "*" || one == tag || one == tag.trim_matches('"'))
}

pub(crate) fn header<'a>(head: &'a Parts, name: &HeaderName) -> Option<&'a str> {
    head.headers.get(name).and_then(|value| value.to_str().ok())
}

pub(crate) fn header_value(value: &str) -> HeaderValue {
    HeaderValue::from_str(value).expect("digits and ASCII signs")
}

pub(crate) fn no_such_bucket() -> Answer {
    refusal(StatusCode::NOT_FOUND, "NoSuchBucket", "no bucket of this name is served")
}

pub(crate) fn no_such_key() -> Answer {
    refusal(StatusCode::NOT_FOUND, "NoSuchKey", "no object of this name is served")
}

fn missing_or_internal(error: &io::Error) -> Answer {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename => {
            no_such_key()
        }
        io::ErrorKind::PermissionDenied => {
            refusal(StatusCode::FORBIDDEN, "AccessDenied", "the testbed may not read this file")
        }
        _ => internal(error),
    }
}

pub(crate) fn internal(error: &io::Error) -> Answer {
    refusal(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", &error.to_string())
}

/// Size, tag and time of a file, for a listing; `None` if it has vanished or is not a file.
pub(crate) fn describe(path: &Path) -> Option<Facts> {
    fs::metadata(path).ok().filter(Metadata::is_file).map(|meta| Facts::from(&meta))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_parsed_as_in_rfc_9110() {
        for (value, expected) in [
            ("bytes=0-3", Wanted::Part(0..4)),
            ("bytes=8-99", Wanted::Part(8..10)),
            ("bytes=4-", Wanted::Part(4..10)),
            ("bytes=-3", Wanted::Part(7..10)),
            ("bytes=-99", Wanted::Part(0..10)),
            ("bytes=10-", Wanted::Nothing),
            ("bytes=-0", Wanted::Nothing),
            ("bytes=5-4", Wanted::All),
            ("bytes=0-18446744073709551615", Wanted::Part(0..10)),
            ("bytes=0-1,4-5", Wanted::All),
            ("rows=0-1", Wanted::All),
            ("bytes=-", Wanted::All),
        ] {
            assert_eq!(wanted(value, 10), expected, "{value}");
        }
        assert_eq!(wanted("bytes=0-0", 0), Wanted::Nothing);
    }

    #[test]
    fn no_key_leads_out_of_the_folder() {
        for key in ["../etc/passwd", "a/../../b", "a//b", "/a", "a/.", "a\0b", ""] {
            assert_eq!(below(Path::new("/data"), key.as_bytes()), None, "{key:?}");
        }
        assert_eq!(below(Path::new("/data"), b"a/..b"), Some(PathBuf::from("/data/a/..b")));
    }
}
