// SPDX-License-Identifier: Apache-2.0
//! Right and wrong secrets, versions and jobs; unauthenticated peers, and a man in the middle.

use std::io::IoSlice;
use std::time::Duration;

use foresee_testkit::pause;

use super::*;
use crate::control::FaultCode;
use crate::frame::{HEADER_BYTES, MAGIC};
use crate::hello::tests::hello;
use crate::socket::process_tests::pair;
use crate::transport::process_tests::soon;

const WELCOME: Welcome = Welcome { session: 7, generation: 1, capabilities: 0 };

fn secret() -> Secret {
    Secret::from_text("the secret of this job").unwrap()
}

fn other_secret() -> Secret {
    Secret::from_text("the secret of that job").unwrap()
}

fn reception(tls: Option<TlsServer>) -> Acceptor {
    let keys: Keys = Arc::new(|hello| (hello.job == "resnet/7").then(secret));
    Acceptor { keys, tls, timeout: Nanos::from_secs(5) }
}

/// Both ends of one plain connection.
fn ends() -> (Arc<Tcp>, Arc<Tcp>) {
    let (near, far) = pair(&LinkOptions::default());
    (Arc::new(near), Arc::new(far))
}

type Outcome = (Result<Welcome, WireError>, Result<Arrival, WireError>);

/// A modified dialler on `near` against an honest listener on `far`.
fn meet(
    (near, far): (Arc<Tcp>, Arc<Tcp>),
    reception: &Acceptor,
    dialler: impl FnOnce(Arc<Tcp>) -> Result<Welcome, WireError> + Send,
) -> Outcome {
    std::thread::scope(|scope| {
        let dialler = scope.spawn(|| dialler(near));
        let mut arrival = reception.receive(far, soon());
        if let Ok(arrival) = &mut arrival {
            arrival.answer(&Answer::Welcome(WELCOME), soon()).unwrap();
        }
        (dialler.join().unwrap(), arrival)
    })
}

fn honest(near: Arc<Tcp>, hello: &Hello, secret: &Secret) -> Result<Welcome, WireError> {
    authenticate(&mut Halves::new(near), None, hello, secret, soon()).map(|(welcome, _)| welcome)
}

#[test]
fn two_ends_with_one_secret_authenticate_each_other() {
    let (welcome, arrival) = meet(ends(), &reception(None), |near| honest(near, &hello(), &secret()));
    assert_eq!(welcome.unwrap(), WELCOME);
    assert_eq!(arrival.unwrap().hello(), &hello());
}

#[test]
fn a_wrong_secret_and_an_unknown_job_are_indistinguishable_and_reported_at_both_ends() {
    let unknown = Hello { job: "elsewhere".into(), ..hello() };
    for (hello, secret) in [(hello(), other_secret()), (unknown, secret())] {
        let ends = ends();
        let (near, far) = (ends.0.peer(), ends.1.peer());
        let (welcome, arrival) = meet(ends, &reception(None), |near| honest(near, &hello, &secret));
        let message = welcome.unwrap_err().to_string();
        assert!(message.starts_with(&format!("the secret of {near} differs from the one here")), "{message}");
        assert!(message.contains("FORESEE_TOKEN"));
        let message = arrival.unwrap_err().to_string();
        assert!(message.starts_with(&format!("the secret of {far} differs")), "{message}");
    }
}

#[test]
fn a_listener_without_the_secret_is_rejected() {
    let (near, far) = ends();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The listener accepts any proof, and answers with a proof of another secret.
            let mut halves = Halves::new(far);
            let greeting = receive_frame(&mut halves, Kind::Hello, soon()).unwrap();
            send_frame(&mut halves, Kind::Challenge, &[1; NONCE], soon()).unwrap();
            receive_frame(&mut halves, Kind::Proof, soon()).unwrap();
            let mut answer = to_bytes(Kind::Welcome, &Answer::Welcome(WELCOME)).unwrap();
            let transcript = Transcript { greeting: &greeting, nonce: [1; NONCE], binding: None };
            answer.extend(transcript.sign(&other_secret(), Side::Listener, &answer).as_ref());
            send_frame(&mut halves, Kind::Welcome, &answer, soon()).unwrap();
        });
        assert!(matches!(honest(near, &hello(), &secret()), Err(WireError::SecretDiffers { .. })));
    });
}

#[test]
fn a_reflected_proof_is_rejected() {
    let (near, far) = ends();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut halves = Halves::new(far);
            receive_frame(&mut halves, Kind::Hello, soon()).unwrap();
            send_frame(&mut halves, Kind::Challenge, &[1; NONCE], soon()).unwrap();
            let proof = receive_frame(&mut halves, Kind::Proof, soon()).unwrap();
            // Alone, and after an answer.
            send_frame(&mut halves, Kind::Welcome, &proof, soon()).unwrap();
        });
        assert!(matches!(honest(near, &hello(), &secret()), Err(WireError::SecretDiffers { .. })));
    });
}

#[test]
fn a_replayed_handshake_is_rejected() {
    // Captured between two honest ends.
    let (near, far) = ends();
    let (greeting, proof) = std::thread::scope(|scope| {
        scope.spawn(|| honest(near, &hello(), &secret()));
        let mut halves = Halves::new(far);
        let greeting = receive_frame(&mut halves, Kind::Hello, soon()).unwrap();
        send_frame(&mut halves, Kind::Challenge, &[1; NONCE], soon()).unwrap();
        let proof = receive_frame(&mut halves, Kind::Proof, soon()).unwrap();
        let transcript = Transcript { greeting: &greeting, nonce: [1; NONCE], binding: None };
        assert!(transcript.proves(&secret(), Side::Dialler, &[], &proof), "what was recorded is genuine");
        (greeting, proof)
    });
    let (replayed, arrival) = meet(ends(), &reception(None), |near| {
        let mut halves = Halves::new(near);
        send_frame(&mut halves, Kind::Hello, &greeting, soon())?;
        let nonce = receive_frame(&mut halves, Kind::Challenge, soon())?;
        assert_ne!(nonce, [1; NONCE]);
        send_frame(&mut halves, Kind::Proof, &proof, soon())?;
        receive_frame(&mut halves, Kind::Welcome, soon()).map(|_| WELCOME)
    });
    assert!(matches!(replayed, Err(WireError::SecretDiffers { .. })));
    assert!(matches!(arrival, Err(WireError::SecretDiffers { .. })));
}

#[test]
fn a_hello_or_a_welcome_changed_in_transit_fails() {
    // A man in the middle may change the bytes that no proof covers.
    for (kind, expected) in [(Kind::Hello, false), (Kind::Welcome, false), (Kind::Bye, true)] {
        let (near, outer) = ends();
        let (inner, far) = ends();
        let reception = reception(None);
        std::thread::scope(|scope| {
            scope.spawn(|| between(Halves::new(outer), Halves::new(inner), kind));
            let (welcome, _) = meet((near, far), &reception, |near| honest(near, &hello(), &secret()));
            assert_eq!(welcome.is_ok(), expected, "{kind} was changed: {welcome:?}");
        });
    }
}

/// Relay a handshake, and change a bit of the frame of one kind.
fn between(mut outer: Halves, mut inner: Halves, changed: Kind) {
    let pass = |from: &mut Halves, to: &mut Halves, kind| {
        let mut body = receive_frame(from, kind, soon()).ok()?;
        if kind == changed {
            // A byte of the rank or of the session, which leave the message decodable.
            let at = if kind == Kind::Hello { body.len() - 2 } else { 1 };
            body[at] ^= 1;
        }
        send_frame(to, kind, &body, soon()).ok()
    };
    let _ = pass(&mut outer, &mut inner, Kind::Hello)
        .and_then(|()| pass(&mut inner, &mut outer, Kind::Challenge))
        .and_then(|()| pass(&mut outer, &mut inner, Kind::Proof))
        .and_then(|()| pass(&mut inner, &mut outer, Kind::Welcome));
}

fn encrypted(near: Arc<Tcp>, secret: &Secret) -> Result<Welcome, WireError> {
    let tls = Arc::new(Tls::dial(near, &TlsClient::by_secret().unwrap(), soon())?);
    let binding = tls.binding();
    assert!(binding.is_some());
    authenticate(&mut Halves::new(tls), binding, &hello(), secret, soon()).map(|(welcome, _)| welcome)
}

#[test]
fn under_tls_two_ends_authenticate_each_other_and_strangers_fail() {
    let reception = reception(Some(TlsServer::drawn().unwrap()));
    let (welcome, arrival) = meet(ends(), &reception, |near| encrypted(near, &secret()));
    assert_eq!(welcome.unwrap(), WELCOME);
    assert_eq!(arrival.unwrap().hello(), &hello());
    let (welcome, arrival) = meet(ends(), &reception, |near| encrypted(near, &other_secret()));
    assert!(matches!(welcome, Err(WireError::SecretDiffers { .. })));
    assert!(matches!(arrival, Err(WireError::SecretDiffers { .. })));
}

#[test]
fn under_tls_a_man_in_the_middle_fails_although_any_certificate_is_accepted() {
    let (near, outer) = ends();
    let (inner, far) = ends();
    let (mine, theirs) = (TlsServer::drawn().unwrap(), reception(Some(TlsServer::drawn().unwrap())));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let outer = Tls::accept(outer, &mine, soon()).unwrap();
            let inner = Tls::dial(inner, &TlsClient::by_secret().unwrap(), soon()).unwrap();
            // Relayed unchanged: only the two sessions differ.
            between(Halves::new(Arc::new(outer)), Halves::new(Arc::new(inner)), Kind::Bye);
        });
        let (welcome, arrival) = meet((near, far), &theirs, |near| encrypted(near, &secret()));
        assert!(welcome.is_err());
        assert!(matches!(arrival, Err(WireError::SecretDiffers { .. })), "{arrival:?}");
    });
}

#[test]
fn tls_at_only_one_end_is_reported_at_both() {
    let (welcome, arrival) = meet(ends(), &reception(None), |near| encrypted(near, &secret()));
    assert!(matches!(welcome, Err(WireError::TlsMismatch { there: false, .. })), "{welcome:?}");
    assert!(matches!(arrival, Err(WireError::TlsMismatch { there: true, .. })), "{arrival:?}");

    let tls = reception(Some(TlsServer::drawn().unwrap()));
    let (welcome, arrival) = meet(ends(), &tls, |near| honest(near, &hello(), &secret()));
    let message = welcome.unwrap_err().to_string();
    assert!(message.contains("uses TLS, which is off here; start both ends with TLS"), "{message}");
    assert!(matches!(arrival, Err(WireError::TlsMismatch { there: false, .. })), "{arrival:?}");
}

/// Send raw bytes to a listener; return its answer and its error.
fn stranger(bytes: &[u8]) -> (Vec<u8>, WireError) {
    let (near, far) = ends();
    std::thread::scope(|scope| {
        let received = scope.spawn(|| {
            near.send(&[IoSlice::new(bytes)], soon()).unwrap();
            near.finish();
            let (mut received, mut part) = (Vec::new(), [0; 1000]);
            loop {
                match near.receive(&mut [std::io::IoSliceMut::new(&mut part)], soon(), false) {
                    Ok(0) | Err(_) => return received,
                    Ok(count) => received.extend(&part[..count]),
                }
            }
        });
        let fault = reception(None).receive(far, soon()).unwrap_err();
        (received.join().unwrap(), fault)
    })
}

fn frame(kind: Kind, body: &[u8]) -> Vec<u8> {
    let header = Header::control(kind, 0, u32::try_from(body.len()).unwrap()).sealed(body);
    [&header.encode().unwrap()[..], body].concat()
}

#[test]
fn another_version_is_reported_at_both_ends() {
    let mut newer = frame(Kind::Hello, &[0; 700]);
    newer[1] = 2;
    let (received, fault) = stranger(&newer);
    let message = fault.to_string();
    assert!(
        message.contains("has version 2, and this build has version 1; install one version on both"),
        "{message}"
    );
    // The answer arrives, although most of the sent bytes were never read.
    let header = Header::decode(received[..HEADER_BYTES].try_into().unwrap()).unwrap();
    let Message::Error(fault) = Message::decode(&header, &received[HEADER_BYTES..]).unwrap() else {
        panic!("no reason came")
    };
    assert_eq!(fault.code, FaultCode::Version);
    assert!(fault.text.contains("version 2 there, version 1 here"));

    let (near, far) = ends();
    far.send(&[IoSlice::new(&newer)], soon()).unwrap();
    let message = honest(near, &hello(), &secret()).unwrap_err();
    assert!(matches!(message, WireError::Version { theirs: 2, ours: 1, .. }), "{message}");
}

#[test]
fn a_version_changed_only_in_the_header_is_detected() {
    let greeting = Greeting { version: 2, nonce: [0; 32], hello: hello() };
    let (_, fault) = stranger(&frame(Kind::Hello, &to_bytes(Kind::Hello, &greeting).unwrap()));
    assert!(matches!(fault, WireError::Version { theirs: 2, ours: 1, .. }), "{fault}");
}

#[test]
fn strangers_receive_nothing_that_depends_on_the_secret() {
    let greeting = Greeting { version: VERSION, nonce: [3; 32], hello: hello() };
    let greeting = to_bytes(Kind::Hello, &greeting).unwrap();
    let proofless = frame(Kind::Hello, &greeting);
    let (received, fault) = stranger(&proofless);
    assert!(matches!(fault, WireError::Ended { .. }), "{fault}");
    assert_eq!(received.len(), HEADER_BYTES + NONCE, "a CHALLENGE, and nothing more");
    let (again, _) = stranger(&proofless);
    assert_ne!(received, again, "which is a random number");
    for proof in [&[][..], &[0; PROOF], &[0; PROOF + 1]] {
        let (received, fault) = stranger(&[&proofless[..], &frame(Kind::Proof, proof)].concat());
        assert!(matches!(fault, WireError::SecretDiffers { .. }), "{fault}");
        assert_eq!(&received[HEADER_BYTES + NONCE + 2..][..1], [Kind::Error as u8]);
    }
}

#[test]
fn garbage_is_refused_at_its_first_byte_and_not_answered() {
    for garbage in [&b"GET / HTTP/1.1\r\nHost: elsewhere\r\n\r\n"[..], &[0; 4000], &[0xFF; 33]] {
        let (received, fault) = stranger(garbage);
        assert!(matches!(fault, WireError::Malformed { fault: FrameFault::Magic { .. }, .. }), "{fault}");
        assert_eq!(received, b"");
    }
    let (received, fault) = stranger(&[MAGIC]);
    assert!(matches!(fault, WireError::Cut { missing: 31, .. }), "{fault}");
    assert_eq!(received, b"");
}

#[test]
fn a_long_or_unexpected_frame_before_authentication_is_refused_unread() {
    let mut long = frame(Kind::Plan, &[0; 2000]);
    long[20..24].copy_from_slice(&(1_u32 << 20).to_le_bytes());
    let message = stranger(&long).1.to_string();
    assert!(message.contains("PLAN announces 1048576 bytes; the maximum is 1024"), "{message}");
    let message = stranger(&frame(Kind::Ping, &[0])).1.to_string();
    assert!(message.contains("received PING instead of HELLO"), "{message}");
    let message = stranger(&frame(Kind::Hello, &[0; 900])).1.to_string();
    assert!(message.contains("HELLO has an invalid body"), "{message}");
}

#[test]
fn a_slow_unauthenticated_peer_is_disconnected_at_one_deadline() {
    let (near, far) = ends();
    // Each byte alone would be in time; all of them take 18 s.
    let bytes = frame(Kind::Hello, &[0; 900]);
    std::thread::scope(|scope| {
        let sent = scope.spawn(|| {
            let send = |byte: &[u8]| {
                pause(Duration::from_millis(20));
                near.send(&[IoSlice::new(byte)], soon()).is_ok()
            };
            bytes.chunks(1).take_while(|byte| send(byte)).count()
        });
        let fault = reception(None).receive(Arc::clone(&far), Wait::within(Duration::from_millis(200)));
        assert!(fault.unwrap_err().is_late());
        far.shutdown();
        assert!(sent.join().unwrap() < bytes.len(), "it was cut off before its last byte");
    });
}

#[test]
fn a_refusal_arrives_with_its_reason_and_is_authenticated() {
    let (near, far) = ends();
    let reception = reception(None);
    std::thread::scope(|scope| {
        let dialler = scope.spawn(|| honest(near, &hello(), &secret()));
        let arrival = reception.receive(far, soon()).unwrap();
        arrival.refuse(Fault::new(FaultCode::Busy, "rank 3 is here already"), soon()).unwrap();
        let WireError::Denied { fault, .. } = dialler.join().unwrap().unwrap_err() else {
            panic!("another error")
        };
        assert_eq!((fault.code, &fault.text[..]), (FaultCode::Busy, "rank 3 is here already"));
    });
}
