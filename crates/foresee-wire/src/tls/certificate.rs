// SPDX-License-Identifier: Apache-2.0
//! A self-signed certificate for a key that is created at start.
//!
//! TLS requires a certificate, but the secret authenticates the server, so no one checks it. Therefore a few
//! lines of DER suffice: the fields are fixed, and only key and signature differ. The certificate has no
//! meaningful subject.

use ring::signature::{Ed25519KeyPair, KeyPair as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::error::WireError;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const INTEGER: u8 = 0x02;
const BITS: u8 = 0x03;
const UTF8: u8 = 0x0C;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const EXPLICIT_0: u8 = 0xA0;
/// `SEQUENCE { OBJECT IDENTIFIER 1.3.101.112 }`, Ed25519, RFC 8410.
const ED25519: [u8; 7] = [SEQUENCE, 5, 0x06, 3, 0x2B, 0x65, 0x70];
/// `OBJECT IDENTIFIER 2.5.4.3`, the common name.
const COMMON_NAME: [u8; 5] = [0x06, 3, 0x55, 0x04, 0x03];

/// Create a key and its certificate.
pub(super) fn draw() -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), WireError> {
    let random = ring::rand::SystemRandom::new();
    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&random).map_err(|_| WireError::NoRandom)?;
    let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).map_err(|_| WireError::NoRandom)?;
    let certificate = certificate(&pair);
    let key = PrivatePkcs8KeyDer::from(pkcs8.as_ref().to_vec());
    Ok((CertificateDer::from(certificate), PrivateKeyDer::from(key)))
}

/// `Certificate` of RFC 5280, section 4.1, version 3, without extensions, valid from 2020 to the latest date.
fn certificate(pair: &Ed25519KeyPair) -> Vec<u8> {
    let name = tlv(SEQUENCE, &tlv(SET, &tlv(SEQUENCE, &[&COMMON_NAME[..], &tlv(UTF8, b"foresee")].concat())));
    let validity = [tlv(UTC_TIME, b"200101000000Z"), tlv(GENERALIZED_TIME, b"99991231235959Z")].concat();
    let body = [
        tlv(EXPLICIT_0, &tlv(INTEGER, &[2])),
        tlv(INTEGER, &[1]),
        ED25519.to_vec(),
        name.clone(),
        tlv(SEQUENCE, &validity),
        name,
        tlv(SEQUENCE, &[&ED25519[..], &bits(pair.public_key().as_ref())].concat()),
    ];
    let body = tlv(SEQUENCE, &body.concat());
    let signature = bits(pair.sign(&body).as_ref());
    tlv(SEQUENCE, &[&body[..], &ED25519, &signature].concat())
}

/// Tag, length and value; for lengths below 2^16.
fn tlv(tag: u8, value: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(value.len()).expect("a short certificate").to_be_bytes();
    let head: &[u8] = match (high, low) {
        (0, 0..128) => &[tag, low],
        (0, _) => &[tag, 0x81, low],
        _ => &[tag, 0x82, high, low],
    };
    [head, value].concat()
}

/// A bit string of whole bytes.
fn bits(bytes: &[u8]) -> Vec<u8> {
    tlv(BITS, &[&[0], bytes].concat())
}
