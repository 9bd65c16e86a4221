# SPDX-License-Identifier: Apache-2.0
"""Planning a run before it starts: its time, the machine that it needs, and its price.

| module | owns | from |
|---|---|---|
| `simulation` | time of a run under any loading policy on any machine | the Rust simulator |
| `sizing` | the smallest machine that meets a goal, along one axis or several | bisection over a caller's question |
| `cost` | price of a run that reads from disks, or from a bucket through a cache | arithmetic |
| `prices` | the price book `prices.toml`; one is shipped | a file |
| `window` | misses of a cache in front of a bucket | arithmetic, or a counted order |
| `bucket_window` | times of a prefetch window over a bucket | a job file |

``compat="paper"`` follows a source to the letter, so that its numbers can be checked; the default is physical.
Needs no torch.
"""
