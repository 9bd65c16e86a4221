// SPDX-License-Identifier: Apache-2.0
//! Replay a trace of another program with the planner of a node's cache, and print the hits.
//!
//! `node_hits CAPACITY BATCH < trace`. The first line of the trace has the bytes of each entry, and each further one the
//! entries of a rank, epochs separated by `|`. Each rank has as many. Prints a line per access of the node, in order: the
//! entry, the number of the access among those of its rank, and 1 for a hit, 0 for a miss.

#![expect(clippy::print_stdout, reason = "a command that prints its result")]
#![expect(clippy::unwrap_used, reason = "a trace that cannot be read ends the program")]

#[path = "../tests/node_hits/replay.rs"]
mod replay;

use std::str::FromStr;

use crate::replay::{Access, Trace};

fn main() {
    let arguments: Vec<u64> = std::env::args().skip(1).map(|one| one.parse().unwrap()).collect();
    let [capacity, batch] = arguments[..] else { panic!("node_hits CAPACITY BATCH") };
    let text = std::io::read_to_string(std::io::stdin()).unwrap();
    let mut lines = text.lines();
    let trace = Trace {
        sizes: numbers(lines.next().unwrap()),
        batch: usize::try_from(batch).unwrap(),
        ranks: lines.map(|line| line.split('|').map(numbers).collect()).collect(),
    };
    for Access { entry, number, is_hit } in trace.replay(capacity) {
        println!("{entry} {number} {}", u8::from(is_hit));
    }
}

fn numbers<T: FromStr<Err: std::fmt::Debug>>(line: &str) -> Vec<T> {
    line.split_whitespace().map(|word| word.parse().unwrap()).collect()
}
