// SPDX-License-Identifier: Apache-2.0
//! Certificates from files and self-signed ones, authenticated by authorities and by the secret.

use std::io::IoSlice;

use super::tests::file;
use super::*;
use crate::frame::MAGIC;
use crate::socket::LinkOptions;
use crate::socket::process_tests::pair as tcp_pair;
use crate::transport::process_tests::{Pair, soon};
use crate::transport::{Transport, Wait};

/// An encrypted stream.
pub(crate) fn pair() -> Pair {
    let (near, far) = agree(&TlsClient::by_secret().unwrap(), &TlsServer::drawn().unwrap());
    (Arc::new(near.unwrap()), Arc::new(far.unwrap()))
}

fn agree(client: &TlsClient, server: &TlsServer) -> (Result<Tls, WireError>, Result<Tls, WireError>) {
    let (near, far) = tcp_pair(&LinkOptions::default());
    std::thread::scope(|scope| {
        let far = scope.spawn(|| Tls::accept(Arc::new(far), server, soon()));
        (Tls::dial(Arc::new(near), client, soon()), far.join().unwrap())
    })
}

fn from_files() -> TlsServer {
    TlsServer::from_files(&file("server.pem"), &file("server.key")).unwrap()
}

#[test]
fn both_ends_of_a_session_have_the_same_binding_and_two_sessions_differ() {
    let ((near, far), (other, _)) = (pair(), pair());
    assert!(near.binding().is_some());
    assert_eq!(near.binding(), far.binding());
    assert_ne!(near.binding(), other.binding());
}

#[test]
fn an_authority_verifies_a_server_by_its_address_or_its_name() {
    for name in [None, Some("foresee.test")] {
        let client = TlsClient::by_authorities(&file("ca.pem"), name).unwrap();
        let (near, far) = agree(&client, &from_files());
        assert_eq!(near.unwrap().binding(), far.unwrap().binding());
    }
}

#[test]
fn authentication_by_secret_accepts_a_certificate_from_files() {
    let (near, far) = agree(&TlsClient::by_secret().unwrap(), &from_files());
    assert_eq!(near.unwrap().binding(), far.unwrap().binding());
}

#[test]
fn an_authority_refuses_another_name_and_a_self_signed_certificate_and_both_ends_get_the_reason() {
    let other = TlsClient::by_authorities(&file("ca.pem"), Some("elsewhere.test")).unwrap();
    let (near, far) = agree(&other, &from_files());
    let message = near.unwrap_err().to_string();
    assert!(message.starts_with("TLS with 127.0.0.1:") && message.contains("elsewhere.test"), "{message}");
    assert!(far.unwrap_err().to_string().contains("alert"));

    let known = TlsClient::by_authorities(&file("ca.pem"), None).unwrap();
    let (near, far) = agree(&known, &TlsServer::drawn().unwrap());
    assert!(matches!(near, Err(WireError::Tls { .. })), "{near:?}");
    assert!(matches!(far, Err(WireError::Tls { .. })), "{far:?}");
}

#[test]
fn a_peer_that_answers_without_tls_is_reported() {
    let (near, far) = tcp_pair(&LinkOptions::default());
    std::thread::scope(|scope| {
        scope.spawn(|| far.send(&[IoSlice::new(&[MAGIC; 64])], soon()).unwrap());
        let message = Tls::dial(Arc::new(near), &TlsClient::by_secret().unwrap(), soon()).unwrap_err();
        assert!(matches!(message, WireError::TlsMismatch { there: false, .. }), "{message}");
    });
}

#[test]
fn a_silent_peer_is_late_and_one_that_disconnects_is_a_cut() {
    let (near, far) = tcp_pair(&LinkOptions::default());
    let near = Arc::new(near);
    let client = TlsClient::by_secret().unwrap();
    let wait = Wait::within(std::time::Duration::from_millis(50));
    assert!(Tls::dial(Arc::clone(&near), &client, wait).unwrap_err().is_late());
    drop(far);
    let message = Tls::dial(near, &client, soon()).unwrap_err();
    assert!(matches!(message, WireError::Cut { .. } | WireError::Io { .. }), "{message}");
}

#[test]
fn bytes_changed_in_transit_are_an_error_and_never_returned() {
    let (near, far) = pair();
    // Past the encryption: a TLS message that no end of the session encrypted.
    let forged = [&[23, 3, 3, 0, 32][..], &[9; 32]].concat();
    near.tcp().send(&[IoSlice::new(&forged)], soon()).unwrap();
    let fault = far.receive(&mut [std::io::IoSliceMut::new(&mut [0; 8])], soon(), false).unwrap_err();
    assert!(fault.to_string().contains("decrypt"), "{fault}");
}
