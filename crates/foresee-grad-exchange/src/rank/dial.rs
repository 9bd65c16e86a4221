// SPDX-License-Identifier: Apache-2.0
//! Attempts to reconnect to a server, each in a thread of its own.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foresee_grad_queue::ServerId;
use foresee_grad_session::DialFault;
use foresee_units::Nanos;
use foresee_wire::{FaultCode, FrameFault, Hello, WireError, dial};

use super::connect::ConnectionPair;
use super::state::RankState;
use super::{ExchangeError, RankCore};
use crate::sync::spawn;

impl RankCore {
    /// Start an attempt that takes no longer than `within`, and ends at `until`.
    pub(super) fn dial(
        self: &Arc<Self>,
        state: &mut RankState,
        server: ServerId,
        within: Nanos,
        until: Nanos,
    ) -> Result<(), ExchangeError> {
        let reader = state.links.get_mut(usize::from(server.0)).and_then(|link| link.reader.take());
        let core = Arc::clone(self);
        let attempt = move || {
            let fail = |fault, why: &str| {
                core.report(|session, now| session.handle_not_connected(server, fault, why, now));
            };
            // Only once its reader has ended may another one read the packets that it had begun.
            if reader.is_some_and(|reader| reader.join().is_err()) {
                return fail(DialFault::Permanent, "the thread that read its sums panicked");
            }
            let soon = Instant::now() + Duration::from(within);
            let last = core.start.checked_add(until.into()).map_or(soon, |last| last.min(soon));
            let once = |address, hello: &Hello, secret: &_, options: &_, wait| {
                dial(address, hello.clone(), secret, options, wait)
            };
            match ConnectionPair::dial(&core.options, core.process, server, last, once) {
                Ok(pair) => core.connected(pair),
                Err(why) => match fault(&why) {
                    // The wire's remedy is to start it first, but it was up before.
                    DialFault::NotListening => {
                        fail(DialFault::NotListening, "nothing listens there any more");
                    }
                    fault => fail(fault, &why.to_string()),
                },
            }
        };
        spawn(format!("foresee-dial-{}-{server}", self.options.rank.0), attempt)?;
        Ok(())
    }

    /// Replace lost connections by new ones.
    fn connected(self: &Arc<Self>, pair: ConnectionPair) {
        let mut state = self.lock();
        if let Err(why) = self.reconnect(&mut state, pair) {
            state.fail(why);
        }
        self.perform_actions(&mut state);
        drop(state);
        self.changed.notify_all();
    }

    fn reconnect(self: &Arc<Self>, state: &mut RankState, pair: ConnectionPair) -> Result<(), ExchangeError> {
        let (server, process) = (pair.server, pair.process());
        let Some(number) = state.session.begin_pair(server) else { return Ok(()) };
        let link = self.attach(pair, number)?;
        if let Some(plan) = state.session.plan()
            && let Some(bytes) = NonZeroU32::new(plan.config().packet_bytes)
        {
            link.interface.set_packet_bytes(bytes);
        }
        state.links[usize::from(server.0)] = link;
        state.session.handle_connected(server, process, self.now());
        Ok(())
    }
}

/// Whether a later attempt may succeed.
fn fault(why: &ExchangeError) -> DialFault {
    let ExchangeError::Server { why, .. } = why else { return DialFault::Temporary };
    match &**why {
        WireError::ConnectionRefused { .. } => DialFault::NotListening,
        WireError::Version { .. }
        | WireError::SecretDiffers { .. }
        | WireError::TlsMismatch { .. }
        | WireError::Malformed { fault: FrameFault::Magic { .. } | FrameFault::Version { .. }, .. } => {
            DialFault::Permanent
        }
        WireError::Denied { fault, .. } if !matches!(fault.code, FaultCode::Busy | FaultCode::Closing) => {
            DialFault::Permanent
        }
        _ => DialFault::Temporary,
    }
}

#[cfg(test)]
mod tests {
    use foresee_wire::Fault;

    use super::*;

    #[test]
    fn another_secret_or_version_at_the_address_of_a_lost_server_is_permanent() {
        let peer = "127.0.0.1:9".parse().unwrap();
        let fault = |why| fault(&ExchangeError::Server { server: 0, address: peer, why: Arc::new(why) });
        let denied = |code| WireError::Denied { peer, fault: Box::new(Fault::new(code, "no")) };
        let version = FrameFault::Version { found: 200 };
        let permanent = [
            WireError::SecretDiffers { peer },
            WireError::Malformed { peer, fault: version },
            denied(FaultCode::Plan),
        ];
        for why in permanent {
            assert_eq!(fault(why), DialFault::Permanent);
        }
        assert_eq!(fault(WireError::ConnectionRefused { peer }), DialFault::NotListening);
        for why in [denied(FaultCode::Busy), denied(FaultCode::Closing), WireError::Ended { peer }] {
            assert_eq!(fault(why), DialFault::Temporary);
        }
    }
}
