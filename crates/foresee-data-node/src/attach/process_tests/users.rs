// SPDX-License-Identifier: Apache-2.0
//! Peers of other users. Only root can become one, so other users test the rule alone, in the tests of credentials.

use super::lifetime::Forked;
use super::*;

const STRANGER: u32 = 1;
const ALLOWED: u32 = 12345;

/// Run `action` in a forked child as user `uid`.
fn as_user(uid: u32, action: impl FnOnce()) -> Forked {
    Forked::start(|| {
        // SAFETY: no pointer is passed.
        assert_eq!(unsafe { libc::setuid(uid) }, 0);
        action();
    })
}

fn is_root_alone(test: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        println!("not root: the rule is checked by the unit tests of credentials");
        return false;
    }
    is_alone(test)
}

#[test]
fn a_consumer_of_another_user_is_refused_unless_allowed() {
    if !is_root_alone("users::a_consumer_of_another_user_is_refused_unless_allowed") {
        return;
    }
    let mut rig = Rig::with(&[ALLOWED], WATCHDOG);
    let address = rig.address.clone();
    let stranger = as_user(STRANGER, || {
        let untrusted = connect(&address).unwrap_err();
        assert!(matches!(untrusted, NodeError::OtherUid { uid: 0, ours: STRANGER }));
        let refused = connect_trusting(&address, &[0]).unwrap_err();
        assert!(matches!(refused, NodeError::Refused { code: RefusalCode::User, .. }));
        assert!(refused.to_string().contains("uid 1"), "{refused}");
    });
    while rig.listener.refused() < 2 {
        assert!(rig.listener.accept(Duration::from_millis(10)).unwrap().is_none());
    }
    stranger.join();
    let allowed = as_user(ALLOWED, || {
        connect_trusting(&address, &[0]).unwrap();
    });
    assert_eq!(rig.accept(1).credentials().uid, ALLOWED);
    allowed.join();
}

#[test]
fn a_private_socket_is_not_permitted_to_another_user() {
    if !is_root_alone("users::a_private_socket_is_not_permitted_to_another_user") {
        return;
    }
    let rig = Rig::new();
    as_user(STRANGER, || {
        let refused = connect_trusting(&rig.address, &[0]).unwrap_err();
        assert!(matches!(refused, NodeError::NotPermitted { .. }), "{refused}");
    })
    .join();
}

#[test]
fn a_host_of_another_user_gets_nothing() {
    if !is_root_alone("users::a_host_of_another_user_gets_nothing") {
        return;
    }
    let dir = private_dir();
    let address = NodeAddress::explicit(dir.path().join("node.sock")).unwrap();
    std::os::unix::fs::chown(dir.path(), Some(STRANGER), None).unwrap();
    let host = as_user(STRANGER, || {
        let mut listener = NodeListener::bind(&address, options()).unwrap();
        assert!(listener.accept(WATCHDOG).unwrap().is_none(), "it got a greeting");
    });
    foresee_testkit::wait_until("the host listens", || {
        matches!(connect(&address), Err(NodeError::OtherUid { uid: STRANGER, ours: 0 }))
    });
    host.kill();
}

#[test]
fn a_host_of_the_owner_of_a_named_directory_is_trusted() {
    if !is_root_alone("users::a_host_of_the_owner_of_a_named_directory_is_trusted") {
        return;
    }
    // Everyone can create names in the usual directory of temporary files, but only root here.
    let dir = tempfile::tempdir_in("/run").unwrap();
    open_to_all(dir.path());
    std::os::unix::fs::chown(dir.path(), Some(STRANGER), None).unwrap();
    let address = NodeAddress::explicit(dir.path().join("node.sock")).unwrap();
    let host = as_user(STRANGER, || {
        let listening = ListenerOptions { allow_uids: vec![0], hello_timeout: WATCHDOG };
        let mut listener = NodeListener::bind(&address, listening).unwrap();
        let request = loop {
            if let Some(Incoming::Attach(request)) = listener.accept(WATCHDOG).unwrap() {
                break request;
            }
        };
        request.accept(&slab(), facts(1)).unwrap();
    });
    foresee_testkit::wait_until("the host listens", || {
        matches!(connect(&address), Err(NodeError::OtherUid { uid: STRANGER, ours: 0 }))
    });
    assert_eq!(address.trusted_uids(), [STRANGER]);
    let connection = connect_trusting(&address, &address.trusted_uids()).unwrap();
    assert_eq!(connection.welcome().consumer, 1);
    host.join();
}
