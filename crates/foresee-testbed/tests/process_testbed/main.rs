// SPDX-License-Identifier: Apache-2.0
//! The built program over real sockets, as used by loaders.

mod client;

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use client::Process;
use foresee_testkit::{takes_at_least, wait_until};
use serde_json::json;
use tempfile::TempDir;

/// A folder with the bucket `data` and these objects in it.
fn folder(objects: &[(&str, &[u8])]) -> TempDir {
    let root = tempfile::tempdir().expect("a temporary folder");
    for (key, bytes) in objects {
        let path = root.path().join("data").join(key);
        fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
        fs::write(path, bytes).expect("a file");
    }
    root
}

fn serve(root: &TempDir, options: &[&str]) -> Process {
    let root = root.path().to_str().expect("a UTF-8 path");
    Process::start(&[&["serve", root], options].concat())
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from(at * 7 % 251).expect("below 251")).collect()
}

#[test]
fn objects_and_ranges_are_served_with_their_tag() {
    let bytes = pattern(300_000);
    let root = folder(&[("train/ü 1.bin", &bytes), ("empty", b"")]);
    let testbed = serve(&root, &[]);
    let path = "/data/train/%C3%BC%201.bin";
    let whole = testbed.get(path);
    assert_eq!((whole.status, &whole.body), (200, &bytes));
    let tag = whole.header("etag").expect("a tag").to_owned();
    let mut connection = testbed.connect();
    let mut get =
        |headers: &[(&str, &str)]| connection.request("GET", path, headers, b"").expect("an answer");
    let part = get(&[("Range", "bytes=100-200099")]);
    assert_eq!((part.status, &part.body[..]), (206, &bytes[100..200_100]));
    assert_eq!(part.header("content-range"), Some("bytes 100-200099/300000"));
    assert_eq!(get(&[("Range", "bytes=300000-")]).status, 416);
    assert_eq!(get(&[("If-Match", &tag)]).status, 200);
    assert_eq!(get(&[("If-Match", "\"other\"")]).status, 412);
    assert_eq!(get(&[("If-None-Match", &tag)]).status, 304);
    let head = connection.request("HEAD", path, &[], b"").expect("an answer");
    assert_eq!((head.status, head.header("content-length")), (200, Some("300000")));
    assert_eq!(testbed.get("/data/empty").body, b"");
    assert_eq!(testbed.get("/data/train/none").status, 404);
    assert_eq!(testbed.get("/data/%2e%2e/data/empty").status, 404);
    assert_eq!(testbed.post("/data/new", "bytes").status, 405);
}

#[test]
fn a_replaced_object_has_another_tag() {
    let root = folder(&[("k", b"one")]);
    let testbed = serve(&root, &[]);
    let before = testbed.get("/data/k").header("etag").map(str::to_owned);
    fs::write(root.path().join("data/new"), b"two").expect("a file");
    fs::rename(root.path().join("data/new"), root.path().join("data/k")).expect("a rename");
    let after = testbed.get("/data/k");
    assert_eq!(after.body, b"two");
    assert_ne!(after.header("etag").map(str::to_owned), before);
}

#[test]
fn a_bucket_is_found_and_listed() {
    let root = folder(&[("a/1", b"x"), ("b", b"yy")]);
    let testbed = serve(&root, &[]);
    let mut connection = testbed.connect();
    assert_eq!(connection.request("HEAD", "/data", &[], b"").expect("an answer").status, 200);
    assert_eq!(connection.request("HEAD", "/none", &[], b"").expect("an answer").status, 404);
    let listing = testbed.get("/data?list-type=2&delimiter=%2F");
    let xml = String::from_utf8(listing.body).expect("UTF-8");
    assert!(xml.contains("<Key>b</Key>") && xml.contains("<Prefix>a/</Prefix>"), "{xml}");
    assert_eq!(testbed.get("/data").status, 501);
    assert_eq!(testbed.counters()["lists"], 1);
}

#[test]
fn traffic_is_counted_by_method_status_and_kind() {
    let root = folder(&[("k", &pattern(1_000))]);
    let testbed = serve(&root, &[]);
    let mut connection = testbed.connect();
    for _ in 0..3 {
        connection.request("GET", "/data/k", &[], b"").expect("an answer");
    }
    connection.request("GET", "/data/k", &[("Range", "bytes=0-9")], b"").expect("an answer");
    connection.request("HEAD", "/data/k", &[], b"").expect("an answer");
    let missing = connection.request("GET", "/data/none", &[], b"").expect("an answer");
    let counters = testbed.counters();
    assert_eq!(counters["requests"], json!({"GET": {"200": 3, "206": 1, "404": 1}, "HEAD": {"200": 1}}));
    assert_eq!(counters["requests_total"], 6);
    assert_eq!(counters["body_bytes"], 3_010);
    assert_eq!(counters["other_bytes"], missing.body.len());
    // This client's own query of the counters is a connection, but not a request.
    assert_eq!(counters["connections"], 2);
    assert_eq!(counters["max_in_flight"], 1);
    testbed.post("/-/reset", "");
    assert_eq!(testbed.counters()["requests_total"], 0);
}

#[test]
fn all_connections_together_keep_the_limits() {
    let root = folder(&[("k", &pattern(50_000))]);
    let testbed = serve(&root, &["--bytes-per-s", "1000000", "--burst-ms", "1"]);
    // 200 kB at 1 MB/s.
    takes_at_least(Duration::from_millis(195), || {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert_eq!(testbed.get("/data/k").body.len(), 50_000));
            }
        });
    });
    assert!(testbed.counters()["throttled_ms"].as_f64().expect("a number") > 0.0);

    let limits = r#"{"requests_per_s": 100, "latency_ms": 1.5}"#;
    assert_eq!(testbed.post("/-/limits", limits).status, 200);
    takes_at_least(Duration::from_millis(195), || {
        let mut connection = testbed.connect();
        for _ in 0..20 {
            connection.request("HEAD", "/data/k", &[], b"").expect("an answer");
        }
    });
    assert_eq!(testbed.post("/-/limits", r#"{"latency_ms": -1}"#).status, 400);
    assert_eq!(testbed.post("/-/limits", r#"{"speed": 1}"#).status, 400);
}

#[test]
fn requests_above_the_answered_rate_are_refused_and_counted() {
    let root = folder(&[("k", b"x")]);
    let testbed = serve(&root, &["--refuse-above-per-s", "1", "--burst-ms", "0"]);
    let mut connection = testbed.connect();
    let answers: Vec<_> =
        (0..100).map(|_| connection.request("GET", "/data/k", &[], b"").expect("an answer")).collect();
    assert_eq!(answers[0].status, 200);
    let (refused, answered): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 503);
    assert!(String::from_utf8_lossy(&refused[0].body).contains("<Code>SlowDown</Code>"), "{:?}", refused[0]);
    assert!(answered.iter().all(|answer| (answer.status, &answer.body[..]) == (200, b"x")));
    let counters = testbed.counters();
    assert_eq!(counters["requests"]["GET"], json!({"200": answered.len(), "503": refused.len()}));

    assert_eq!(testbed.post("/-/limits", r#"{"refuse_above_per_s": 0}"#).status, 200);
    assert!((0..10).all(|_| testbed.get("/data/k").status == 200));
}

#[test]
fn every_fault_happens_as_often_as_requested_and_then_no_more() {
    let root = folder(&[("k", &pattern(100_000))]);
    let testbed =
        serve(&root, &["--faults", r#"[{"kind": "status", "status": 503, "retry_after_s": 2, "next": 1}]"#]);
    let refused = testbed.get("/data/k");
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("2")));
    assert!(String::from_utf8_lossy(&refused.body).contains("<Code>SlowDown</Code>"));
    assert_eq!(testbed.get("/data/k").status, 200);

    testbed.post("/-/faults", r#"[{"kind": "short_body", "next": 1}]"#);
    let short = testbed.connect().request("GET", "/data/k", &[], b"").expect_err("a short body");
    assert_eq!(short.kind(), ErrorKind::UnexpectedEof);

    testbed.post("/-/faults", r#"[{"kind": "reset", "next": 1}]"#);
    let reset = testbed.connect().request("GET", "/data/k", &[], b"").expect_err("a reset");
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);

    testbed.post("/-/faults", r#"[{"kind": "stall", "ms": 120, "next": 1}]"#);
    let whole = takes_at_least(Duration::from_millis(120), || testbed.get("/data/k"));
    assert_eq!(whole.body.len(), 100_000);

    assert_eq!(testbed.get("/data/k").status, 200);
    wait_until("the end of every request", || testbed.counters()["in_flight"] == 0);
    let counters = testbed.counters();
    assert_eq!(counters["faults"], 4);
    assert_eq!(counters["requests"]["GET"], json!({"503": 1, "200": 4, "none": 1}));
    assert_eq!(testbed.post("/-/faults", r#"[{"kind": "explode"}]"#).status, 400);
}

#[test]
fn a_stall_without_end_holds_nothing_once_the_client_has_left() {
    let root = folder(&[("k", &pattern(10))]);
    let testbed = serve(&root, &["--faults", r#"[{"kind": "stall", "path": "/data/", "next": 1}]"#]);
    let mut stream = TcpStream::connect(("127.0.0.1", testbed.port)).expect("a connection");
    stream.write_all(b"GET /data/k HTTP/1.1\r\nHost: t\r\n\r\n").expect("sent");
    let (mut got, half) = (Vec::new(), pattern(10));
    while !got.ends_with(&half[..5]) {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("half of the body");
        got.extend(byte);
    }
    stream.set_read_timeout(Some(Duration::from_millis(100))).expect("a time-out");
    assert_eq!(stream.read(&mut [0]).expect_err("a stall").kind(), ErrorKind::WouldBlock);
    drop(stream);
    wait_until("the end of the stalled request", || testbed.counters()["in_flight"] == 0);
}

#[test]
fn the_proxy_forwards_every_byte_and_header_and_counts_them() {
    let root = folder(&[("k", &pattern(200_000))]);
    let behind = serve(&root, &[]);
    let proxy = Process::start(&["proxy", &behind.url()]);
    let mut connection = proxy.connect();
    for _ in 0..3 {
        let got = connection.request("GET", "/data/k", &[("If-Match", "*")], b"").expect("an answer");
        assert_eq!((got.status, got.body), (200, pattern(200_000)));
    }
    let head = connection.request("HEAD", "/data/k", &[], b"").expect("an answer");
    assert_eq!(head.header("content-length"), Some("200000"));
    let part = connection.request("GET", "/data/k", &[("Range", "bytes=5-9")], b"").expect("an answer");
    assert_eq!((part.status, &part.body[..]), (206, &pattern(200_000)[5..10]));
    let counters = proxy.counters();
    assert_eq!(counters["body_bytes"], 600_005);
    assert_eq!(counters["body_bytes"], behind.counters()["body_bytes"]);
    // One connection of a client is one connection to the server; queries of the counters are further ones.
    assert_eq!(behind.counters()["requests_total"], 5);
    assert_eq!(behind.counters()["connections"], 4);
}

#[test]
fn uploads_reach_the_server_unchanged() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let proxy = Process::start(&["proxy", &url]);
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut seen = Vec::new();
        while !seen.ends_with(b"hello") {
            let mut buffer = [0; 4096];
            let read = stream.read(&mut buffer).expect("bytes");
            seen.extend_from_slice(&buffer[..read]);
        }
        let answer = b"HTTP/1.1 201 Created\r\nX-Seen: yes\r\nContent-Length: 2\r\n\r\nok";
        stream.write_all(answer).expect("sent");
        String::from_utf8(seen).expect("ASCII")
    });
    let path = "/b/a%20b?x=%2F&list-type=2";
    let signature = ("Authorization", "AWS4-HMAC-SHA256 Credential=x/y, Signature=00ff");
    let answer = proxy.connect().request("PUT", path, &[signature], b"hello").expect("an answer");
    assert_eq!((answer.status, &answer.body[..], answer.header("x-seen")), (201, &b"ok"[..], Some("yes")));
    assert_eq!(proxy.counters()["upload_bytes"], 5);
    let seen = server.join().expect("a request");
    assert!(seen.starts_with(&format!("PUT {path} HTTP/1.1\r\n")), "{seen}");
    let seen = seen.to_ascii_lowercase();
    assert!(seen.contains("host: testbed\r\n"), "{seen}");
    assert!(seen.contains("authorization: aws4-hmac-sha256 credential=x/y, signature=00ff\r\n"), "{seen}");
    assert!(seen.contains("content-length: 5\r\n"), "{seen}");
}

#[test]
fn a_missing_server_is_a_bad_gateway_with_its_name() {
    let unused = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let proxy = Process::start(&["proxy", &format!("http://{unused}")]);
    let answer = proxy.get("/data/k");
    assert_eq!(answer.status, 502);
    assert!(String::from_utf8_lossy(&answer.body).contains(&unused.to_string()));
}

#[test]
fn it_ends_when_its_standard_input_closes() {
    let root = folder(&[("k", b"x")]);
    let mut testbed = serve(&root, &[]);
    let mut connection = testbed.connect();
    connection.request("GET", "/data/k", &[], b"").expect("an answer");
    testbed.stdin.take();
    assert!(testbed.child.wait().expect("an end").success());
}

#[test]
fn it_ends_on_sigterm() {
    let root = folder(&[("k", b"x")]);
    let mut testbed = serve(&root, &[]);
    let pid = i32::try_from(testbed.child.id()).expect("a process id");
    let pid = rustix::process::Pid::from_raw(pid).expect("a process id");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a signal");
    assert!(testbed.child.wait().expect("an end").success());
}

#[test]
fn a_mount_is_as_slow_as_the_origin_and_disappears_with_it() {
    let bytes = pattern(2_500_000);
    let root = folder(&[("large", &bytes), ("deep/small", b"0123456789"), ("empty", b"")]);
    let at = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| at.path().join("data").join(name);
    let testbed = serve(&root, &["--mount", at.path().to_str().expect("a UTF-8 path")]);
    assert_eq!(fs::read(path("large")).expect("the whole file"), bytes);
    assert_eq!(fs::read(path("empty")).expect("nothing"), b"");
    let names: Vec<_> = fs::read_dir(at.path().join("data"))
        .expect("a listing")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(names, ["deep", "empty", "large"]);
    assert_eq!(fs::read(path("none")).expect_err("there is none").kind(), ErrorKind::NotFound);
    assert_eq!(fs::write(path("new"), b"x").expect_err("only reads").kind(), ErrorKind::ReadOnlyFilesystem);

    testbed.post("/-/reset", "");
    let limits = json!({"bytes_per_s": 10_000_000, "requests_per_s": 0, "latency_ms": 5.0});
    testbed.post("/-/limits", &limits.to_string());
    // Three pieces of a mebibyte at most; the second time is not faster, because nothing was cached.
    let whole = takes_at_least(Duration::from_millis(235), || fs::read(path("large")));
    assert_eq!(whole.expect("the whole file"), bytes);
    let counted = testbed.counters();
    assert_eq!((&counted["body_bytes"], &counted["requests"]["READ"]["200"]), (&json!(2_500_000), &json!(3)));
    let limits = json!({"bytes_per_s": 0, "requests_per_s": 100, "latency_ms": 0.0});
    testbed.post("/-/limits", &limits.to_string());
    takes_at_least(Duration::from_millis(80), || {
        for _ in 0..10 {
            assert_eq!(fs::read(path("deep/small")).expect("the file"), b"0123456789");
        }
    });

    let open = fs::File::open(path("large")).expect("an open file");
    drop(testbed);
    assert!(!path("large").exists() && at.path().exists());
    drop(open);
}

#[test]
fn buckets_in_memory_take_objects_and_answer_as_the_rules_say() {
    let testbed = Process::start(&["memory", "--page-keys", "1"]);
    let mut connection = testbed.connect();
    let mut ask = |method: &str, path: &str, body: &[u8]| {
        connection.request(method, path, &[("Range", "bytes=1-1")], body).expect("an answer")
    };
    assert_eq!(ask("GET", "/b?list-type=2", b"").status, 404);
    assert_eq!(ask("PUT", "/b", b"").status, 200);
    let tag = ask("PUT", "/b/a%2F..%2Fb", b"123").header("etag").map(str::to_owned);
    ask("PUT", "/b/a%2Fb", b"");
    let object = ask("GET", "/b/a%2F..%2Fb", b"");
    assert_eq!((object.status, object.header("etag"), &object.body[..]), (206, tag.as_deref(), &b"2"[..]));
    let page = String::from_utf8(ask("GET", "/b?list-type=2", b"").body).expect("text");
    assert!(page.contains("<Key>a/../b</Key>") && page.contains("<IsTruncated>true"), "{page}");

    testbed.post("/-/faults", r#"[{"kind": "empty_page"}]"#);
    let empty = String::from_utf8(ask("GET", "/b?list-type=2", b"").body).expect("text");
    let token = empty.split("Token>").nth(1).and_then(|rest| rest.split('<').next()).expect("a token");
    assert!(!empty.contains("<Key>"), "{empty}");
    let follow = |token: &str| format!("/b?list-type=2&continuation-token={}", token.replace('%', "%25"));
    let page = String::from_utf8(ask("GET", &follow(token), b"").body).expect("text");
    assert!(page.contains("<Key>a/../b</Key>"), "{page}");
    let token = page.split("Token>").nth(1).and_then(|rest| rest.split('<').next()).expect("a token");
    let empty = String::from_utf8(ask("GET", &follow(token), b"").body).expect("text");
    let token = empty.split("Token>").nth(1).and_then(|rest| rest.split('<').next()).expect("a token");
    let page = String::from_utf8(ask("GET", &follow(token), b"").body).expect("text");
    assert!(!empty.contains("<Key>") && page.contains("<Key>a/b</Key>"), "{empty} {page}");
    let rules = r#"[{"kind": "answer", "status": 301, "headers": {"x-a": "1"}, "body": "no", "method": "GET"},
                    {"kind": "ignore_conditions"}]"#;
    testbed.post("/-/faults", rules);
    let answer = ask("GET", "/b", b"");
    assert_eq!((answer.status, answer.header("x-a"), &answer.body[..]), (301, Some("1"), &b"no"[..]));
    assert_eq!(ask("HEAD", "/b/a%2F..%2Fb", b"").header("content-length"), Some("3"));
}
