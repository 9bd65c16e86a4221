// SPDX-License-Identifier: Apache-2.0
//! Translation of errors between the processes of one node, so that each raises the same.
//!
//! A wire fault has a rank but no address: that of a lost server precedes the text, separated by a space.

use std::sync::Arc;

use foresee_units::Rank;
use foresee_wire::{Fault, FaultCode, WireError};

use crate::error::{ExchangeError, LostPeer};

/// Translate an error to the fault that is sent.
pub(super) fn to_fault(why: &ExchangeError) -> Fault {
    let text = why.to_string();
    match why {
        ExchangeError::Setting { .. } | ExchangeError::Disagree(_) => Fault::new(FaultCode::Plan, text),
        ExchangeError::RankLost { rank, .. }
        | ExchangeError::NodeFailed { lost: LostPeer::Rank(rank), .. } => {
            Fault { rank: Some(rank.0), ..Fault::new(FaultCode::Lost, text) }
        }
        ExchangeError::Server { address, .. }
        | ExchangeError::ServerLost { address, .. }
        | ExchangeError::Refused { address, .. }
        | ExchangeError::NodeFailed { lost: LostPeer::Server(address), .. } => {
            Fault::new(FaultCode::Lost, format!("{address} {text}"))
        }
        _ => Fault::new(FaultCode::Other, text),
    }
}

/// Translate a received fault.
pub(super) fn from_fault(fault: Fault) -> ExchangeError {
    let failed = |lost, text| ExchangeError::NodeFailed { lost, text };
    match (fault.code, fault.rank) {
        (FaultCode::Plan, _) => ExchangeError::Disagree(fault.text),
        (FaultCode::Lost, Some(rank)) => failed(LostPeer::Rank(Rank(rank)), fault.text),
        (FaultCode::Lost, None) => {
            let server = fault.text.split_once(' ');
            match server.and_then(|(address, rest)| Some((address.parse().ok()?, rest.to_owned()))) {
                Some((address, rest)) => failed(LostPeer::Server(address), rest),
                None => failed(LostPeer::Unknown, fault.text),
            }
        }
        _ => failed(LostPeer::Unknown, fault.text),
    }
}

/// The error of a rank that could not join its leader, which is in the process of rank `first`.
pub(super) fn join_error(first: Rank, why: WireError) -> ExchangeError {
    match why {
        WireError::Denied { fault, .. } => from_fault(*fault),
        WireError::ConnectionRefused { .. }
        | WireError::Late { .. }
        | WireError::Cut { .. }
        | WireError::Ended { .. } => {
            let why = format!("it is the leader of this node, and cannot be reached: {why}");
            ExchangeError::RankLost { rank: first, why, missing: "no plan was agreed on".into() }
        }
        why => ExchangeError::System(Arc::new(why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_that_cannot_be_reached_is_a_lost_rank() {
        let peer = "127.0.0.1:9".parse().unwrap();
        let why = join_error(Rank(4), WireError::ConnectionRefused { peer });
        assert!(matches!(why, ExchangeError::RankLost { rank: Rank(4), .. }), "{why}");
        let denied = Box::new(Fault::new(FaultCode::Plan, "pass hierarchical=False on all"));
        let why = join_error(Rank(4), WireError::Denied { peer, fault: denied });
        assert!(matches!(why, ExchangeError::Disagree(_)), "{why}");
    }

    #[test]
    fn a_forwarded_error_keeps_its_text_and_its_lost_peer() {
        let missing = || "nothing of round 3 was missing".to_owned();
        let address = "[::1]:29600".parse().unwrap();
        let errors = [
            (
                ExchangeError::RankLost {
                    rank: Rank(7),
                    why: "it was silent for 30 s".into(),
                    missing: missing(),
                },
                Some(LostPeer::Rank(Rank(7))),
            ),
            (
                ExchangeError::ServerLost {
                    server: 1,
                    address,
                    why: "it left: done".into(),
                    missing: missing(),
                },
                Some(LostPeer::Server(address)),
            ),
            (ExchangeError::Closed, Some(LostPeer::Unknown)),
            (ExchangeError::Disagree("rank 0 and rank 1 differ".into()), None),
        ];
        for (error, lost) in errors {
            let once = from_fault(to_fault(&error));
            assert_eq!(once.to_string(), error.to_string());
            let found = if let ExchangeError::NodeFailed { lost, .. } = &once { Some(*lost) } else { None };
            assert_eq!(found, lost);
            assert_eq!(from_fault(to_fault(&once)).to_string(), error.to_string(), "from process to process");
        }
    }
}
