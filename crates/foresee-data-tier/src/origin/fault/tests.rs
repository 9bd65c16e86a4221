// SPDX-License-Identifier: Apache-2.0
//! The meaning of answers, and the remedies of their errors.

use super::*;

fn outcome(status: u16, code: Option<&str>) -> ReadOutcome {
    let attempt = Attempt::default();
    let code = code.map(str::to_owned);
    attempt.record(ResponseFacts { status: Some(status), code, ..ResponseFacts::default() });
    Failure::classify(&attempt, &nothing()).outcome
}

fn nothing() -> object_store::Error {
    object_store::Error::NotImplemented { operation: String::new(), implementer: String::new() }
}

#[test]
fn every_status_has_its_meaning() {
    let throttled = ReadOutcome::Throttled { retry_after: None };
    for (status, code, expected) in [
        (404, None, ReadOutcome::Absent),
        (401, None, ReadOutcome::Denied),
        (403, Some("AccessDenied"), ReadOutcome::Denied),
        (400, Some("ExpiredToken"), ReadOutcome::Denied),
        (409, Some("PublicAccessNotPermitted"), ReadOutcome::Denied),
        (412, None, ReadOutcome::Changed),
        (429, None, throttled),
        (503, Some("SlowDown"), throttled),
        (408, None, ReadOutcome::Retryable),
        (500, None, ReadOutcome::Retryable),
        (504, None, ReadOutcome::Retryable),
        (400, None, ReadOutcome::Failed),
        (416, None, ReadOutcome::Failed),
        (301, None, ReadOutcome::Failed),
    ] {
        assert_eq!(outcome(status, code), expected, "HTTP {status} {code:?}");
    }
}

#[test]
fn a_clock_difference_is_reported_with_both_times() {
    let attempt = Attempt::default();
    attempt.record(ResponseFacts {
        status: Some(403),
        code: Some("RequestTimeTooSkewed".to_owned()),
        client_time: Some("20260102T030405Z".to_owned()),
        server_time: Some("2026-01-02T03:24:05Z".to_owned()),
        ..ResponseFacts::default()
    });
    let error = Failure::classify(&attempt, &nothing()).into_error("s3://b".to_owned(), &Remedies::default());
    let text = error.to_string();
    assert!(matches!(error, OriginError::ClockDiffers { .. }), "{text}");
    for part in ["2026-01-02T03:04:05Z here", "2026-01-02T03:24:05Z at the store", "set this host's clock"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn the_region_of_an_answer_is_in_the_remedy() {
    let at = |status, code: &str, region: Option<&str>| {
        let attempt = Attempt::default();
        let code = Some(code.to_owned()).filter(|code| !code.is_empty());
        attempt.record(ResponseFacts {
            status: Some(status),
            code,
            region: region.map(str::to_owned),
            ..ResponseFacts::default()
        });
        Failure::classify(&attempt, &nothing())
            .into_error("s3://b".to_owned(), &Remedies::default())
            .to_string()
    };
    for (status, code) in
        [(301, "PermanentRedirect"), (301, ""), (400, "AuthorizationHeaderMalformed"), (400, "")]
    {
        let text = at(status, code, Some("eu-west-1"));
        assert!(text.contains("AWS_REGION=eu-west-1"), "{text}");
    }
    assert!(at(301, "PermanentRedirect", None).contains("AWS_REGION"));
    // Refusals name the bucket's region too, and are not about it.
    assert!(!at(403, "AccessDenied", Some("eu-west-1")).contains("AWS_REGION"));
}

#[test]
fn the_pause_that_a_server_asks_for_is_found_in_two_headers() {
    assert_eq!(retry_after(Some(" 7 "), Some("\"api\";r=0;t=42")), Some(7));
    assert_eq!(retry_after(None, Some("\"api\";r=0;t=42")), Some(42));
    assert_eq!(retry_after(Some("Wed, 21 Oct 2026 07:28:00 GMT"), None), None);
}

#[test]
fn the_code_of_an_error_document_is_found() {
    let text = "<Error><Code>SlowDown</Code><Message> wait </Message></Error>";
    assert_eq!(element(text, "Code").as_deref(), Some("SlowDown"));
    assert_eq!(element(text, "Message").as_deref(), Some("wait"));
    assert_eq!(element("<Code>open", "Code"), None);
}
