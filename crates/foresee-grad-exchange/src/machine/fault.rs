// SPDX-License-Identifier: Apache-2.0
//! Errors of an exchange between the processes of one machine, so that each raises the same.
//!
//! A fault of the wire has a rank, and no address: that of a lost server stands before the text, with a space behind it.

use std::sync::Arc;

use foresee_units::Rank;
use foresee_wire::{Fault, FaultCode, WireError};

use crate::error::{ExchangeError, Lost};

/// As it travels.
pub(super) fn told(why: &ExchangeError) -> Fault {
    let text = why.to_string();
    match why {
        ExchangeError::Setting { .. } | ExchangeError::Disagree(_) => Fault::new(FaultCode::Plan, text),
        ExchangeError::RankLost { rank, .. } | ExchangeError::OfMachine { lost: Lost::Rank(rank), .. } => {
            Fault { rank: Some(rank.0), ..Fault::new(FaultCode::Lost, text) }
        }
        ExchangeError::Server { address, .. }
        | ExchangeError::ServerLost { address, .. }
        | ExchangeError::Refused { address, .. }
        | ExchangeError::OfMachine { lost: Lost::Server(address), .. } => {
            Fault::new(FaultCode::Lost, format!("{address} {text}"))
        }
        _ => Fault::new(FaultCode::Other, text),
    }
}

/// What was told.
pub(super) fn heard(fault: Fault) -> ExchangeError {
    match (fault.code, fault.rank) {
        (FaultCode::Plan, _) => ExchangeError::Disagree(fault.text),
        (FaultCode::Lost, Some(rank)) => {
            ExchangeError::OfMachine { lost: Lost::Rank(Rank(rank)), text: fault.text }
        }
        (FaultCode::Lost, None) => {
            let server =
                fault.text.split_once(' ').and_then(|(address, rest)| Some((address.parse().ok()?, rest)));
            match server {
                Some((address, rest)) => {
                    ExchangeError::OfMachine { lost: Lost::Server(address), text: rest.to_owned() }
                }
                None => ExchangeError::OfMachine { lost: Lost::Nobody, text: fault.text },
            }
        }
        _ => ExchangeError::OfMachine { lost: Lost::Nobody, text: fault.text },
    }
}

/// Why a rank could not join the hub in the process of rank `first`.
pub(super) fn unreachable(first: Rank, why: WireError) -> ExchangeError {
    match why {
        WireError::Denied { fault, .. } => heard(*fault),
        WireError::ConnectionRefused { .. }
        | WireError::Late { .. }
        | WireError::Cut { .. }
        | WireError::Ended { .. } => {
            let why = format!("it exchanges for this machine, and cannot be reached: {why}");
            ExchangeError::RankLost { rank: first, why, missing: "no plan was agreed on".into() }
        }
        why => ExchangeError::System(Arc::new(why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_that_cannot_be_reached_is_the_loss_of_its_rank() {
        let peer = "127.0.0.1:9".parse().unwrap();
        let why = unreachable(Rank(4), WireError::ConnectionRefused { peer });
        assert!(matches!(why, ExchangeError::RankLost { rank: Rank(4), .. }), "{why}");
        let denied = Box::new(Fault::new(FaultCode::Plan, "pass hierarchical=False on all"));
        let why = unreachable(Rank(4), WireError::Denied { peer, fault: denied });
        assert!(matches!(why, ExchangeError::Disagree(_)), "{why}");
    }

    #[test]
    fn what_is_passed_on_keeps_its_words_and_whom_it_is_about() {
        let missing = || "nothing of round 3 was missing".to_owned();
        let address = "[::1]:29600".parse().unwrap();
        let errors = [
            (
                ExchangeError::RankLost {
                    rank: Rank(7),
                    why: "it was silent for 30 s".into(),
                    missing: missing(),
                },
                Some(Lost::Rank(Rank(7))),
            ),
            (
                ExchangeError::ServerLost {
                    server: 1,
                    address,
                    why: "it left: done".into(),
                    missing: missing(),
                },
                Some(Lost::Server(address)),
            ),
            (ExchangeError::Closed, Some(Lost::Nobody)),
            (ExchangeError::Disagree("rank 0 and rank 1 differ".into()), None),
        ];
        for (error, lost) in errors {
            let once = heard(told(&error));
            assert_eq!(once.to_string(), error.to_string());
            let found = if let ExchangeError::OfMachine { lost, .. } = &once { Some(*lost) } else { None };
            assert_eq!(found, lost);
            assert_eq!(heard(told(&once)).to_string(), error.to_string(), "from process to process");
        }
    }
}
