// SPDX-License-Identifier: Apache-2.0
//! Translation between wire frames and session messages.
//!
//! Both crates own their types, since the pure session must not depend on the wire.

use foresee_grad_queue::Round;
use foresee_grad_session as session;
use foresee_grad_session::{Closed, RankMessage, Refusal, RefusalCode, ServerMessage};
use foresee_units::Rank;
use foresee_wire as wire;
use foresee_wire::{Fault, FaultCode, Kind, Message};

use crate::control::ControlEnd;

const _: () = assert!(session::OPEN_ROUNDS_MAX == wire::OPEN_ROUNDS_MAX, "both ends bound the same list");

/// Translate a rank's frame.
///
/// # Errors
/// The kind of a frame that no rank sends to a server.
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
        Message::Change(change) => RankMessage::Change(session_change(change)),
        other => return Err(other.kind()),
    })
}

/// Translate a server's message to its frame.
pub(crate) fn server_frame(message: ServerMessage) -> Message {
    match message {
        ServerMessage::Plan { generation, body } => Message::Plan(wire::Plan { generation, body }),
        ServerMessage::Used(used) => Message::Used(used_frame(used)),
        ServerMessage::RoundDone(round) => Message::RoundDone(wire::RoundDone { round: round.0 }),
        ServerMessage::Resumed(resumed) => Message::Resumed(wire::Resumed {
            generation: resumed.generation,
            oldest: resumed.oldest.0,
            knows: resumed.has_sums,
        }),
        ServerMessage::Lost(lost) => Message::Lost(wire::Lost { rank: lost.rank.0, why: bounded(&lost.why) }),
        ServerMessage::Members(members) => Message::Members(wire::Members {
            generation: members.generation,
            rank: members.rank.0,
            live: members.live,
            why: bounded(&members.why),
        }),
        ServerMessage::Change(change) => Message::Change(wire_change(change)),
        ServerMessage::Changed(changed) => {
            Message::Changed(wire::Changed { generation: changed.generation, oldest: changed.oldest.0 })
        }
        ServerMessage::Waiting(text) => Message::Waiting(wire::Waiting { text: bounded(&text) }),
    }
}

/// Translate a server's frame.
///
/// # Errors
/// The kind of a frame that no server sends to a rank.
pub(crate) fn server_message(message: Message) -> Result<ServerMessage, Kind> {
    Ok(match message {
        Message::Plan(plan) => ServerMessage::Plan { generation: plan.generation, body: plan.body },
        Message::Used(own) => ServerMessage::Used(used(own)),
        Message::RoundDone(done) => ServerMessage::RoundDone(Round(done.round)),
        Message::Resumed(resumed) => ServerMessage::Resumed(session::Resumed {
            generation: resumed.generation,
            oldest: Round(resumed.oldest),
            has_sums: resumed.knows,
        }),
        Message::Lost(lost) => {
            ServerMessage::Lost(session::LostRank { rank: Rank(lost.rank), why: lost.why })
        }
        Message::Members(members) => ServerMessage::Members(session::NewMembers {
            generation: members.generation,
            rank: Rank(members.rank),
            live: members.live,
            why: members.why,
        }),
        Message::Change(change) => ServerMessage::Change(session_change(change)),
        Message::Changed(changed) => ServerMessage::Changed(session::Changed {
            generation: changed.generation,
            oldest: Round(changed.oldest),
        }),
        Message::Waiting(waiting) => ServerMessage::Waiting(waiting.to_string()),
        other => return Err(other.kind()),
    })
}

/// Translate a rank's message to its frame.
pub(crate) fn rank_frame(message: RankMessage) -> Message {
    match message {
        RankMessage::Plan(body) => Message::Plan(wire::Plan { generation: 0, body }),
        RankMessage::RoundEnd { round, absent } => {
            Message::RoundEnd(wire::RoundEnd { round: round.0, absent })
        }
        RankMessage::Got(round) => Message::Got(wire::Got { round: round.0 }),
        RankMessage::Resume(known) => Message::Resume(wire::Resume {
            generation: known.generation,
            oldest: known.oldest.0,
            live: known.live,
            body: known.body,
        }),
        RankMessage::Lost(lost) => Message::Lost(wire::Lost { rank: lost.rank.0, why: bounded(&lost.why) }),
        RankMessage::Known(known) => Message::Known(wire::Known {
            generation: known.generation,
            oldest: known.oldest.0,
            used: known.used.into_iter().map(used_frame).collect(),
        }),
        RankMessage::Change(change) => Message::Change(wire_change(change)),
    }
}

/// Translate the end of a control connection.
pub(crate) fn closed(end: ControlEnd) -> Closed {
    match end {
        ControlEnd::Goodbye(reason) => Closed::Goodbye(reason),
        ControlEnd::Fault(fault) => Closed::Refused(refusal(&fault)),
        ControlEnd::Broken(why) if why.is_silence() => Closed::Unacknowledged(why.to_string()),
        ControlEnd::Broken(why) => Closed::Broken(why.to_string()),
        ControlEnd::Silent(time) => Closed::Silent(format!("it was silent for {time}")),
    }
}

fn session_change(change: wire::Change) -> session::Change {
    session::Change {
        generation: change.generation,
        live: change.live,
        oldest: Round(change.oldest),
        used: change.used.into_iter().map(used).collect(),
    }
}

fn wire_change(change: session::Change) -> wire::Change {
    wire::Change {
        generation: change.generation,
        live: change.live,
        oldest: change.oldest.0,
        used: change.used.into_iter().map(used_frame).collect(),
    }
}

/// Translate a fault that the other end reports.
fn refusal(fault: &Fault) -> Refusal {
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

/// Translate a refusal to the fault that reports it to the other end.
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

/// Cut a text to the length that a message can hold.
fn bounded(text: &str) -> String {
    Fault::new(FaultCode::Other, text).text
}
