// SPDX-License-Identifier: Apache-2.0
//! Reads and listings of a fake of the hub: redirects, tags, tokens and errors.

use std::sync::Arc;

use foresee_testbed::{Fault, FaultRule, MemoryServer};
use foresee_units::{Nanos, ReadOutcome};

use crate::test_support::{MemoryIndex, REPOSITORY, read, serve, status, store_options, with_queue};
use crate::{ObjectReader, OriginError, Selection, StoreOrigin, Uri, list, probe_origin};

const SMALL: &[u8] = b"small";
const LARGE: &[u8] = b"0123456789";

fn filled() -> MemoryServer {
    let server = serve();
    server.put("bucket", "a/small", SMALL);
    server.put("bucket", "a/large", LARGE);
    server
}

fn uri(text: &str) -> Uri {
    Uri::parse(text).expect("a URI")
}

/// The error of a probe of `text`.
fn refusal(server: &MemoryServer, text: &str) -> String {
    probe_origin(&uri(text), &store_options(server, text)).expect_err("a refusal").to_string()
}

#[test]
fn a_large_file_is_read_at_the_address_of_its_first_redirect_without_its_condition() {
    let server = filled();
    let listing = list(
        &uri(REPOSITORY),
        &store_options(&server, REPOSITORY),
        Selection::default(),
        &|_| {},
        &std::sync::atomic::AtomicBool::new(false),
    )
    .expect("a listing");
    let mut index = MemoryIndex::default();
    for object in &listing.objects {
        index.add(&object.key, None, object.size, &object.tag);
        index.add(&object.key, Some(1), object.size - 1, &object.tag);
    }
    index.add(b"a/large", None, 10, b"\"of another version\"");
    let before = server.requests().len();
    let (origin, queue) = with_queue(|completions| {
        let options = store_options(&server, REPOSITORY);
        StoreOrigin::new(&uri(REPOSITORY), &options, Arc::new(index), completions).expect("an origin")
    });
    assert_eq!(read(&origin, &queue, 0, 10).1, LARGE);
    assert_eq!(read(&origin, &queue, 1, 9).1, &LARGE[1..]);
    assert_eq!(read(&origin, &queue, 2, 5).1, SMALL);
    assert_eq!(read(&origin, &queue, 4, 10).0.outcome, ReadOutcome::Changed, "the hub has another tag");
    let file = "GET /datasets/me/bucket/resolve/main/a/";
    let requests = &server.requests()[before..];
    assert_eq!(
        requests[..4],
        [
            format!("{file}large range=- if-match=-"),
            "GET /large-files/bucket/a/large range=- if-match=- query=Signature=hush".to_owned(),
            "GET /large-files/bucket/a/large range=bytes=1-9 if-match=- query=Signature=hush".to_owned(),
            format!("{file}small range=- if-match=-"),
        ]
    );
}

#[test]
fn an_address_that_has_expired_is_requested_again() {
    let server = filled();
    let mut index = MemoryIndex::default();
    index.add(b"a/large", None, 10, b"");
    let (origin, queue) = with_queue(|completions| {
        let options = store_options(&server, REPOSITORY);
        StoreOrigin::new(&uri(REPOSITORY), &options, Arc::new(index), completions).expect("an origin")
    });
    assert_eq!(read(&origin, &queue, 0, 10).1, LARGE);
    let [expired] = <[FaultRule; 1]>::try_from(status(403, "AccessDenied")).expect("one rule");
    server.set_faults(vec![FaultRule { next: Some(1), path: "large-files".to_owned(), ..expired }]);
    assert_eq!(read(&origin, &queue, 0, 10).1, LARGE);
    let requests = server.requests();
    let count = |words: &str| requests.iter().filter(|line| line.contains(words)).count();
    assert_eq!((count("resolve/main"), count("GET /large-files")), (2, 3), "{requests:?}");
}

#[test]
fn sizes_and_tags_of_named_files_need_no_redirect() {
    let server = filled();
    let keys = ["a/large", "a/small"].map(|key| key.as_bytes().to_vec());
    let selection = Selection { keys: Some(&keys), ..Selection::default() };
    let cancel = std::sync::atomic::AtomicBool::new(false);
    let options = store_options(&server, REPOSITORY);
    let listing = list(&uri(REPOSITORY), &options, selection, &|_| {}, &cancel).expect("a listing");
    let expected = [("a/large", LARGE), ("a/small", SMALL)];
    for (object, (key, body)) in listing.objects.iter().zip(expected) {
        let tag = server.put("bucket", key, body).into_bytes();
        assert_eq!((object.size, &object.tag), (body.len() as u64, &tag), "{key}");
    }
    assert!(!server.requests().iter().any(|line| line.contains("large-files")), "{:?}", server.requests());
}

#[test]
fn a_missing_repository_revision_or_folder_is_named_with_the_hubs_message() {
    let server = filled();
    probe_origin(&uri(REPOSITORY), &store_options(&server, REPOSITORY)).expect("it answers");
    let unknown = refusal(&server, "hf://datasets/you/set");
    for part in
        ["hf://datasets/you/set: access denied (HTTP 401 RepoNotFound: Repository not found", "HF_TOKEN"]
    {
        assert!(unknown.contains(part), "{unknown}");
    }
    assert!(!unknown.contains("hush"), "{unknown}");
    let revision = refusal(&server, "hf://datasets/me/bucket@v9");
    assert!(revision.contains("bucket@v9 does not exist (HTTP 404 RevisionNotFound"), "{revision}");
    let folder = refusal(&server, "hf://datasets/me/bucket/none");
    assert!(folder.contains("bucket/none does not exist (HTTP 404 EntryNotFound"), "{folder}");
    let options = store_options(&server, REPOSITORY);
    let file = ObjectReader::open(&uri(REPOSITORY), &options).expect("settings").read(b"none", None);
    assert!(matches!(file, Err(OriginError::Missing { .. })), "{file:?}");
}

#[test]
fn a_limit_of_requests_is_waited_for_as_the_hub_says() {
    let server = filled();
    let mut index = MemoryIndex::default();
    index.add(b"a/small", None, 5, b"");
    let (origin, queue) = with_queue(|completions| {
        let options = store_options(&server, REPOSITORY);
        StoreOrigin::new(&uri(REPOSITORY), &options, Arc::new(index), completions).expect("an origin")
    });
    let headers = [("RateLimit".to_owned(), "\"resolvers\";r=0;t=42".to_owned())].into();
    server.set_faults(vec![Fault::Answer { status: 429, headers, body: String::new() }.into()]);
    let outcome = read(&origin, &queue, 0, 5).0.outcome;
    assert_eq!(outcome, ReadOutcome::Throttled { retry_after: Some(Nanos::from_secs(42)) });
}

#[test]
fn an_endless_redirect_and_an_unknown_setting_are_errors() {
    let server = filled();
    let headers = [("Location".to_owned(), "/datasets/me/bucket/resolve/main/a".to_owned())].into();
    server.set_faults(vec![Fault::Answer { status: 307, headers, body: String::new() }.into()]);
    let options = store_options(&server, REPOSITORY);
    let reader = ObjectReader::open(&uri(REPOSITORY), &options).expect("settings");
    let error = reader.read(b"a", None).expect_err("no end").to_string();
    assert!(error.contains("redirects without end"), "{error}");
    let mut options = options;
    options.storage.insert("tokn".to_owned(), "hush".to_owned());
    let error = probe_origin(&uri(REPOSITORY), &options).expect_err("misspelt").to_string();
    assert!(
        error.contains("tokn") && error.contains("token, endpoint") && !error.contains("hush"),
        "{error}"
    );
}
