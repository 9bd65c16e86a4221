// SPDX-License-Identifier: Apache-2.0
//! Reads of buckets with credentials of a source that answers from a thread of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use foresee_units::ReadOutcome;

use super::{
    CredentialReply, CredentialRequest, CredentialResult, CredentialSource, Credentials, ObtainedCredentials,
};
use crate::test_support::{BUCKETS, MemoryIndex, Queue, read, serve, status, store_options, with_queue};
use crate::{OriginIdentity, OriginOptions, StoreOrigin, Uri, probe_origin};

/// Gives the same values for each request, and counts them.
#[derive(Debug)]
struct Fixed {
    result: CredentialResult,
    requests: AtomicU32,
}

impl Fixed {
    fn new(result: Result<&[(&str, &str)], &str>) -> Arc<Self> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let result = result
            .map(|values| ObtainedCredentials { values: values.iter().map(owned).collect(), expires: None })
            .map_err(str::to_owned);
        Arc::new(Self { result, requests: AtomicU32::new(0) })
    }

    fn requests(&self) -> u32 {
        self.requests.load(Ordering::SeqCst)
    }
}

impl CredentialSource for Fixed {
    fn reads_profiles(&self) -> bool {
        true
    }

    fn profile_settings(&self, profile: Option<&str>) -> Result<BTreeMap<String, String>, String> {
        match profile {
            Some("lab") => Ok(BTreeMap::from([("endpoint_url".to_owned(), "http://lab.example".to_owned())])),
            _ => Err("it does not exist".to_owned()),
        }
    }

    fn obtain(&self, request: &CredentialRequest, reply: CredentialReply) {
        assert!(!matches!(request, CredentialRequest::Profile(None)), "{request:?}");
        self.requests.fetch_add(1, Ordering::SeqCst);
        let result = self.result.clone();
        std::thread::spawn(move || reply.send(result));
    }
}

/// The options for `bucket` of `server`, with the credentials of `source`.
fn options(server: &foresee_testbed::MemoryServer, bucket: &str, source: &Arc<Fixed>) -> OriginOptions {
    let mut options = store_options(server, bucket);
    options.storage.retain(|name, _| !name.ends_with("key") && !name.ends_with("key_id"));
    options.storage.insert("credential_provider".to_owned(), "1".to_owned());
    options.credentials = Some(Credentials::new(Arc::clone(source) as _));
    options
}

fn open(server: &foresee_testbed::MemoryServer, bucket: &str, source: &Arc<Fixed>) -> (StoreOrigin, Queue) {
    let tag = server.put("bucket", "set/one", &[7; 10]);
    let mut index = MemoryIndex::default();
    index.add(b"one", None, 10, tag.as_bytes());
    let uri = Uri::parse(&format!("{bucket}/set")).expect("a URI");
    let options = options(server, bucket, source);
    with_queue(|completions| {
        StoreOrigin::new(&uri, &options, Arc::new(index), completions).expect("an origin")
    })
}

fn sources() -> [(&'static str, Arc<Fixed>); 3] {
    let [s3, google, azure] = BUCKETS;
    [
        (s3, Fixed::new(Ok(&[("access_key_id", "AKIAKEY"), ("secret_access_key", "hush"), ("token", "")]))),
        (google, Fixed::new(Ok(&[("token", "hush")]))),
        (azure, Fixed::new(Ok(&[("sas_token", "?sv=1&sig=a%2Bb")]))),
    ]
}

#[test]
fn each_store_uses_credentials_of_a_provider_and_requests_them_once() {
    for (bucket, source) in sources() {
        let server = serve();
        let (origin, queue) = open(&server, bucket, &source);
        for _ in 0..3 {
            let (done, bytes) = read(&origin, &queue, 0, 10);
            assert_eq!((done.outcome, bytes), (ReadOutcome::Ok, vec![7; 10]), "{done:?}");
        }
        assert_eq!(source.requests(), 1, "{bucket}");
    }
}

#[test]
fn a_sas_token_of_a_provider_is_sent_as_it_was_signed() {
    let server = serve();
    let [.., (azure, source)] = sources();
    let (origin, queue) = open(&server, azure, &source);
    read(&origin, &queue, 0, 10);
    let sent = server.requests().pop().expect("a request");
    assert!(sent.ends_with("query=sv=1&sig=a%2Bb"), "{sent}");
}

#[test]
fn expired_credentials_are_repeated_once_and_then_refused() {
    for (bucket, source) in sources() {
        let server = serve();
        let (origin, queue) = open(&server, bucket, &source);
        server.set_faults(status(401, "ExpiredToken"));
        assert_eq!(
            read(&origin, &queue, 0, 10).0.outcome,
            ReadOutcome::Retryable,
            "newer ones may have come"
        );
        let (done, _) = read(&origin, &queue, 0, 10);
        assert_eq!(done.outcome, ReadOutcome::Denied, "{done:?}");
        assert!(
            done.detail.message.is_some_and(|text| text.contains("ExpiredToken") && !text.contains("hush"))
        );
    }
}

#[test]
fn a_provider_that_fails_or_returns_too_little_is_named_in_the_error() {
    for (result, cause) in [
        (Err("log in first"), "the credential provider: log in first"),
        (
            Ok(&[("access_key_id", "AKIAKEY")][..]),
            "secret_access_key is missing, which credentials of S3 need",
        ),
    ] {
        let (server, source) = (serve(), Fixed::new(result));
        let (origin, queue) = open(&server, "s3://bucket", &source);
        let (done, _) = read(&origin, &queue, 0, 10);
        assert_eq!(done.outcome, ReadOutcome::Retryable, "the next request may succeed");
        let message = done.detail.message.expect("a message");
        assert!(message.contains(cause) && !message.contains("AKIAKEY"), "{message}");
        let uri = Uri::parse("s3://bucket/set").expect("a URI");
        let refused =
            probe_origin(&uri, &options(&server, "s3://bucket", &source)).expect_err("no credentials");
        assert!(refused.to_string().contains("no usable credentials"), "{refused}");
    }
}

#[test]
fn a_profile_sets_the_endpoint_and_an_unknown_one_is_an_error() {
    let identity = |profile: &str, source: Option<Arc<Fixed>>| {
        let storage = BTreeMap::from([("profile".to_owned(), profile.to_owned())]);
        let credentials = source.map(|source| Credentials::new(source as _));
        let options = OriginOptions { storage, credentials, ..OriginOptions::default() };
        OriginIdentity::new(&Uri::parse("s3://bucket/set").expect("a URI"), &options)
    };
    let source = Fixed::new(Ok(&[]));
    let of_lab = identity("lab", Some(Arc::clone(&source))).expect("a profile");
    let without =
        OriginIdentity::new(&Uri::parse("s3://bucket/set").expect("a URI"), &OriginOptions::default());
    assert_ne!(of_lab, without.expect("an identity"), "another endpoint is another bucket");
    assert_eq!(source.requests(), 0, "credentials are obtained for the first request");
    let unknown = identity("lob", Some(source)).expect_err("no such profile").to_string();
    assert!(unknown.contains("\"profile\" is not usable (it does not exist)"), "{unknown}");
    let unread = identity("lab", None).expect_err("nothing reads profiles").to_string();
    assert!(unread.contains("in a process with Python"), "{unread}");
}

#[test]
fn options_of_another_bucket_are_refused() {
    for (uri, name) in
        [("s3://bucket", "bucket"), ("gs://bucket", "google_bucket"), ("az://bucket", "container_name")]
    {
        let server = serve();
        let mut options = store_options(&server, uri);
        options.storage.insert(name.to_owned(), "bucket".to_owned());
        assert!(probe_origin(&Uri::parse(uri).expect("a URI"), &options).is_ok(), "{uri}");
        options.storage.insert(name.to_owned(), "other".to_owned());
        let refused = probe_origin(&Uri::parse(uri).expect("a URI"), &options).expect_err(uri).to_string();
        assert!(refused.contains("\"other\"") && refused.contains("\"bucket\""), "{refused}");
    }
}
