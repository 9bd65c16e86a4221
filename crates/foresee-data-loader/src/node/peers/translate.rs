// SPDX-License-Identifier: Apache-2.0
//! Messages of the exchange as messages of the wire. Times are differences on the wire, because nodes have no common clock.

use foresee_data_fetch::peers::{PeerMessage, PeerRequest};
use foresee_units::{Nanos, SampleId};
use foresee_wire::{SAMPLE_REQUESTS_MAX, SampleMessage, SampleRequest};

/// The messages of the wire for a message that leaves at `now`: several for more requests than fit into one.
pub(super) fn to_wire(message: &PeerMessage, now: Nanos) -> Vec<SampleMessage> {
    let one = match *message {
        PeerMessage::Request(ref requests) => {
            let parts = requests.chunks(SAMPLE_REQUESTS_MAX);
            let request = |part: &[PeerRequest]| part.iter().map(|one| request_to_wire(one, now)).collect();
            return parts.map(|part| SampleMessage::Request(request(part))).collect();
        }
        PeerMessage::Withdraw(sample) => SampleMessage::Withdraw(sample.0),
        PeerMessage::Later(sample) => SampleMessage::Later(sample.0),
        PeerMessage::Missing(sample) => SampleMessage::Missing(sample.0),
        PeerMessage::Offer(sample) => SampleMessage::Offer(sample.0),
        PeerMessage::Decline(sample) => SampleMessage::Decline(sample.0),
        PeerMessage::Passed(position) => SampleMessage::Passed(position),
        PeerMessage::Checkpoint { position, hash } => SampleMessage::Checkpoint { position, hash },
    };
    vec![one]
}

/// The message of the exchange for one that has arrived at `now`.
pub(super) fn from_wire(message: SampleMessage, now: Nanos) -> PeerMessage {
    match message {
        SampleMessage::Request(requests) => PeerMessage::Request(
            requests
                .into_iter()
                .map(|request| PeerRequest {
                    sample: SampleId(request.sample),
                    position: request.position,
                    deadline: request.deadline(now),
                })
                .collect(),
        ),
        SampleMessage::Withdraw(sample) => PeerMessage::Withdraw(SampleId(sample)),
        SampleMessage::Later(sample) => PeerMessage::Later(SampleId(sample)),
        SampleMessage::Missing(sample) => PeerMessage::Missing(SampleId(sample)),
        SampleMessage::Offer(sample) => PeerMessage::Offer(SampleId(sample)),
        SampleMessage::Decline(sample) => PeerMessage::Decline(SampleId(sample)),
        SampleMessage::Passed(position) => PeerMessage::Passed(position),
        SampleMessage::Checkpoint { position, hash } => PeerMessage::Checkpoint { position, hash },
    }
}

fn request_to_wire(request: &PeerRequest, now: Nanos) -> SampleRequest {
    let PeerRequest { sample, position, deadline } = *request;
    let within = (deadline != Nanos::MAX).then(|| deadline.saturating_sub(now).get());
    SampleRequest { sample: sample.0, position, within }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_arrives_as_it_was_sent_in_the_clock_of_the_receiver() {
        let sample = SampleId(7);
        let (here, there) = (Nanos::from_secs(100), Nanos::from_secs(3));
        for message in [
            PeerMessage::Withdraw(sample),
            PeerMessage::Later(sample),
            PeerMessage::Missing(sample),
            PeerMessage::Offer(sample),
            PeerMessage::Decline(sample),
            PeerMessage::Passed(70_000),
            PeerMessage::Checkpoint { position: 1 << 14, hash: u64::MAX },
        ] {
            let sent = to_wire(&message, here);
            assert_eq!(sent.into_iter().map(|one| from_wire(one, there)).collect::<Vec<_>>(), [message]);
        }
        let request = |deadline| PeerRequest { sample, position: 5, deadline };
        let sent = [here + Nanos::new(5), Nanos::MAX, Nanos::ZERO].map(request).to_vec();
        let received = [there + Nanos::new(5), Nanos::MAX, there].map(request).to_vec();
        let wire = to_wire(&PeerMessage::Request(sent), here);
        assert_eq!(wire.len(), 1);
        assert_eq!(from_wire(wire[0].clone(), there), PeerMessage::Request(received));
    }

    #[test]
    fn more_requests_than_a_message_has_travel_in_several() {
        let request = PeerRequest { sample: SampleId(1), position: 2, deadline: Nanos::MAX };
        let message = PeerMessage::Request(vec![request; SAMPLE_REQUESTS_MAX + 1]);
        let lens = to_wire(&message, Nanos::ZERO).into_iter().map(|one| match one {
            SampleMessage::Request(requests) => requests.len(),
            other => panic!("{other:?}"),
        });
        assert_eq!(lens.collect::<Vec<_>>(), [SAMPLE_REQUESTS_MAX, 1]);
    }
}
