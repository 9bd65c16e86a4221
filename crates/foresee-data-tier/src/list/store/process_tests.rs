// SPDX-License-Identifier: Apache-2.0
//! Listings of a bucket and of a web server.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use foresee_testbed::{Fault, FaultRule, MemoryServer};

use crate::test_support::{BUCKETS, PAGE_KEYS, REPOSITORY, refuse_head, serve, status, store_options};
use crate::{Listing, ObjectReader, OriginError, OriginObject, Selection, Uri, list};

fn select(server: &MemoryServer, uri: &str, selection: Selection<'_>) -> Result<Listing, OriginError> {
    list(&Uri::parse(uri)?, &store_options(server, uri), selection, &|_| {}, &AtomicBool::new(false))
}

fn list_objects(
    server: &MemoryServer,
    uri: &str,
    keys: Option<&[Vec<u8>]>,
) -> Result<Vec<OriginObject>, OriginError> {
    let listing = select(server, uri, Selection { keys, ..Selection::default() })?;
    match listing.unreadable.into_iter().next() {
        // A named key that does not exist is reported with its error.
        Some(unreadable) if keys.is_some() => Err(unreadable.error),
        Some(unreadable) => panic!("{unreadable:?}"),
        None => Ok(listing.objects),
    }
}

/// Store an object below `set/`; return its entry of a listing.
fn put(server: &MemoryServer, key: &str, body: &[u8]) -> OriginObject {
    let tag = server.put("bucket", &format!("set/{key}"), body).into_bytes();
    OriginObject { key: key.as_bytes().to_vec(), size: body.len() as u64, tag }
}

fn check(server: &MemoryServer, names: &[String]) {
    let mut expected: Vec<_> = names.iter().map(|name| put(server, name, name.as_bytes())).collect();
    server.put("bucket", "other/x", b"outside");
    server.put("bucket", "settle", b"outside");
    expected.sort_by(|a, b| a.key.cmp(&b.key));
    for bucket in BUCKETS.into_iter().chain([REPOSITORY]) {
        let listed = list_objects(server, &format!("{bucket}/set/"), None).expect("a listing");
        assert_eq!(listed, expected, "{bucket}");
    }
}

#[test]
fn a_flat_prefix_is_listed_in_parallel_spans() {
    let server = serve();
    let names: Vec<_> = (0..997).map(|id| format!("{:06}.jpg", id * 37)).collect();
    check(&server, &names);
    let most = 3 * (BUCKETS.len() + 1) * names.len() / PAGE_KEYS;
    assert!(server.requests().len() <= most, "{}", server.requests().len());
    let cuts = server.requests().iter().filter(|line| line.contains("start-after=")).count();
    assert!(cuts >= 8, "it is cut into spans: {cuts}");
}

#[test]
fn folders_of_any_size_are_listed_completely() {
    let server = serve();
    let mut names: Vec<_> = (0..300).map(|id| format!("{}/{id}", ["a", "b b", "é", "z"][id % 4])).collect();
    names.extend((0..80).map(|id| format!("deep/er/{id}")));
    names.extend(["a.txt", "a0", "~tilde", "zz"].map(str::to_owned));
    check(&server, &names);
}

#[test]
fn an_empty_page_with_a_token_is_not_the_end() {
    let server = serve();
    server.set_faults(vec![Fault::EmptyPage.into()]);
    check(&server, &(0..95).map(|id| format!("{id:03}")).collect::<Vec<_>>());
}

#[test]
fn folder_placeholders_of_the_first_level_and_empty_objects_are_listed() {
    let server = serve();
    for key in ["set/", "set/a/", "set/a/b/", "set/lonely/"] {
        server.put("bucket", key, b"");
    }
    server.put("bucket", "set/a/1", b"x");
    server.put("bucket", "set/empty", b"");
    let keys: Vec<_> = list_objects(&server, "s3://bucket/set", None).expect("a listing");
    let keys: Vec<_> = keys.into_iter().map(|listed| listed.key).collect();
    assert_eq!(keys, [b"a/".as_slice(), b"a/1", b"empty", b"lonely/"]);
    assert!(!server.requests().iter().any(|line| line.starts_with("HEAD")), "{:?}", server.requests());
}

#[test]
fn unusual_keys_are_listed_and_read_and_keys_that_no_request_can_name_are_reported() {
    let server = serve();
    for key in
        ["cat/1.png", "cat//x.png", "a///b", " spaced ", "cat/./x.png", "../x.png", "cat/a\nb.png", "/x"]
    {
        server.put("bucket", &format!("set/{key}"), key.as_bytes());
    }
    let mut last = Listing::default();
    for bucket in BUCKETS {
        let uri = Uri::parse(&format!("{bucket}/set")).expect("a URI");
        let listing = select(&server, &uri.to_string(), Selection::default()).expect("a listing");
        let keys: Vec<_> = listing.objects.iter().map(|one| String::from_utf8_lossy(&one.key)).collect();
        assert_eq!(keys, [" spaced ", "/x", "a///b", "cat//x.png", "cat/1.png"], "{bucket}");
        for one in &listing.objects {
            let reader = ObjectReader::open(&uri, &store_options(&server, bucket)).expect("settings");
            let found = reader.read(&one.key, None);
            assert_eq!(found.expect("its bytes"), one.key, "{bucket}");
        }
        last = listing;
    }
    let listing = last;
    let unreadable: Vec<_> = listing.unreadable.iter().map(|one| String::from_utf8_lossy(&one.key)).collect();
    assert_eq!(unreadable, ["../x.png", "cat/./x.png", "cat/a\nb.png"]);
    for one in &listing.unreadable {
        let text = one.error.to_string();
        assert!(text.contains(&format!("{:?}", String::from_utf8_lossy(&one.key))), "{text}");
        assert!(text.contains("rename the object, or leave it out with exclude="), "{text}");
    }
    let is_unusual =
        |key: &[u8]| key.starts_with(b"..") || key.ends_with(b"b.png") || key.ends_with(b"./x.png");
    let listing =
        select(&server, "s3://bucket/set", Selection { is_excluded: &is_unusual, ..Selection::default() });
    assert!(listing.expect("a listing").unreadable.is_empty());
}

#[test]
fn an_empty_prefix_suggests_its_neighbours_and_a_refusal_is_reported() {
    for bucket in BUCKETS {
        let server = serve();
        let empty = |below: &str| {
            let uri = format!("{bucket}{below}");
            list_objects(&server, &uri, None).expect_err("nothing is there").to_string()
        };
        assert_eq!(empty(""), format!("nothing is stored at {bucket}; the bucket has no objects"));
        assert_eq!(empty("/a/b"), format!("nothing is stored at {bucket}/a/b; the bucket has no objects"));
        for key in ["data/train/1", "data/val/2"] {
            server.put("bucket", key, b"");
        }
        let neighbours = format!("{bucket}/data has the prefixes \"train\", \"val\"");
        assert_eq!(empty("/data/trains"), format!("nothing is stored at {bucket}/data/trains; {neighbours}"));
        assert!(empty("/x/y").ends_with(&format!("{bucket} has the prefixes \"data\"")));
        server.set_faults(status(403, "AccessDenied"));
        let error = list_objects(&server, &format!("{bucket}/x"), None).expect_err("denied").to_string();
        let expected = format!("{bucket}/x: access denied (HTTP 403 AccessDenied: ");
        assert!(error.contains(&expected), "{error}");
    }
}

fn answer(status: u16, body: &str, headers: &[(&str, &str)]) -> Vec<FaultRule> {
    let header = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
    let headers: BTreeMap<_, _> = headers.iter().map(header).collect();
    vec![Fault::Answer { status, headers, body: body.to_owned() }.into()]
}

#[test]
fn an_answer_that_is_no_listing_is_described_with_its_remedy() {
    let server = serve();
    server.put("bucket", "set/1", b"x");
    server.set_faults(answer(200, "<html><title>Log in</title><body>first</body></html>", &[]));
    let error = list_objects(&server, "s3://bucket/set", None).expect_err("a web page").to_string();
    assert!(error.contains("a web page came instead of the list with the title \"Log in\""), "{error}");
    assert!(error.contains("AWS_ENDPOINT_URL"), "{error}");
    let text = "<Error><Code>PermanentRedirect</Code><Message>elsewhere</Message></Error>";
    server.set_faults(answer(301, text, &[("x-amz-bucket-region", "eu-west-1")]));
    let error = list_objects(&server, "s3://bucket/set", None).expect_err("elsewhere").to_string();
    assert!(error.contains("region \"eu-west-1\"") && error.contains("AWS_REGION=eu-west-1"), "{error}");
}

#[test]
fn a_web_server_is_sent_a_request_for_each_key() {
    let server = serve();
    put(&server, "b c", b"22");
    let first = put(&server, "a", b"1");
    let uri = format!("http://{}/bucket/set", server.address());
    let keys = [b"b c".to_vec(), b"a".to_vec()];
    let found = list_objects(&server, &uri, Some(&keys)).expect("answers");
    assert_eq!(found[0], first);
    assert_eq!((found[1].key.as_slice(), found[1].size), (b"b c".as_slice(), 2));
    let missing = list_objects(&server, &uri, Some(&[b"nope".to_vec()])).expect_err("missing").to_string();
    assert!(missing.contains("/bucket/set/nope does not exist"), "{missing}");
    assert!(matches!(list_objects(&server, &uri, None), Err(OriginError::NoListing { .. })));
}

#[test]
fn a_web_server_that_refuses_head_is_sent_a_get_for_a_byte_of_each_key() {
    for refused in [403, 405, 501] {
        for ranges in [true, false] {
            let server = serve();
            let expected = [("a", b"1".as_slice()), ("b", b"four"), ("empty", b"")]
                .map(|(key, body)| put(&server, key, body));
            server.set_faults(refuse_head(refused, ranges));
            let uri = format!("http://{}/bucket/set?X-Amz-Signature=hush", server.address());
            let keys = ["a", "b", "empty"].map(|key| key.as_bytes().to_vec());
            let found = list_objects(&server, &uri, Some(&keys)).expect("answers");
            assert_eq!(found, expected, "HTTP {refused} to HEAD, ranges: {ranges}");
            let missing =
                list_objects(&server, &uri, Some(&[b"nope".to_vec()])).expect_err("missing").to_string();
            assert!(missing.contains("/bucket/set/nope does not exist"), "{missing}");
            assert!(!missing.contains("hush"), "{missing}");
            let requests = server.requests();
            let count = |words: &str| requests.iter().filter(|line| line.contains(words)).count();
            assert_eq!(count("GET /bucket/set/b range=bytes=0-0"), 1, "{requests:?}");
            assert_eq!(count("GET /bucket/set/b range=-"), usize::from(!ranges), "{requests:?}");
        }
    }
}

#[test]
fn a_web_server_that_has_refused_head_is_not_sent_head_for_every_key() {
    let server = serve();
    let keys: Vec<_> = (0..500).map(|id| format!("{id:03}").into_bytes()).collect();
    for id in 0..500 {
        server.put("bucket", &format!("set/{id:03}"), b"x");
    }
    server.set_faults(refuse_head(403, true));
    let uri = format!("http://{}/bucket/set", server.address());
    assert_eq!(list_objects(&server, &uri, Some(&keys)).expect("answers").len(), 500);
    let heads = server.requests().iter().filter(|line| line.starts_with("HEAD")).count();
    assert!(heads < 250, "{heads}");
    server.set_faults(status(403, "AccessDenied"));
    let denied = list_objects(&server, &uri, Some(&keys[..1])).expect_err("GET is refused, too").to_string();
    assert!(denied.contains("/set/000: access denied (HTTP 403 AccessDenied"), "{denied}");
}
