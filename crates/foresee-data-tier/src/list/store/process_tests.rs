// SPDX-License-Identifier: Apache-2.0
//! Listings of a fake S3 and of a fake web server.

use std::sync::atomic::AtomicBool;

use crate::origin::process_tests::fake::{FakeS3, Mood, PAGE, etag};
use crate::{Listing, OriginError, OriginObject, OriginOptions, Selection, Uri, list, read_whole};

fn options(fake: &FakeS3, uri: &str) -> OriginOptions {
    let mut options = OriginOptions::default();
    if uri.starts_with("s3") {
        for (name, value) in
            [("endpoint_url", format!("http://{}", fake.address)), ("skip_signature", "true".to_owned())]
        {
            options.storage.insert(name.to_owned(), value);
        }
    }
    options
}

fn select(fake: &FakeS3, uri: &str, selection: Selection<'_>) -> Result<Listing, OriginError> {
    list(&Uri::parse(uri)?, &options(fake, uri), selection, &|_| {}, &AtomicBool::new(false))
}

fn listed(fake: &FakeS3, uri: &str, keys: Option<&[Vec<u8>]>) -> Result<Vec<OriginObject>, OriginError> {
    let listing = select(fake, uri, Selection { keys, ..Selection::default() })?;
    match listing.unreadable.into_iter().next() {
        // A key that is named and not there is told with its error.
        Some(unreadable) if keys.is_some() => Err(unreadable.error),
        Some(unreadable) => panic!("{unreadable:?}"),
        None => Ok(listing.objects),
    }
}

fn check(fake: &FakeS3, names: &[String]) {
    for name in names {
        fake.put(&format!("set/{name}"), name.as_bytes());
    }
    fake.put("other/x", b"not ours");
    fake.put("settle", b"not ours");
    let mut expected: Vec<OriginObject> = names
        .iter()
        .map(|name| OriginObject {
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
fn stand_ins_are_told_on_the_first_level_and_empty_objects_are_objects() {
    let fake = FakeS3::start();
    for key in ["set/", "set/a/", "set/a/b/", "set/lonely/"] {
        fake.put(key, b"");
    }
    fake.put("set/a/1", b"x");
    fake.put("set/empty", b"");
    let keys: Vec<_> = listed(&fake, "s3://bucket/set", None).expect("a listing");
    let keys: Vec<_> = keys.into_iter().map(|listed| listed.key).collect();
    assert_eq!(keys, [b"a/".as_slice(), b"a/1", b"empty", b"lonely/"]);
    assert!(!fake.requests().iter().any(|line| line.starts_with("HEAD")), "{:?}", fake.requests());
}

#[test]
fn odd_keys_are_listed_and_read_and_those_that_no_request_can_name_are_told() {
    let fake = FakeS3::start();
    for key in
        ["cat/1.png", "cat//x.png", "a///b", " spaced ", "cat/./x.png", "../x.png", "cat/a\nb.png", "/x"]
    {
        fake.put(&format!("set/{key}"), key.as_bytes());
    }
    let listing = select(&fake, "s3://bucket/set", Selection::default()).expect("a listing");
    let keys: Vec<_> = listing.objects.iter().map(|one| String::from_utf8_lossy(&one.key)).collect();
    assert_eq!(keys, [" spaced ", "/x", "a///b", "cat//x.png", "cat/1.png"]);
    for one in &listing.objects {
        let uri = Uri::parse("s3://bucket/set").expect("a URI");
        assert_eq!(read_whole(&uri, &options(&fake, "s3://"), &one.key, None).expect("its bytes"), one.key);
    }
    let told: Vec<_> = listing.unreadable.iter().map(|one| String::from_utf8_lossy(&one.key)).collect();
    assert_eq!(told, ["../x.png", "cat/./x.png", "cat/a\nb.png"]);
    for one in &listing.unreadable {
        let text = one.error.to_string();
        assert!(text.contains(&format!("{:?}", String::from_utf8_lossy(&one.key))), "{text}");
        assert!(text.contains("rename the object, or leave it out with exclude="), "{text}");
    }
    let odd = |key: &[u8]| key.starts_with(b"..") || key.ends_with(b"b.png") || key.ends_with(b"./x.png");
    let listing = select(&fake, "s3://bucket/set", Selection { is_excluded: &odd, ..Selection::default() });
    assert!(listing.expect("a listing").unreadable.is_empty());
}

#[test]
fn an_empty_prefix_names_what_lies_next_to_it_and_a_refusal_is_named() {
    let fake = FakeS3::start();
    let empty = |uri: &str| listed(&fake, uri, None).expect_err("nothing is there").to_string();
    assert_eq!(empty("s3://bucket"), "nothing is stored at s3://bucket; the bucket has no objects");
    assert_eq!(empty("s3://bucket/a/b"), "nothing is stored at s3://bucket/a/b; the bucket has no objects");
    for key in ["data/train/1", "data/val/2"] {
        fake.put(key, b"");
    }
    let beside = "s3://bucket/data has the prefixes \"train\", \"val\"";
    assert_eq!(
        empty("s3://bucket/data/trains"),
        format!("nothing is stored at s3://bucket/data/trains; {beside}")
    );
    assert!(empty("s3://bucket/x/y").ends_with("s3://bucket has the prefixes \"data\""));
    fake.set(Mood::Status(403, "AccessDenied"));
    let error = listed(&fake, "s3://bucket/x", None).expect_err("denied").to_string();
    assert!(error.contains("s3://bucket/x: access denied (HTTP 403 AccessDenied: no)"), "{error}");
}

#[test]
fn what_answers_instead_of_the_bucket_is_named_with_its_remedy() {
    let fake = FakeS3::start();
    fake.put("set/1", b"x");
    fake.set(Mood::WebPage);
    let error = listed(&fake, "s3://bucket/set", None).expect_err("a web page").to_string();
    assert!(error.contains("a web page came instead of the list with the title \"Log in\""), "{error}");
    assert!(error.contains("AWS_ENDPOINT_URL"), "{error}");
    fake.set(Mood::Region("eu-west-1"));
    let error = listed(&fake, "s3://bucket/set", None).expect_err("elsewhere").to_string();
    assert!(error.contains("region \"eu-west-1\"") && error.contains("AWS_REGION=eu-west-1"), "{error}");
}

#[test]
fn a_web_server_is_asked_for_each_key() {
    let fake = FakeS3::start();
    fake.put("set/b c", b"22");
    fake.put("set/a", b"1");
    let uri = format!("http://{}/bucket/set", fake.address);
    let keys = [b"b c".to_vec(), b"a".to_vec()];
    let found = listed(&fake, &uri, Some(&keys)).expect("answers");
    assert_eq!(found[0], OriginObject { key: b"a".to_vec(), size: 1, tag: etag(b"1").into_bytes() });
    assert_eq!((found[1].key.as_slice(), found[1].size), (b"b c".as_slice(), 2));
    let missing = listed(&fake, &uri, Some(&[b"nope".to_vec()])).expect_err("missing").to_string();
    assert!(missing.contains("/bucket/set/nope does not exist"), "{missing}");
    assert!(matches!(listed(&fake, &uri, None), Err(OriginError::NoListing { .. })));
}

/// What is found of three objects whose URL carries a signature, by a server that answers no HEAD.
fn listed_without_head(mood: &Mood) -> (Vec<OriginObject>, Vec<String>) {
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
                OriginObject { key, size: body.len() as u64, tag }
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
