# SPDX-License-Identifier: Apache-2.0
"""``foresee which``: the samples of any step, from a saved state; and a state that avoids given samples."""

from __future__ import annotations

import argparse
import json
import os
import re
from typing import TYPE_CHECKING, Any

from foresee.errors import ConfigError

if TYPE_CHECKING:
    from foresee import _native
    from foresee._loading.data_source import Source
    from foresee._loading.state_steps import Step

HELP = "name the samples of any step from a saved state, or write a state that avoids samples"
_STATE_BYTES_MAX = 1 << 30
_SHOWN = 16


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("state", metavar="STATE.json", help="a loader's state_dict(), written as JSON")
    parser.add_argument(
        "--step", type=int, metavar="N", help="step of the epoch, from 0, at the state's batch and world size"
    )
    parser.add_argument("--epoch", type=int, metavar="E", help="with --step: epoch, from 0 (the state's)")
    parser.add_argument(
        "--ahead",
        type=int,
        metavar="K",
        help="instead of --step, counted from the state: 0 is the next step that a resumed loader hands out, -1 the "
        "step before the state",
    )
    parser.add_argument("--rank", type=int, metavar="R", help="this rank only (all)")
    parser.add_argument(
        "--index", metavar="FILE", help="index of the data set (.fidx); shows the samples' URIs"
    )
    parser.add_argument(
        "--avoid",
        metavar="I,J",
        help="sample ids; write a state in which other samples replace them from there on",
    )
    parser.add_argument(
        "--avoid-file", metavar="FILE", help="more ids to avoid, separated by white space or commas"
    )
    parser.add_argument("-o", "--output", metavar="NEW.json", help="with --avoid: the state to write")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    _check(options)
    state = _read_state(options.state)
    if options.avoid is None and options.avoid_file is None:
        return _show(options, state)
    return _write(options, state)


def _check(options: argparse.Namespace) -> None:
    given = [
        name
        for name in ("step", "ahead", "epoch", "rank", "index", "output")
        if getattr(options, name) is not None
    ]
    faults = []
    if options.avoid is not None or options.avoid_file is not None:
        if set(given) - {"output"}:
            faults.append("--avoid with --step, --ahead, --epoch, --rank or --index; it only writes a state")
        if options.output is None:
            faults.append("--avoid without --output; add --output NEW.json for the new state")
    else:
        if ("step" in given) == ("ahead" in given):
            faults.append("give one of --step N, --ahead K, or --avoid IDS --output NEW.json")
        if options.output is not None:
            faults.append("--output without --avoid; a step is printed")
        if options.epoch is not None and options.step is None:
            faults.append("--epoch without --step; --ahead counts from the state")
    if faults:
        raise ConfigError(faults)


def _read_state(path: str) -> dict[str, Any]:
    from foresee._schema import files

    try:
        state = json.loads(files.read(path, _STATE_BYTES_MAX))
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"{path}: not JSON ({error}); write a state with json.dump(loader.state_dict(), file)"
        ) from error
    if not isinstance(state, dict):
        raise ConfigError(f"{path}: not a state; write one with json.dump(loader.state_dict(), file)")
    return state


def _show(options: argparse.Namespace, state: dict[str, Any]) -> int:
    from foresee._loading.state_steps import StateSteps

    steps = StateSteps(state)
    if options.rank is not None and not 0 <= options.rank < steps.world_size:
        raise ConfigError(f"--rank {options.rank}; the state has {steps.world_size} ranks, from 0")
    source = None if options.index is None else _source(options.index, steps.fingerprint)
    step = steps.ahead(options.ahead) if options.step is None else steps.at_step(options.step, options.epoch)
    facts = _facts(step, steps, source, options.rank)
    if options.json:
        print(json.dumps(facts))
        return 0
    number = "" if step.step is None else f", step {step.step}"
    print(
        f"epoch {step.epoch}{number}: positions from {step.position}, {steps.batch_size} samples on each of "
        f"{steps.world_size} ranks, order {steps.name}"
    )
    for rank in facts["ranks"]:
        padding = f" ({rank['padding']} of them padding)" if rank["padding"] else ""
        print(f"rank {rank['rank']}: {len(rank['ids'])} samples{padding}")
        if source is None:
            print(f"  {' '.join(map(str, rank['ids']))}")
        else:
            for sample, uri in zip(rank["ids"], rank["uris"], strict=True):
                print(f"  {sample}  {uri}")
    return 0


def _facts(step: Step, steps: Any, source: Source | None, rank: int | None) -> dict[str, Any]:
    ranks = []
    for each in step.ranks:
        if rank is not None and each.rank != rank:
            continue
        facts = {
            "rank": each.rank,
            "ids": each.ids.tolist(),
            "positions": each.positions.tolist(),
            "padding": int((each.positions >= steps.samples).sum()),
        }
        if source is not None:
            facts["uris"] = [source.sample_uri(sample) for sample in facts["ids"]]
        ranks.append(facts)
    return {
        "order": steps.name,
        "epoch": step.epoch,
        "step": step.step,
        "position": step.position,
        "batch_size": steps.batch_size,
        "world_size": steps.world_size,
        "ranks": ranks,
    }


def _source(path: str, fingerprint: str) -> Source:
    from foresee import _native
    from foresee._loading.data_source import Source

    index: _native.Index = _native.Index.open(path)
    if index.fingerprint != fingerprint:
        raise ConfigError(
            f"{path} has fingerprint {index.fingerprint}, the state {fingerprint}: it lists other data; give the index "
            "that the run was started with"
        )
    return Source(index, index.uri)


def _write(options: argparse.Namespace, state: dict[str, Any]) -> int:
    from foresee._loading.state_steps import avoiding
    from foresee._schema import files

    ids = [] if options.avoid is None else _ids(options.avoid, "--avoid")
    if options.avoid_file is not None:
        text = files.read(options.avoid_file, _STATE_BYTES_MAX).decode("utf-8", "replace")
        ids += _ids(text, options.avoid_file)
    new = avoiding(state, ids)
    files.write(options.output, json.dumps(new) + "\n")
    entry = new["avoid"][-1]
    facts = {
        "file": os.path.abspath(options.output),
        "avoided": sum(len(each["ids"]) for each in new["avoid"]),
        "added": entry["ids"],
        "epoch": entry["epoch"],
        "position": entry["position"],
    }
    if options.json:
        print(json.dumps(facts))
        return 0
    shown = ", ".join(map(str, entry["ids"][:_SHOWN])) + (", ..." if len(entry["ids"]) > _SHOWN else "")
    print(
        f"{options.output}: avoids {shown} from position {entry['position']} of epoch {entry['epoch']} on; load it on "
        "every rank"
    )
    return 0


def _ids(text: str, where: str) -> list[int]:
    ids = []
    for word in re.split(r"[\s,]+", text.strip()):
        if not word:
            continue
        if not word.isascii() or not word.isdigit():
            raise ConfigError(
                f"{where}: {word!r} is no sample id; whole numbers of 0 or more expected, such as 17,23"
            )
        ids.append(int(word))
    return ids
