// SPDX-License-Identifier: Apache-2.0
//! Listings of a fake S3 and of a fake web server.

use std::sync::atomic::AtomicBool;

use crate::origin::process_tests::fake::{FakeS3, Mood, PAGE, etag};
use crate::{Listed, OriginError, OriginOptions, Uri, list};

fn listed(fake: &FakeS3, uri: &str, keys: Option<&[Vec<u8>]>) -> Result<Vec<Listed>, OriginError> {
    let mut options = OriginOptions::default();
    if uri.starts_with("s3") {
        for (name, value) in
            [("endpoint_url", format!("http://{}", fake.address)), ("skip_signature", "true".to_owned())]
        {
            options.storage.insert(name.to_owned(), value);
        }
    }
    list(&Uri::parse(uri)?, &options, keys, &|_| {}, &AtomicBool::new(false))
}

fn check(fake: &FakeS3, names: &[String]) {
    for name in names {
        fake.put(&format!("set/{name}"), name.as_bytes());
    }
    fake.put("other/x", b"not ours");
    fake.put("settle", b"not ours");
    let mut expected: Vec<Listed> = names
        .iter()
        .map(|name| Listed {
            key: name.clone().into_bytes(),
            size: name.len() as u64,
            tag: etag(name.as_bytes()).into_bytes(),
        })
        .collect();
    expected.sort_by(|a, b| a.key.cmp(&b.key));
    assert_eq!(listed(fake, "s3://bucket/set/", None).expect("a listing"), expected);
}

#[test]
fn a_flat_prefix_is_cut_and_listed_side_by_side() {
    let fake = FakeS3::start();
    let names: Vec<_> = (0..997).map(|id| format!("{:06}.jpg", id * 37)).collect();
    check(&fake, &names);
    assert!(fake.requests().len() <= 3 * names.len() / PAGE, "{}", fake.requests().len());
    assert!(fake.cuts() >= 8, "it is cut into spans: {}", fake.cuts());
}

#[test]
fn folders_of_any_size_come_complete() {
    let fake = FakeS3::start();
    let mut names: Vec<_> = (0..300).map(|id| format!("{}/{id}", ["a", "b b", "é", "z"][id % 4])).collect();
    names.extend((0..80).map(|id| format!("deep/er/{id}")));
    names.extend(["a.txt", "a0", "~tilde", "zz"].map(str::to_owned));
    check(&fake, &names);
}

#[test]
fn an_empty_page_that_says_more_is_not_the_end() {
    let fake = FakeS3::start();
    fake.send_empty_pages();
    check(&fake, &(0..95).map(|id| format!("{id:03}")).collect::<Vec<_>>());
}

#[test]
fn stand_ins_for_folders_are_left_out_and_empty_objects_are_not() {
    let fake = FakeS3::start();
    for key in ["set/", "set/a/", "set/a/b/", "set/lonely/"] {
        fake.put(key, b"");
    }
    fake.put("set/a/1", b"x");
    fake.put("set/empty", b"");
    let keys: Vec<_> = listed(&fake, "s3://bucket/set", None).expect("a listing");
    let keys: Vec<_> = keys.into_iter().map(|listed| listed.key).collect();
    assert_eq!(keys, [b"a/1".as_slice(), b"empty"]);
}

#[test]
fn an_empty_bucket_lists_nothing_and_a_refusal_is_named() {
    let fake = FakeS3::start();
    assert_eq!(listed(&fake, "s3://bucket", None).expect("a listing"), []);
    fake.set(Mood::Status(403, "AccessDenied"));
    let error = listed(&fake, "s3://bucket/x", None).expect_err("denied").to_string();
    assert!(error.contains("s3://bucket/x: access denied (HTTP 403 AccessDenied: no)"), "{error}");
}

#[test]
fn a_web_server_is_asked_for_each_key() {
    let fake = FakeS3::start();
    fake.put("set/b c", b"22");
    fake.put("set/a", b"1");
    let uri = format!("http://{}/bucket/set", fake.address);
    let keys = [b"b c".to_vec(), b"a".to_vec()];
    let found = listed(&fake, &uri, Some(&keys)).expect("answers");
    assert_eq!(found[0], Listed { key: b"a".to_vec(), size: 1, tag: etag(b"1").into_bytes() });
    assert_eq!((found[1].key.as_slice(), found[1].size), (b"b c".as_slice(), 2));
    let missing = listed(&fake, &uri, Some(&[b"nope".to_vec()])).expect_err("missing").to_string();
    assert!(missing.contains("/bucket/set/nope does not exist"), "{missing}");
    assert!(matches!(listed(&fake, &uri, None), Err(OriginError::NoListing { .. })));
}

/// What is found of three objects whose URL carries a signature, by a server that answers no HEAD.
fn listed_without_head(mood: &Mood) -> (Vec<Listed>, Vec<String>) {
    let fake = FakeS3::start();
    for (key, body) in [("set/a", b"1".as_slice()), ("set/b", b"four"), ("set/empty", b"")] {
        fake.put(key, body);
    }
    fake.set(mood.clone());
    let uri = format!("http://{}/bucket/set?X-Amz-Signature=hush", fake.address);
    let keys = ["a", "b", "empty"].map(|key| key.as_bytes().to_vec());
    let found = listed(&fake, &uri, Some(&keys)).expect("answers");
    let missing = listed(&fake, &uri, Some(&[b"nope".to_vec()])).expect_err("missing").to_string();
    assert!(missing.contains("/bucket/set/nope does not exist"), "{missing}");
    assert!(!missing.contains("hush"), "{missing}");
    (found, fake.requests())
}

#[test]
fn a_web_server_that_refuses_head_is_asked_for_a_byte_of_each_key() {
    for refused in [403, 405, 501] {
        for ranges in [true, false] {
            let (found, requests) = listed_without_head(&Mood::RefusesHead { status: refused, ranges });
            let expected = [("a", b"1".as_slice()), ("b", b"four"), ("empty", b"")].map(|(key, body)| {
                let (key, tag) = (key.as_bytes().to_vec(), etag(body).into_bytes());
                Listed { key, size: body.len() as u64, tag }
            });
            assert_eq!(found, expected, "HTTP {refused} to HEAD, ranges: {ranges}");
            let asked = |words: &str| requests.iter().filter(|line| line.contains(words)).count();
            assert_eq!(asked("GET /bucket/set/b range=bytes=0-0"), 1, "{requests:?}");
            assert_eq!(asked("GET /bucket/set/b range=-"), usize::from(!ranges), "{requests:?}");
        }
    }
}

#[test]
fn a_web_server_that_has_refused_head_is_not_sent_one_for_every_key() {
    let fake = FakeS3::start();
    let keys: Vec<_> = (0..500).map(|id| format!("{id:03}").into_bytes()).collect();
    for id in 0..500 {
        fake.put(&format!("set/{id:03}"), b"x");
    }
    fake.set(Mood::RefusesHead { status: 403, ranges: true });
    let uri = format!("http://{}/bucket/set", fake.address);
    assert_eq!(listed(&fake, &uri, Some(&keys)).expect("answers").len(), 500);
    let heads = fake.requests().iter().filter(|line| line.starts_with("HEAD")).count();
    assert!(heads < 250, "{heads}");
    fake.set(Mood::Status(403, "AccessDenied"));
    let denied = listed(&fake, &uri, Some(&keys[..1])).expect_err("GET is refused, too").to_string();
    assert!(denied.contains("/set/000: access denied (HTTP 403 AccessDenied"), "{denied}");
}
