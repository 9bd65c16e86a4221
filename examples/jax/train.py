# SPDX-License-Identifier: Apache-2.0
"""JAX: fit a linear model to an array of rows; each process reads its share.

    python examples/jax/train.py rows.npy
    python examples/jax/train.py rows.npy --coordinator HOST:1234 --processes 2 --process 0  # --process 1 on the other node

The loader takes its rank from `jax.process_index()` once `jax.distributed` is initialized, and needs no torch.
"""

from __future__ import annotations

import argparse
import json
import pathlib

import jax
import jax.numpy as jnp

import foresee

EPOCHS = 3


def loss(weights: jax.Array, rows: jax.Array) -> jax.Array:
    """Mean squared error of the first column, given the others."""
    return jnp.mean((rows[:, 1:] @ weights - rows[:, 0]) ** 2)


def main() -> None:
    """Train, from a state of the loader if one is given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--coordinator")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0)
    parser.add_argument("--state", type=pathlib.Path, help="file with the loader's state, read and written")
    parser.add_argument(
        "--steps", type=int, default=10**9, help="steps before the state is saved and the script ends"
    )
    args = parser.parse_args()
    if args.coordinator:
        jax.distributed.initialize(args.coordinator, args.processes, args.process)
    loader = foresee.Loader(args.path, batch_size=8, shuffle=True, seed=0, epochs=EPOCHS, drop_last=True)
    if args.state and args.state.exists():
        loader.load_state_dict(json.loads(args.state.read_text()))
    gradient = jax.jit(jax.grad(loss))
    weights: jax.Array | None = None
    step = 0
    for epoch in range(loader.state_dict()["epoch"], EPOCHS):
        loader.set_epoch(epoch)
        for batch in loader:
            rows = jnp.asarray(batch.rows())
            weights = jnp.zeros(rows.shape[1] - 1) if weights is None else weights
            weights -= 0.01 * gradient(weights, rows)
            step += 1
            if step == args.steps:
                if args.state and jax.process_index() == 0:
                    args.state.write_text(json.dumps(loader.state_dict()))
                return
    print(f"{step} steps")


if __name__ == "__main__":
    main()
