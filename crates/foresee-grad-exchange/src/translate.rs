// SPDX-License-Identifier: Apache-2.0
//! Translation between the frames of the wire and the messages of the machines.

use foresee_grad_queue::Round;
use foresee_grad_session as session;
use foresee_grad_session::{RankMessage, Refusal, RefusalCode, ServerMessage};
use foresee_units::Rank;
use foresee_wire as wire;
use foresee_wire::{Fault, FaultCode, Kind, Message};

const _: () = assert!(session::OPEN_ROUNDS_MAX == wire::OPEN_ROUNDS_MAX, "both ends bound the same list");

/// A message of a rank.
///
/// # Errors
/// The kind of one that is not for servers.
pub(crate) fn rank_message(message: Message) -> Result<RankMessage, Kind> {
    Ok(match message {
        Message::Plan(plan) => RankMessage::Plan(plan.body),
        Message::RoundEnd(end) => RankMessage::RoundEnd { round: Round(end.round), absent: end.absent },
        Message::Got(got) => RankMessage::Got(Round(got.round)),
        Message::Resume(known) => RankMessage::Resume(session::Resume {
            generation: known.generation,
            oldest: Round(known.oldest),
            live: known.live,
            body: known.body,
        }),
        Message::Lost(lost) => RankMessage::Lost(session::LostRank { rank: Rank(lost.rank), why: lost.why }),
        Message::Known(known) => RankMessage::Known(session::Known {
            generation: known.generation,
            oldest: Round(known.oldest),
            used: known.used.into_iter().map(used).collect(),
        }),
        Message::Change(change) => RankMessage::Change(session::Change {
            generation: change.generation,
            live: change.live,
            oldest: Round(change.oldest),
            used: change.used.into_iter().map(used).collect(),
        }),
        other => return Err(other.kind()),
    })
}

/// The frame of a message of a server.
pub(crate) fn server_frame(message: ServerMessage) -> Message {
    match message {
        ServerMessage::Plan { generation, body } => Message::Plan(wire::Plan { generation, body }),
        ServerMessage::Used(used) => Message::Used(used_frame(used)),
        ServerMessage::RoundDone(round) => Message::RoundDone(wire::RoundDone { round: round.0 }),
        ServerMessage::Resumed(resumed) => Message::Resumed(wire::Resumed {
            generation: resumed.generation,
            oldest: resumed.oldest.0,
            knows: resumed.knows,
        }),
        ServerMessage::Lost(lost) => Message::Lost(wire::Lost { rank: lost.rank.0, why: bounded(&lost.why) }),
        ServerMessage::Members(members) => Message::Members(wire::Members {
            generation: members.generation,
            rank: members.rank.0,
            live: members.live,
            why: bounded(&members.why),
        }),
        ServerMessage::Change(change) => Message::Change(wire::Change {
            generation: change.generation,
            live: change.live,
            oldest: change.oldest.0,
            used: change.used.into_iter().map(used_frame).collect(),
        }),
        ServerMessage::Changed(changed) => {
            Message::Changed(wire::Changed { generation: changed.generation, oldest: changed.oldest.0 })
        }
        ServerMessage::Waiting(text) => Message::Waiting(wire::Waiting { text: bounded(&text) }),
    }
}

/// The refusal that a fault of the other end reports.
pub(crate) fn refusal(fault: &Fault) -> Refusal {
    let code = match fault.code {
        FaultCode::Protocol => RefusalCode::Protocol,
        FaultCode::Busy => RefusalCode::Busy,
        FaultCode::Plan => RefusalCode::Plan,
        FaultCode::Lost => RefusalCode::Lost,
        FaultCode::Closing => RefusalCode::Closing,
        _ => RefusalCode::Other,
    };
    Refusal { code, rank: fault.rank.map(Rank), text: fault.to_string() }
}

/// The fault that reports a refusal to the other end.
pub(crate) fn fault(refusal: &Refusal) -> Fault {
    let code = match refusal.code {
        RefusalCode::Protocol => FaultCode::Protocol,
        RefusalCode::Busy => FaultCode::Busy,
        RefusalCode::Plan => FaultCode::Plan,
        RefusalCode::Lost => FaultCode::Lost,
        RefusalCode::Closing => FaultCode::Closing,
        RefusalCode::Other => FaultCode::Other,
    };
    Fault { rank: refusal.rank.map(|rank| rank.0), ..Fault::new(code, refusal.text.as_str()) }
}

fn used(used: wire::Used) -> session::Used {
    session::Used { round: Round(used.round), used: used.used }
}

fn used_frame(used: session::Used) -> wire::Used {
    wire::Used { round: used.round.0, used: used.used }
}

/// A text that a message has room for.
fn bounded(text: &str) -> String {
    Fault::new(FaultCode::Other, text).text
}
