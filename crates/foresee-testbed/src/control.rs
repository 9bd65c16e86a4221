// SPDX-License-Identifier: Apache-2.0
//! The testbed's own paths, `/-/...`, which are neither limited nor counted. No bucket can have that name.

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use serde::Serialize;

use crate::options::{Limits, parse_faults};
use crate::server::{Answer, Origin};

/// The prefix of the testbed's own paths.
pub(crate) const PREFIX: &str = "/-/";

/// A list of faults longer than this is a mistake.
const BODY_BYTES_MAX: usize = 1 << 20;

/// Answer a request for one of the testbed's own paths.
pub(crate) async fn answer(origin: &Origin, request: Request<Incoming>) -> Answer {
    let (head, body) = request.into_parts();
    let Ok(body) = Limited::new(body, BODY_BYTES_MAX).collect().await else {
        return refused(StatusCode::PAYLOAD_TOO_LARGE, "the body is longer than 1 MiB, or broke off");
    };
    let body = body.to_bytes();
    match (&head.method, &head.uri.path()[PREFIX.len()..]) {
        (&Method::GET, "counters") => json(&origin.counters.snapshot()),
        (&Method::POST, "reset") => {
            origin.counters.reset();
            json(&origin.counters.snapshot())
        }
        (&Method::GET, "limits") => json(&origin.limits()),
        (&Method::POST, "limits") => match parse_limits(&body) {
            Ok(limits) => {
                origin.set_limits(limits);
                json(&limits)
            }
            Err(reason) => refused(StatusCode::BAD_REQUEST, &reason),
        },
        (&Method::GET, "faults") => json(&origin.faults.rules()),
        (&Method::POST, "faults") => match parse_faults(&body) {
            Ok(rules) => {
                origin.faults.set(rules);
                json(&origin.faults.rules())
            }
            Err(reason) => refused(StatusCode::BAD_REQUEST, &reason),
        },
        _ => refused(
            StatusCode::NOT_FOUND,
            "there are GET counters, POST reset, GET and POST limits, GET and POST faults",
        ),
    }
}

fn parse_limits(body: &[u8]) -> Result<Limits, String> {
    let limits: Limits = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    limits.check()?;
    Ok(limits)
}

fn json(value: &impl Serialize) -> Answer {
    match serde_json::to_vec(value) {
        Ok(body) => Answer::of_bytes(StatusCode::OK, "application/json", body),
        Err(error) => refused(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

fn refused(status: StatusCode, reason: &str) -> Answer {
    Answer::of_bytes(status, "text/plain", format!("{reason}\n"))
}
