// SPDX-License-Identifier: Apache-2.0
//! A fake S3 for tests: one bucket in memory behind a real TCP port, with faults on request.
//!
//! Speaks as much of S3 as the store client uses (GET with Range and If-Match, HEAD, `ListObjectsV2`) and
//! checks no signature. It proves what we do with an answer; what real servers answer is tried elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A misbehaviour of the server; it stays until another is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mood {
    #[default]
    Well,
    /// This status and error code, with `Retry-After: 7`.
    Status(u16, &'static str),
    /// A web page, whatever was asked for.
    WebPage,
    /// As a bucket of this region answers to requests for another.
    Region(&'static str),
    /// Half the body, then the connection is closed.
    ShortBody,
    /// Headers, half the body, then silence.
    Stall,
    /// The range and the condition are ignored and everything is sent, as a poor web server would.
    IgnoresHeaders,
    /// Only GET is served, as by a presigned URL; perhaps without ranges.
    RefusesHead { status: u16, ranges: bool },
}

#[derive(Debug, Default)]
struct State {
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
    mood: Mutex<Mood>,
    /// Listing: every second page is empty and says that there is more.
    empty_pages: AtomicBool,
    requests: Mutex<Vec<String>>,
    /// Listings that began somewhere in the middle.
    starts: AtomicUsize,
}

/// The server; its threads end with their connections.
#[derive(Clone, Debug)]
pub(crate) struct FakeS3 {
    pub(crate) address: String,
    state: Arc<State>,
}

/// Keys on one page of a listing.
pub(crate) const PAGE: usize = 10;

impl FakeS3 {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                std::thread::spawn(move || {
                    let _ = serve(&state, connection);
                });
            }
        });
        Self { address, state }
    }

    pub(crate) fn put(&self, key: &str, body: &[u8]) {
        lock(&self.state.objects).insert(key.to_owned(), body.to_vec());
    }

    pub(crate) fn set(&self, mood: Mood) {
        *lock(&self.state.mood) = mood;
    }

    pub(crate) fn send_empty_pages(&self) {
        self.state.empty_pages.store(true, Ordering::SeqCst);
    }

    /// Request lines and conditions so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        lock(&self.state.requests).clone()
    }

    /// Into how many spans a listing was cut, apart from its first.
    pub(crate) fn cuts(&self) -> usize {
        self.state.starts.load(Ordering::SeqCst)
    }
}

pub(crate) fn etag(body: &[u8]) -> String {
    let sum = body
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    format!("\"{sum:016x}\"")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Request {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
}

fn serve(state: &State, connection: TcpStream) -> std::io::Result<()> {
    connection.set_nodelay(true)?;
    let mut write = connection.try_clone()?;
    let mut read = BufReader::new(connection);
    while let Some(request) = next_request(&mut read)? {
        let noted = format!(
            "{} {} range={} if-match={}",
            request.method,
            request.path,
            request.headers.get("range").map_or("-", String::as_str),
            request.headers.get("if-match").map_or("-", String::as_str)
        );
        lock(&state.requests).push(noted);
        if !answer(state, &request, &mut write)? {
            break;
        }
    }
    Ok(())
}

fn next_request(read: &mut impl BufRead) -> std::io::Result<Option<Request>> {
    let mut line = String::new();
    if read.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let query = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_owned(), unescape(&value.replace('+', " "))))
        .collect();
    let (method, path) = (method, unescape(path));
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        read.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let len = headers.get("content-length").and_then(|len| len.parse().ok()).unwrap_or(0);
    read.take(len).read_to_end(&mut Vec::new())?;
    Ok(Some(Request { method, path, query, headers }))
}

fn unescape(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let code = tail.get(..2).and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).expect("UTF-8")
}

/// Answers; false when the connection is spoilt.
fn answer(state: &State, request: &Request, write: &mut TcpStream) -> std::io::Result<bool> {
    let mood = lock(&state.mood).clone();
    if let Mood::Status(status, code) = mood {
        let text = format!("<Error><Code>{code}</Code><Message>no</Message></Error>");
        return send(write, request, status, "Retry-After: 7\r\n", text.as_bytes());
    }
    if mood == Mood::WebPage {
        let page = b"<html><title>Log in</title><body>first</body></html>";
        return send(write, request, 200, "Content-Type: text/html\r\n", page);
    }
    if let Mood::Region(region) = mood {
        let text = b"<Error><Code>PermanentRedirect</Code><Message>elsewhere</Message></Error>";
        return send(write, request, 301, &format!("x-amz-bucket-region: {region}\r\n"), text);
    }
    if let Mood::RefusesHead { status, .. } = mood
        && request.method == "HEAD"
    {
        return send(write, request, status, "", b"");
    }
    let path = request.path.trim_start_matches('/');
    let Some(("bucket", key)) = path.split_once('/').or((path == "bucket").then_some((path, ""))) else {
        return send(write, request, 404, "", b"<Error><Code>NoSuchBucket</Code></Error>");
    };
    if request.query.contains_key("list-type") {
        if request.query.contains_key("start-after") {
            state.starts.fetch_add(1, Ordering::SeqCst);
        }
        return send(write, request, 200, "", page(state, request).as_bytes());
    }
    let Some(body) = lock(&state.objects).get(key).cloned() else {
        return send(write, request, 404, "", b"<Error><Code>NoSuchKey</Code></Error>");
    };
    let mut headers = format!("ETag: {}\r\n", etag(&body));
    let heeds = !matches!(mood, Mood::IgnoresHeaders | Mood::RefusesHead { ranges: false, .. });
    if heeds && request.headers.get("if-match").is_some_and(|tag| *tag != etag(&body)) {
        return send(write, request, 412, "", b"<Error><Code>PreconditionFailed</Code></Error>");
    }
    let range = request.headers.get("range").filter(|_| heeds).map(|range| {
        let range = range.trim_start_matches("bytes=");
        let (first, last) = range.split_once('-').expect("a range");
        let first: usize = first.parse().expect("a number");
        (first, last.parse::<usize>().expect("a number").min(body.len().saturating_sub(1)))
    });
    let (status, part) = match range {
        Some((first, _)) if first >= body.len() => return send(write, request, 416, "", b""),
        Some((first, last)) => {
            let _ = write!(headers, "Content-Range: bytes {first}-{last}/{}\r\n", body.len());
            (206, &body[first..=last])
        }
        None => (200, &body[..]),
    };
    if mood == Mood::ShortBody || mood == Mood::Stall {
        let head = format!("HTTP/1.1 {status} x\r\n{headers}Content-Length: {}\r\n\r\n", part.len());
        write.write_all(head.as_bytes())?;
        write.write_all(&part[..part.len() / 2])?;
        if mood == Mood::Stall {
            // It ends when the client gives up.
            let _ = write.read(&mut [0]);
        }
        return Ok(false);
    }
    send(write, request, status, &headers, part)
}

fn send(
    write: &mut TcpStream,
    request: &Request,
    status: u16,
    headers: &str,
    body: &[u8],
) -> std::io::Result<bool> {
    let mut answer =
        format!("HTTP/1.1 {status} x\r\n{headers}Content-Length: {}\r\n\r\n", body.len()).into_bytes();
    if request.method != "HEAD" {
        answer.extend_from_slice(body);
    }
    write.write_all(&answer)?;
    Ok(true)
}

/// A page of `ListObjectsV2`. The token is the last key shown; a leading `!` asks for the page withheld.
fn page(state: &State, request: &Request) -> String {
    let asked = |name: &str| request.query.get(name).map_or("", String::as_str);
    let (prefix, delimiter) = (asked("prefix"), asked("delimiter"));
    let token = asked("continuation-token");
    let withhold = state.empty_pages.load(Ordering::SeqCst) && !token.starts_with('!');
    let after = if token.is_empty() { asked("start-after") } else { token.trim_start_matches('!') };
    let mut text = "<ListBucketResult>".to_owned();
    if withhold {
        return text + &format!("<NextContinuationToken>!{after}</NextContinuationToken></ListBucketResult>");
    }
    let objects = lock(&state.objects);
    let mut folders = BTreeSet::new();
    let mut shown = 0;
    for (key, body) in objects.iter().filter(|(key, _)| key.starts_with(prefix) && key.as_str() > after) {
        if shown == PAGE {
            break;
        }
        let folder = key[prefix.len()..].split_once('/').map(|(folder, _)| format!("{prefix}{folder}/"));
        if let Some(folder) = folder.filter(|_| !delimiter.is_empty()) {
            folders.insert(folder);
        } else {
            let (size, tag) = (body.len(), etag(body).replace('"', "&quot;"));
            let letter = |c: char| if c.is_control() { format!("&#{};", u32::from(c)) } else { c.into() };
            let key: String = key.chars().map(letter).collect();
            let _ = write!(
                text,
                "<Contents><Key>{key}</Key><Size>{size}</Size><ETag>{tag}</ETag>\
                     <LastModified>2026-01-02T03:04:05.000Z</LastModified></Contents>"
            );
            shown += 1;
            if shown == PAGE {
                let _ = write!(text, "<NextContinuationToken>{key}</NextContinuationToken>");
            }
        }
    }
    for folder in folders {
        let _ = write!(text, "<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>");
    }
    text + "</ListBucketResult>"
}
