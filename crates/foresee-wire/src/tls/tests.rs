// SPDX-License-Identifier: Apache-2.0
//! Errors of files without a certificate or key.

use std::fs;
use std::path::PathBuf;

use super::*;

/// The path of a certificate or key of the tests.
pub(super) fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/tls").join(name)
}

#[test]
fn an_invalid_file_is_named_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.pem");
    fs::write(&empty, "nothing\n").unwrap();
    for (fault, part) in [
        (TlsServer::from_files(&empty, &file("server.key")).unwrap_err(), "empty.pem cannot be used for TLS"),
        (TlsServer::from_files(&file("server.pem"), &empty).unwrap_err(), "no private key"),
        (TlsServer::from_files(&file("ca.pem"), &file("server.key")).unwrap_err(), "TLS cannot be set up"),
        (TlsClient::by_authorities(&folder.path().join("none"), None).unwrap_err(), "no certificates"),
        (TlsClient::by_authorities(&file("ca.pem"), Some("a b")).unwrap_err(), "\"a b\" is not the name"),
    ] {
        assert!(fault.to_string().contains(part), "{fault}");
    }
}
