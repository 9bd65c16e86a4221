// SPDX-License-Identifier: Apache-2.0
//! An origin that all ranks share: requests in flight take turns, one piece at a time.
//!
//! Connections on a link behave alike. If a piece is a whole request, requests are served one after the other, as
//! small reads on a device. Samples smaller than a piece are served one after the other. Larger ones share the
//! origin, and those that begin together end within one piece of each other. The clock of the origin only moves
//! forward.

use std::collections::VecDeque;

use super::rates::Rates;
use super::run::Setup;
use super::scenario::OriginReaders;

/// Bytes of a turn at a bucket, which a connection transfers at a time.
const BUCKET_PIECE: f64 = 65_536.0;
/// Bytes of a turn at a device, which the kernel requests from a mount at a time.
const DEVICE_PIECE: f64 = 1_048_576.0;
/// Upper bound of the turns of a sample of mean size: more have no visible effect, and each is an event.
const TURNS: f64 = 16.0;

#[derive(Debug)]
pub(super) struct Origin<T> {
    /// Seconds per byte of all requests together, by the number of ranks with requests, less one.
    seconds_per_byte: Vec<f64>,
    /// Bytes of a turn.
    piece: f64,
    /// Requests in flight, in order of their turns; the first is being served.
    requests: VecDeque<Request<T>>,
    /// When the current piece ends.
    turn_end: f64,
    /// Seconds that accepting a request takes, and when the last one was accepted.
    request_seconds: f64,
    accepted_until: f64,
    /// By rank: its requests in flight; and the number of ranks with any.
    in_flight: Vec<u32>,
    readers: usize,
    /// Remaining bytes of all requests.
    left: f64,
    now: f64,
}

/// A request in flight.
#[derive(Debug)]
struct Request<T> {
    /// Remaining bytes of the current turn, and after it.
    turn: f64,
    left: f64,
    rank: usize,
    what: T,
}

impl<T> Origin<T> {
    /// The origin of a run.
    pub(super) fn of(setup: &Setup, rates: &Rates) -> Self {
        let seconds_per_byte = (1..=setup.epochs.ranks).map(|readers| rates.all_ranks(readers)).collect();
        let one_by_one = setup.scenario.options.readers == OriginReaders::Queue;
        let piece = if one_by_one { DEVICE_PIECE } else { BUCKET_PIECE };
        let mean = setup.sizes.total() / f64::from(setup.sizes.len());
        Self { request_seconds: rates.request_alone, ..Self::new(seconds_per_byte, piece.max(mean / TURNS)) }
    }

    /// `seconds_per_byte`: by the number of ranks that read, less one; one value per rank. `piece`: bytes of a
    /// turn, above 0; infinity means a whole request.
    fn new(seconds_per_byte: Vec<f64>, piece: f64) -> Self {
        Self {
            in_flight: vec![0; seconds_per_byte.len()],
            seconds_per_byte,
            piece,
            requests: VecDeque::new(),
            turn_end: 0.0,
            request_seconds: 0.0,
            accepted_until: 0.0,
            readers: 0,
            left: 0.0,
            now: 0.0,
        }
    }

    /// When a request made at `at` would be accepted: requests are accepted one after the other, at the given
    /// rate.
    pub(super) fn acceptance(&self, at: f64) -> f64 {
        if self.request_seconds > 0.0 { self.accepted_until.max(at) + self.request_seconds } else { at }
    }

    /// Make the request, and return the same time.
    pub(super) fn request(&mut self, at: f64) -> f64 {
        self.accepted_until = self.acceptance(at);
        self.accepted_until
    }

    /// Add a request of `rank` for `size` bytes at `at`, behind the others; a time in the past counts as now.
    /// Turns that end before must have been taken.
    pub(super) fn enqueue(&mut self, at: f64, rank: usize, size: f64, what: T) {
        self.now = self.now.max(at);
        self.readers += usize::from(self.in_flight[rank] == 0);
        self.in_flight[rank] += 1;
        self.left += size;
        let turn = size.min(self.piece);
        self.requests.push_back(Request { turn, left: size - turn, rank, what });
        if self.requests.len() == 1 {
            self.begin_turn();
        }
    }

    /// When the current turn ends; infinity without requests in flight.
    pub(super) fn turn_end(&self) -> f64 {
        if self.requests.is_empty() { f64::INFINITY } else { self.turn_end }
    }

    /// End the current turn; return its time and request if the request is complete.
    pub(super) fn end_turn(&mut self) -> Option<(f64, T)> {
        let mut request = self.requests.pop_front()?;
        self.now = self.turn_end;
        self.left -= request.turn;
        if request.left > 0.0 {
            request.turn = request.left.min(self.piece);
            request.left -= request.turn;
            self.requests.push_back(request);
            self.begin_turn();
            return None;
        }
        let Request { rank, what, .. } = request;
        self.in_flight[rank] -= 1;
        self.readers -= usize::from(self.in_flight[rank] == 0);
        self.begin_turn();
        Some((self.now, what))
    }

    /// Duration of a transfer of `size` bytes from now on if no other request joins: its own bytes, and of each
    /// other request at most the same number.
    pub(super) fn estimate(&self, size: f64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "requests in flight")]
        let others = self.requests.len() as f64;
        (size + self.left.min(others * size.max(self.piece))) * self.seconds_per_byte[self.readers.max(1) - 1]
    }

    /// Begin the turn of the first request.
    fn begin_turn(&mut self) {
        if let Some(first) = self.requests.front() {
            self.turn_end = self.now + first.turn * self.seconds_per_byte[self.readers - 1];
        } else {
            // Reset the rounding error of a million sums to 0.
            self.left = 0.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(origin: &mut Origin<u8>) -> Vec<(f64, u8)> {
        let mut ends = Vec::new();
        while origin.turn_end().is_finite() {
            ends.extend(origin.end_turn());
        }
        ends
    }

    #[test]
    fn requests_in_flight_take_turns() {
        let mut origin = Origin::new(vec![1.0], 1.0);
        origin.enqueue(0.0, 0, 4.0, 1);
        origin.enqueue(0.0, 0, 2.0, 2);
        assert!(origin.end_turn().is_none() && origin.end_turn().is_none());
        origin.enqueue(2.5, 0, 1.0, 3);
        // 1 2 1 2 3 1 1, where the third request follows the second's last turn.
        assert_eq!(ends(&mut origin), [(4.0, 2), (5.0, 3), (7.0, 1)]);
        assert!(origin.turn_end().is_infinite() && origin.end_turn().is_none());
    }

    #[test]
    fn requests_of_a_piece_come_one_after_the_other() {
        let mut origin = Origin::new(vec![1.0], 10.0);
        origin.enqueue(0.0, 0, 4.0, 1);
        origin.enqueue(0.0, 0, 2.0, 2);
        origin.enqueue(0.0, 0, 1.0, 3);
        assert!((origin.estimate(1.0) - 8.0).abs() < 1e-12);
        assert_eq!(ends(&mut origin), [(4.0, 1), (6.0, 2), (7.0, 3)]);
    }

    #[test]
    fn the_origin_delivers_exactly_its_rate() {
        for piece in [0.5, 2.0, f64::INFINITY] {
            let mut origin = Origin::new(vec![0.5, 0.25], piece);
            for (nth, size) in (0..).zip([3.0, 8.0, 0.0, 5.0]) {
                origin.enqueue(0.0, usize::from(nth % 2 == 1), size, nth);
            }
            let (last, _) = ends(&mut origin).into_iter().next_back().unwrap();
            // Two ranks get twice the rate of one, which may be alone at the end.
            assert!((16.0 * 0.25..16.0 * 0.5).contains(&last), "{last}");
            origin.enqueue(last + 10.0, 0, 2.0, 9);
            assert_eq!(ends(&mut origin), [(last + 11.0, 9)]);
        }
    }

    #[test]
    fn a_time_in_the_past_counts_as_now() {
        let mut origin = Origin::new(vec![1.0], 1.0);
        origin.enqueue(5.0, 0, 1.0, 1);
        origin.enqueue(3.0, 0, 1.0, 2);
        assert_eq!(ends(&mut origin), [(6.0, 1), (7.0, 2)]);
    }
}
