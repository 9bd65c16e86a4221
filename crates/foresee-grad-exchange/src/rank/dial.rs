// SPDX-License-Identifier: Apache-2.0
//! Attempts to connect to a server again, each in a thread of its own, and the connections that they give.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use foresee_grad_queue::ServerId;
use foresee_grad_session::DialFault;
use foresee_units::Nanos;
use foresee_wire::{FaultCode, FrameFault, WireError};

use super::connect::{self, Pair, system};
use super::state::State;
use super::{Core, ExchangeError};

impl Core {
    /// Starts an attempt that takes no longer than `within`, and ends at `until`.
    pub(super) fn dial(
        self: &Arc<Self>,
        state: &mut State,
        server: ServerId,
        within: Nanos,
        until: Nanos,
    ) -> Result<(), ExchangeError> {
        let reader = state.links.get_mut(usize::from(server.0)).and_then(|link| link.reader.take());
        let core = Arc::clone(self);
        let attempt = move || {
            // What it had begun to read, another one may.
            if reader.is_some_and(|reader| reader.join().is_err()) {
                let why = "the thread that read its sums broke";
                return core.not_connected(server, DialFault::Permanent, why);
            }
            let soon = Instant::now() + Duration::from(within);
            let last = core.start.checked_add(until.into()).map_or(soon, |last| last.min(soon));
            match connect::pair(&core.options, core.process, server, last) {
                Ok(pair) => core.connected(pair),
                Err(why) => {
                    let (fault, address) = (fault(&why), core.options.servers[usize::from(server.0)]);
                    let text = match fault {
                        // To start it first is no remedy: it was there.
                        DialFault::NobodyThere => "nothing listens there any more".into(),
                        _ => ExchangeError::Server { server: server.0, address, why }.to_string(),
                    };
                    core.not_connected(server, fault, &text);
                }
            }
        };
        let named = thread::Builder::new().name(format!("foresee-dial-{}-{server}", self.options.rank.0));
        match named.spawn(attempt) {
            Ok(_) => Ok(()),
            Err(why) => Err(system(WireError::System { doing: "starting a thread", why })),
        }
    }

    /// Takes new connections in the place of lost ones.
    fn connected(self: &Arc<Self>, pair: Pair) {
        let mut state = self.lock();
        if let Err(why) = self.connect_again(&mut state, pair) {
            state.fail(why);
        }
        self.settle(&mut state);
        drop(state);
        self.changed.notify_all();
    }

    fn not_connected(self: &Arc<Self>, server: ServerId, fault: DialFault, why: &str) {
        let mut state = self.lock();
        state.machine.handle_not_connected(server, fault, why, self.now());
        self.settle(&mut state);
        drop(state);
        self.changed.notify_all();
    }

    fn connect_again(self: &Arc<Self>, state: &mut State, pair: Pair) -> Result<(), ExchangeError> {
        let (server, process) = (pair.server, pair.process());
        let Some(number) = state.machine.begin_pair(server) else { return Ok(()) };
        let link = self.attach(pair, number)?;
        if let Some(plan) = state.machine.plan()
            && let Some(bytes) = NonZeroU32::new(plan.config().packet_bytes)
        {
            link.interface.packet(bytes);
        }
        state.links[usize::from(server.0)] = link;
        state.machine.handle_connected(server, process, self.now());
        Ok(())
    }
}

/// Whether a later attempt may end better.
fn fault(why: &WireError) -> DialFault {
    match why {
        WireError::ConnectionRefused { .. } => DialFault::NobodyThere,
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
    fn another_secret_or_version_in_the_place_of_a_lost_server_is_permanent() {
        let peer = "127.0.0.1:9".parse().unwrap();
        let denied = |code| WireError::Denied { peer, fault: Box::new(Fault::new(code, "no")) };
        let version = FrameFault::Version { found: 200 };
        let permanent = [
            WireError::SecretDiffers { peer },
            WireError::Malformed { peer, fault: version },
            denied(FaultCode::Plan),
        ];
        for why in permanent {
            assert_eq!(fault(&why), DialFault::Permanent, "{why}");
        }
        assert_eq!(fault(&WireError::ConnectionRefused { peer }), DialFault::NobodyThere);
        for why in [denied(FaultCode::Busy), denied(FaultCode::Closing), WireError::Ended { peer }] {
            assert_eq!(fault(&why), DialFault::Temporary, "{why}");
        }
    }
}
