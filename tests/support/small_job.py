# SPDX-License-Identifier: Apache-2.0
"""A small job for the simulator: three ranks, two tiers and one origin."""

from __future__ import annotations

from foresee import jobspec
from foresee.jobspec import vary

SMALL = """
version = 1
[data]
samples = 3000
size = "100 KB"
size_sigma = "30 KB"
[train]
batch = 20
epochs = 3
compute_rate = "40 MB/s"
preprocess_rate = "100 MB/s"
[cluster]
ranks = 3
[cluster.staging]
capacity = "30 MB"
threads = 2
[[cluster.tiers]]
name = "ram"
capacity = "60 MB"
threads = 2
read = "10 GB/s"
[[cluster.tiers]]
name = "disk"
capacity = "90 MB"
read = "400 MB/s"
[cluster.network]
rate = "500 MB/s"
[cluster.origin]
read = {1 = "50 MB/s", 3 = "90 MB/s"}
latency = "2 ms"
[cache.window]
capacity = 400
fetch = 100
"""


def small(**values: object) -> jobspec.Job:
    made = jobspec.loads(SMALL)
    for key, value in values.items():
        made = vary.with_value(made, key.replace("__", "."), value)
    return made
