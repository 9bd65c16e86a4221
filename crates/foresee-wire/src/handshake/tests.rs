// SPDX-License-Identifier: Apache-2.0
//! Bytes that a proof covers, and refusals before a dial.

use super::*;
use crate::hello::Role;
use crate::hello::tests::hello;

fn secret() -> Secret {
    Secret::from_text("the secret of this job").unwrap()
}

#[test]
fn proofs_match_the_format_page() {
    // Computed by another implementation of HMAC-SHA256 from the text of the format's page.
    let proof = |binding, side, answer: &[u8]| {
        let transcript = Transcript { greeting: b"greeting", nonce: [1; NONCE], binding };
        let tag = transcript.sign(&secret(), side, answer);
        let [high, low] =
            [0, 16].map(|at| u128::from_be_bytes(tag.as_ref()[at..at + 16].try_into().unwrap()));
        format!("{high:032x}{low:032x}")
    };
    let dialler = "eebeac0cff78c8def7e0779e8000085faa22be9d63e0cf22e08dd26e242adcc6";
    assert_eq!(proof(None, Side::Dialler, b""), dialler);
    let listener = "ece9060777e9fe871b531330a4b9da7da06d60f64cd2ceb9e6d3b0457087c030";
    assert_eq!(proof(Some([2; 32]), Side::Listener, b"answer"), listener);
}

#[test]
fn no_two_transcripts_have_the_same_bytes() {
    let bytes = |greeting: &[u8], nonce, binding, side, answer: &[u8]| {
        Transcript { greeting, nonce, binding }.bytes(side, answer)
    };
    let all = [
        bytes(b"ab", [0; 32], None, Side::Dialler, b""),
        bytes(b"ab", [0; 32], None, Side::Listener, b""),
        bytes(b"a", [0; 32], None, Side::Dialler, b"b"),
        bytes(b"ab", [1; 32], None, Side::Dialler, b""),
        bytes(b"ab", [0; 32], Some([0; 32]), Side::Dialler, b""),
        bytes(b"", [0; 32], None, Side::Dialler, b"ab"),
    ];
    for (at, one) in all.iter().enumerate() {
        assert!(all[at + 1..].iter().all(|other| one != other));
    }
}

#[test]
fn a_hello_that_no_listener_accepts_is_not_sent() {
    let outside = Hello { rank: 9, role: Role::Control, ..hello() };
    let nowhere = ([127, 0, 0, 1], 1).into();
    let fault = dial(nowhere, outside, &secret(), &DialOptions::default(), Wait::Never).unwrap_err();
    assert!(fault.to_string().contains("rank 9 of 4"), "{fault}");
}
