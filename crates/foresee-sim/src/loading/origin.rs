// SPDX-License-Identifier: Apache-2.0
//! An origin that all ranks have in common: requests under way take turns, a piece of each at a time.
//!
//! So do connections on a link; where a piece is a whole request, they come one after the other, as small reads at a device do. Samples
//! smaller than a piece come one after the other; larger ones share, and those that begin together end together but for
//! a piece. Refuses to know what is read, and to serve the past: its clock goes forward only.

use std::collections::VecDeque;

use super::rates::Rates;
use super::run::Setup;
use super::scenario::OriginReaders;

/// Bytes of a turn at a bucket: what a connection carries at a time.
const BUCKET_PIECE: f64 = 65_536.0;
/// And at a device: what the kernel asks of a mount at a time.
const DEVICE_PIECE: f64 = 1_048_576.0;
/// A sample of mean size comes in so many turns at most: nobody would see more of them, and each is an event.
const TURNS: f64 = 16.0;

#[derive(Debug)]
pub(super) struct Origin<T> {
    /// Seconds per byte of all requests together, by the number of ranks that have some, less one.
    yields: Vec<f64>,
    /// Bytes of a turn.
    piece: f64,
    /// Under way, in their turns; the first is being served.
    requests: VecDeque<Request<T>>,
    /// Until when the first one's piece takes.
    until: f64,
    /// Seconds that taking a request takes; and when the last one was taken.
    request: f64,
    asked: f64,
    /// By rank: its requests under way; and how many ranks have any.
    under_way: Vec<u32>,
    readers: usize,
    /// Bytes that all of them have to come.
    left: f64,
    now: f64,
}

/// A request under way.
#[derive(Debug)]
struct Request<T> {
    /// Bytes that are to come, of its present turn and after it.
    turn: f64,
    left: f64,
    rank: usize,
    what: T,
}

impl<T> Origin<T> {
    /// That of a run.
    pub(super) fn of(setup: &Setup, rates: &Rates) -> Self {
        let yields = (1..=setup.epochs.ranks).map(|readers| rates.all_ranks(readers)).collect();
        let one_by_one = setup.scenario.options.readers == OriginReaders::Queue;
        let piece = if one_by_one { DEVICE_PIECE } else { BUCKET_PIECE };
        let mean = setup.sizes.total() / f64::from(setup.sizes.len());
        Self { request: rates.request_alone, ..Self::new(yields, piece.max(mean / TURNS)) }
    }

    /// `yields`: seconds per byte, by the number of ranks that read, less one; as many as there are ranks. `piece`: bytes
    /// of a turn, above 0; infinity: all of a request.
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

    /// When a request would have been taken that is made at `at`: one after the other, as many per second as it takes.
    pub(super) fn takes(&self, at: f64) -> f64 {
        if self.request > 0.0 { self.asked.max(at) + self.request } else { at }
    }

    /// The same, and the request is made.
    pub(super) fn ask(&mut self, at: f64) -> f64 {
        self.asked = self.takes(at);
        self.asked
    }

    /// A request of `rank` for `size` bytes joins at `at`, behind the others; a time that has passed counts as now. Turns that
    /// are over by then were taken before.
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

    /// When the next turn is over; infinity where no request is under way.
    pub(super) fn next(&self) -> f64 {
        if self.requests.is_empty() { f64::INFINITY } else { self.until }
    }

    /// The next turn is over, and with it a request, or not yet: when, and which.
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

    /// How long `size` bytes take from now on, if no other request joins: as long as they and, of each other one, no more
    /// than that.
    pub(super) fn estimate(&self, size: f64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "requests under way")]
        let others = self.requests.len() as f64;
        (size + self.left.min(others * size.max(self.piece))) * self.yields[self.readers.max(1) - 1]
    }

    /// The first one's turn begins.
    fn serve(&mut self) {
        if let Some(first) = self.requests.front() {
            self.until = self.now + first.turn * self.yields[self.readers - 1];
        } else {
            // What is left of nothing after a million sums is not nothing.
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
        // 1 2 1 2 3 1 1, where the third comes behind the second's last turn.
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
    fn it_gives_all_that_it_has_and_no_more() {
        for piece in [0.5, 2.0, f64::INFINITY] {
            let mut origin = Origin::new(vec![0.5, 0.25], piece);
            for (nth, size) in (0..).zip([3.0, 8.0, 0.0, 5.0]) {
                origin.join(0.0, usize::from(nth % 2 == 1), size, nth);
            }
            let (last, _) = ends(&mut origin).into_iter().next_back().unwrap();
            // Two ranks have twice what one has, which is alone at the end or is not.
            assert!((16.0 * 0.25..16.0 * 0.5).contains(&last), "{last}");
            origin.join(last + 10.0, 0, 2.0, 9);
            assert_eq!(ends(&mut origin), [(last + 11.0, 9)]);
        }
    }

    #[test]
    fn a_time_that_has_passed_is_now() {
        let mut origin = Origin::new(vec![1.0], 1.0);
        origin.join(5.0, 0, 1.0, 1);
        origin.join(3.0, 0, 1.0, 2);
        assert_eq!(ends(&mut origin), [(6.0, 1), (7.0, 2)]);
    }
}
