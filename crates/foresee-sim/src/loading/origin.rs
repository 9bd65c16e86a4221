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
    yields: Vec<f64>,
    /// Bytes of a turn.
    piece: f64,
    /// Requests in flight, in order of their turns; the first is being served.
    requests: VecDeque<Request<T>>,
    /// When the current piece ends.
    until: f64,
    /// Seconds that accepting a request takes, and when the last one was accepted.
    request: f64,
    asked: f64,
    /// By rank: its requests in flight; and the number of ranks with any.
    under_way: Vec<u32>,
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
        let yields = (1..=setup.epochs.ranks).map(|readers| rates.all_ranks(readers)).collect();
        let one_by_one = setup.scenario.options.readers == OriginReaders::Queue;
        let piece = if one_by_one { DEVICE_PIECE } else { BUCKET_PIECE };
        let mean = setup.sizes.total() / f64::from(setup.sizes.len());
        Self { request: rates.request_alone, ..Self::new(yields, piece.max(mean / TURNS)) }
    }

    /// `yields`: seconds per byte, by the number of ranks that read, less one; one value per rank. `piece`: bytes
    /// of a turn, above 0; infinity means a whole request.
    fn new(yields: Vec<f64>, piece: f64) -> Self {
        Self {
            under_way: vec![0; yields.len()],
            yields,
            piece,
            requests: VecDeque::new(),
            until: 0.0,
            request: 0.0,
            asked: 0.0,
            readers: 0,
            left: 0.0,
            now: 0.0,
        }
    }

    /// When a request made at `at` would be accepted: requests are accepted one after the other, at the given
    /// rate.
    pub(super) fn takes(&self, at: f64) -> f64 {
        if self.request > 0.0 { self.asked.max(at) + self.request } else { at }
    }

    /// Make the request, and return the same time.
    pub(super) fn ask(&mut self, at: f64) -> f64 {
        self.asked = self.takes(at);
        self.asked
    }

    /// Add a request of `rank` for `size` bytes at `at`, behind the others; a time in the past counts as now.
    /// Turns that end before must have been taken.
    pub(super) fn join(&mut self, at: f64, rank: usize, size: f64, what: T) {
        self.now = self.now.max(at);
        self.readers += usize::from(self.under_way[rank] == 0);
        self.under_way[rank] += 1;
        self.left += size;
        let turn = size.min(self.piece);
        self.requests.push_back(Request { turn, left: size - turn, rank, what });
        if self.requests.len() == 1 {
            self.serve();
        }
    }

    /// When the current turn ends; infinity without requests in flight.
    pub(super) fn next(&self) -> f64 {
        if self.requests.is_empty() { f64::INFINITY } else { self.until }
    }

    /// End the current turn; return its time and request if the request is complete.
    pub(super) fn take(&mut self) -> Option<(f64, T)> {
        let mut request = self.requests.pop_front()?;
        self.now = self.until;
        self.left -= request.turn;
        if request.left > 0.0 {
            request.turn = request.left.min(self.piece);
            request.left -= request.turn;
            self.requests.push_back(request);
            self.serve();
            return None;
        }
        let Request { rank, what, .. } = request;
        self.under_way[rank] -= 1;
        self.readers -= usize::from(self.under_way[rank] == 0);
        self.serve();
        Some((self.now, what))
    }

    /// Duration of a transfer of `size` bytes from now on if no other request joins: its own bytes, and of each
    /// other request at most the same number.
    pub(super) fn estimate(&self, size: f64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "requests under way")]
        let others = self.requests.len() as f64;
        (size + self.left.min(others * size.max(self.piece))) * self.yields[self.readers.max(1) - 1]
    }

    /// Begin the turn of the first request.
    fn serve(&mut self) {
        if let Some(first) = self.requests.front() {
            self.until = self.now + first.turn * self.yields[self.readers - 1];
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
        while origin.next().is_finite() {
            ends.extend(origin.take());
        }
        ends
    }

    #[test]
    fn requests_under_way_take_turns() {
        let mut origin = Origin::new(vec![1.0], 1.0);
        origin.join(0.0, 0, 4.0, 1);
        origin.join(0.0, 0, 2.0, 2);
        assert!(origin.take().is_none() && origin.take().is_none());
        origin.join(2.5, 0, 1.0, 3);
        // 1 2 1 2 3 1 1, where the third request follows the second's last turn.
        assert_eq!(ends(&mut origin), [(4.0, 2), (5.0, 3), (7.0, 1)]);
        assert!(origin.next().is_infinite() && origin.take().is_none());
    }

    #[test]
    fn requests_of_a_piece_come_one_after_the_other() {
        let mut origin = Origin::new(vec![1.0], 10.0);
        origin.join(0.0, 0, 4.0, 1);
        origin.join(0.0, 0, 2.0, 2);
        origin.join(0.0, 0, 1.0, 3);
        assert!((origin.estimate(1.0) - 8.0).abs() < 1e-12);
        assert_eq!(ends(&mut origin), [(4.0, 1), (6.0, 2), (7.0, 3)]);
    }

    #[test]
    fn the_origin_delivers_exactly_its_rate() {
        for piece in [0.5, 2.0, f64::INFINITY] {
            let mut origin = Origin::new(vec![0.5, 0.25], piece);
            for (nth, size) in (0..).zip([3.0, 8.0, 0.0, 5.0]) {
                origin.join(0.0, usize::from(nth % 2 == 1), size, nth);
            }
            let (last, _) = ends(&mut origin).into_iter().next_back().unwrap();
            // Two ranks get twice the rate of one, which may be alone at the end.
            assert!((16.0 * 0.25..16.0 * 0.5).contains(&last), "{last}");
            origin.join(last + 10.0, 0, 2.0, 9);
            assert_eq!(ends(&mut origin), [(last + 11.0, 9)]);
        }
    }

    #[test]
    fn a_time_in_the_past_counts_as_now() {
        let mut origin = Origin::new(vec![1.0], 1.0);
        origin.join(5.0, 0, 1.0, 1);
        origin.join(3.0, 0, 1.0, 2);
        assert_eq!(ends(&mut origin), [(6.0, 1), (7.0, 2)]);
    }
}
