// SPDX-License-Identifier: Apache-2.0
//! An origin that all ranks have in common: what it gives goes to requests under way, in equal parts or to one after the other.
//!
//! Equal parts are processor sharing, as connections share a link. One number stands for all of them, the bytes that a
//! request has had that is there from the start: who joins when that is `a` is done when it is `a` plus its size, whatever
//! others come and go meanwhile. One after the other is a queue, as a device has it: the same number is what it has given
//! to all, and who joins is done when it is the sum of all sizes so far. Refuses to know what is read, and to serve the past: its clock goes forward only.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Who of those under way gets something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Serving {
    /// Each an equal part.
    All,
    /// The first that joined everything.
    First,
}

#[derive(Debug)]
pub(super) struct Origin<T> {
    serving: Serving,
    /// Seconds per byte of all requests together, by the number of ranks that have some, less one.
    yields: Vec<f64>,
    requests: BinaryHeap<Reverse<Request<T>>>,
    /// By rank: its requests under way; and how many ranks have any.
    under_way: Vec<u32>,
    readers: usize,
    /// Bytes that a request has had by `now` that was always there; of a queue, bytes that it has given.
    had: f64,
    /// Of a queue: what it has given when all of them are done.
    last: f64,
    now: f64,
    joined: u64,
}

/// A request under way.
#[derive(Debug)]
struct Request<T> {
    /// It is done when `had` is this.
    done: f64,
    /// Among equals the first that joined is done first.
    joined: u64,
    rank: usize,
    what: T,
}

impl<T> Origin<T> {
    /// `yields`: seconds per byte, by the number of ranks that read, less one; as many as there are ranks.
    pub(super) fn new(yields: Vec<f64>, serving: Serving) -> Self {
        Self {
            serving,
            under_way: vec![0; yields.len()],
            yields,
            requests: BinaryHeap::new(),
            readers: 0,
            had: 0.0,
            last: 0.0,
            now: 0.0,
            joined: 0,
        }
    }

    /// A request of `rank` for `size` bytes joins at `at`; a time that has passed counts as now.
    pub(super) fn join(&mut self, at: f64, rank: usize, size: f64, what: T) {
        self.go_to(at);
        let before = match self.serving {
            Serving::All => self.had,
            Serving::First => self.had.max(self.last),
        };
        self.last = before + size;
        let request = Request { done: self.last, joined: self.joined, rank, what };
        self.joined += 1;
        self.readers += usize::from(self.under_way[rank] == 0);
        self.under_way[rank] += 1;
        self.requests.push(Reverse(request));
    }

    /// When the next request is done, if none joins before; infinity where none is under way.
    pub(super) fn next(&self) -> f64 {
        let left = self.requests.peek().map(|Reverse(first)| (first.done - self.had).max(0.0));
        left.map_or(f64::INFINITY, |left| self.now + left * self.seconds_each())
    }

    /// Takes the request that is done next, at that time.
    pub(super) fn take(&mut self) -> Option<(f64, usize, T)> {
        self.go_to(self.next());
        let Reverse(Request { done, rank, what, .. }) = self.requests.pop()?;
        self.under_way[rank] -= 1;
        self.readers -= usize::from(self.under_way[rank] == 0);
        // No request that is under way remembers another zero.
        (self.had, self.last) = if self.requests.is_empty() { (0.0, 0.0) } else { (done, self.last) };
        Some((self.now, rank, what))
    }

    /// How long `size` bytes take from now on, if requests stay as many as they are.
    pub(super) fn estimate(&self, size: f64) -> f64 {
        match self.serving {
            Serving::All => size * self.seconds_each(),
            Serving::First => ((self.last - self.had).max(0.0) + size) * self.seconds_each(),
        }
    }

    /// Seconds per byte of one request that gets something.
    fn seconds_each(&self) -> f64 {
        let all = self.yields[self.readers.max(1) - 1];
        match self.serving {
            #[expect(clippy::cast_precision_loss, reason = "requests under way")]
            Serving::All => all * self.requests.len().max(1) as f64,
            Serving::First => all,
        }
    }

    fn go_to(&mut self, at: f64) {
        if at > self.now && at.is_finite() {
            if !self.requests.is_empty() {
                self.had += (at - self.now) / self.seconds_each();
            }
            self.now = at;
        }
    }
}

impl<T> PartialEq for Request<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Request<T> {}

impl<T> PartialOrd for Request<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Request<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.done.total_cmp(&other.done).then(self.joined.cmp(&other.joined))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(origin: &mut Origin<u8>) -> Vec<(f64, u8)> {
        std::iter::from_fn(|| origin.take()).map(|(at, _, what)| (at, what)).collect()
    }

    #[test]
    fn requests_under_way_share_what_it_gives() {
        let mut origin = Origin::new(vec![1.0], Serving::All);
        origin.join(0.0, 0, 4.0, 1);
        origin.join(0.0, 0, 2.0, 2);
        origin.join(2.0, 0, 1.0, 3);
        // Both have had 1 by 2, then each of three a third: at 5 two are done, what is left then is alone.
        assert_eq!(ends(&mut origin), [(5.0, 2), (5.0, 3), (7.0, 1)]);
        assert!(origin.next().is_infinite() && origin.take().is_none());
    }

    #[test]
    fn it_gives_all_that_it_has_and_no_more() {
        for serving in [Serving::All, Serving::First] {
            let mut origin = Origin::new(vec![0.5, 0.25], serving);
            for (nth, size) in (0..).zip([3.0, 8.0, 0.0, 5.0]) {
                origin.join(f64::from(nth) * 0.5, usize::from(nth % 2 == 1), size, nth);
            }
            let (last, _) = ends(&mut origin).into_iter().next_back().unwrap();
            // One rank alone has 1 byte by 0.5; the other 15 are shared until one rank is left, with what is left then.
            assert!(last > 0.5 + 15.0 * 0.25 && last < 16.0 * 0.5, "{last}");
            origin.join(last + 10.0, 0, 2.0, 9);
            assert_eq!(ends(&mut origin), [(last + 11.0, 9)]);
        }
    }

    #[test]
    fn in_a_queue_one_is_served_after_the_other() {
        let mut origin = Origin::new(vec![1.0], Serving::First);
        origin.join(0.0, 0, 4.0, 1);
        origin.join(0.0, 0, 2.0, 2);
        origin.join(2.0, 0, 1.0, 3);
        assert!((origin.estimate(1.0) - 6.0).abs() < 1e-12);
        assert_eq!(ends(&mut origin), [(4.0, 1), (6.0, 2), (7.0, 3)]);
    }

    #[test]
    fn a_time_that_has_passed_is_now() {
        let mut origin = Origin::new(vec![1.0], Serving::All);
        origin.join(5.0, 0, 1.0, 1);
        origin.join(3.0, 0, 1.0, 2);
        assert!((origin.estimate(1.5) - 3.0).abs() < 1e-12);
        assert_eq!(ends(&mut origin), [(7.0, 1), (7.0, 2)]);
    }
}
