// SPDX-License-Identifier: Apache-2.0
//! Options of real sockets, and the errors of occupied and unserved ports.

use std::net::{Ipv4Addr, TcpListener};

use super::*;

/// Two ends of one loopback connection, the dialled one first.
pub(crate) fn pair(options: &LinkOptions) -> (Tcp, Tcp) {
    let listener = listen((Ipv4Addr::LOCALHOST, 0).into(), options).unwrap();
    let address = rustix::net::getsockname(&listener).unwrap().try_into().unwrap();
    let wait = Wait::within(Duration::from_secs(10));
    let near = dial(address, options, wait).unwrap();
    assert!(ready(&listener, PollFlags::IN, wait).unwrap());
    (near, accept(&listener, options).unwrap().unwrap())
}

#[cfg(target_os = "linux")]
#[test]
fn both_ends_have_the_options_of_the_table() {
    let (near, far) = pair(&LinkOptions::default());
    assert_eq!((near.peer(), far.peer()), (far.local(), near.local()));
    for tcp in [&near, &far] {
        assert!(sockopt::tcp_nodelay(tcp).unwrap());
        assert!(!sockopt::socket_keepalive(tcp).unwrap());
        set_user_timeout(tcp, Role::Control, Nanos::from_secs(30));
        assert_eq!(sockopt::tcp_user_timeout(tcp).unwrap(), 30_000);
        set_user_timeout(tcp, Role::Data, Nanos::from_secs(30));
        assert_eq!(sockopt::tcp_user_timeout(tcp).unwrap(), 0);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_congestion_control_is_set_or_refused_with_the_offered_names() {
    let reno = LinkOptions { congestion: Some("reno".into()), ..LinkOptions::default() };
    let (near, far) = pair(&reno);
    assert_eq!(sockopt::tcp_congestion(&near).unwrap(), "reno");
    assert_eq!(sockopt::tcp_congestion(&far).unwrap(), "reno");
    let message = pin_congestion(&near, "warp").unwrap_err().to_string();
    assert!(message.contains("\"warp\" is not available here") && message.contains("reno"), "{message}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_dial_leaves_from_the_address_that_was_chosen() {
    let local = Some(Ipv4Addr::new(127, 0, 0, 7).into());
    let (near, far) = pair(&LinkOptions { local, ..LinkOptions::default() });
    assert_eq!(Some(near.local().ip()), local);
    assert_eq!(Some(far.peer().ip()), local);
    let elsewhere = LinkOptions { local: Some([192, 0, 2, 1].into()), ..LinkOptions::default() };
    let message = dial(near.peer(), &elsewhere, Wait::Forever).unwrap_err().to_string();
    assert!(message.contains("192.0.2.1:0 cannot be used here"), "{message}");
}

#[test]
fn errors_name_a_port_in_use_and_a_port_without_listener() {
    let occupied = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = occupied.local_addr().unwrap();
    let message = listen(address, &LinkOptions::default()).unwrap_err().to_string();
    assert!(message.starts_with(&format!("{address} is in use by another process")), "{message}");
    drop(occupied);
    let message = dial(address, &LinkOptions::default(), Wait::Forever).unwrap_err().to_string();
    assert!(message.starts_with(&format!("nothing listens at {address}")), "{message}");
}
