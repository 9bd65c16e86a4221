// SPDX-License-Identifier: Apache-2.0
//! Refused credentials and redirects of each kind of store.

use std::sync::Arc;

use foresee_testbed::Fault;
use foresee_units::ReadOutcome;

use super::{fill, read_from};
use crate::test_support::{BUCKETS, REPOSITORY, read, serve, status, store_options, with_queue};
use crate::{OriginError, StoreOrigin, Uri, probe_origin};

/// Status and code of each store for wrong credentials, and a variable that sets them.
const REFUSALS: [(&str, u16, &str, &str); 5] = [
    (BUCKETS[0], 403, "InvalidAccessKeyId", "AWS_PROFILE"),
    (BUCKETS[0], 400, "ExpiredToken", "AWS_SESSION_TOKEN (never renewed)"),
    (BUCKETS[1], 401, "AuthenticationRequired", "GOOGLE_APPLICATION_CREDENTIALS"),
    (BUCKETS[2], 403, "AuthenticationFailed", "AZURE_STORAGE_ACCOUNT_KEY"),
    (REPOSITORY, 401, "", "HF_TOKEN"),
];

#[test]
fn wrong_or_expired_credentials_are_refusals_that_name_where_others_come_from() {
    for (bucket, refusal, code, variable) in REFUSALS {
        let server = serve();
        server.set_faults(status(refusal, code));
        let uri = Uri::parse(bucket).expect("a URI");
        let refused = probe_origin(&uri, &store_options(&server, bucket)).expect_err(bucket);
        assert!(matches!(refused, OriginError::Denied { .. }), "{refused}");
        let (done, ..) = read_from(bucket, status(refusal, code), |_| {});
        assert_eq!(done.outcome, ReadOutcome::Denied, "{bucket}");
        for text in [refused.to_string(), done.detail.message.expect("a message").to_string()] {
            assert!(text.contains(variable) && text.contains(code), "{text}");
            assert!(!text.contains("hush") && !text.contains("aHVzaA"), "{text}");
        }
    }
}

#[test]
fn a_redirect_is_followed_and_one_without_end_is_an_error() {
    for bucket in BUCKETS {
        let (server, other) = (serve(), serve());
        let index = fill(&server, &[vec![7; 10]]);
        fill(&other, &[vec![7; 10]]);
        let redirect = |to: &foresee_testbed::MemoryServer| {
            let location = format!("http://{}/bucket/set/class%200/0+%C3%A9.bin", to.address());
            let headers = [("location".to_owned(), location)].into();
            vec![Fault::Answer { status: 307, headers, body: String::new() }.into()]
        };
        let uri = Uri::parse(&format!("{bucket}/set")).expect("a URI");
        let options = store_options(&server, bucket);
        let (origin, queue) = with_queue(|completions| {
            StoreOrigin::new(&uri, &options, Arc::new(index), completions).expect("an origin")
        });
        server.set_faults(redirect(&other));
        let (done, bytes) = read(&origin, &queue, 0, 10);
        assert_eq!((done.outcome, bytes), (ReadOutcome::Ok, vec![7; 10]), "{bucket}: {done:?}");
        assert_eq!(other.requests().len(), 1);
        server.set_faults(redirect(&server));
        let (done, _) = read(&origin, &queue, 0, 10);
        assert_ne!(done.outcome, ReadOutcome::Ok);
        let message = done.detail.message.expect("a message");
        assert!(message.contains("redirect") && !message.contains("hush"), "{message}");
    }
}
