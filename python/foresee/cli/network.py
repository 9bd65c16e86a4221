# SPDX-License-Identifier: Apache-2.0
"""``foresee network``: step time of a model by bandwidth and gradient schedule, and the bandwidth that it needs."""

from __future__ import annotations

import argparse
import json
import re
from typing import TYPE_CHECKING, Any

from foresee.cli import _plot_option, _terminal_plot
from foresee.cli._commands import add_compat
from foresee.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from foresee import network
    from foresee.network import trace

HELP = "predict the step time of a model by bandwidth and policy, and the bandwidth that it needs"
EPILOG = (
    "exit code 1: --slack was given, and mercury does not reach it at the largest bandwidth of the table. "
    "Bandwidths are of one direction: 1gbit/s, 250Mbit/s, 125MB/s, 1.5GiB/s."
)
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
# Alone, a small b stands for bit and a large one for byte.
_BITS = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtKMGT]?)(?:[bB]it(?:/s)?|bps)")
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kMGT]?)|([KMGT])i)B(?:/s|ps)")
_DEFAULT_TABLE = tuple(rate * 1e9 / 8 for rate in (0.1, 1, 10, 25, 40, 100))
_SWEPT, _PLOTTED = 13, 97
#: Factor by which curves extend below and above the given bandwidths.
_AROUND = 4.0
#: Letter, colour and dash of each policy.
_STYLES: dict[network.Policy, tuple[str, str, str]] = {
    "mercury": ("m", "#0072B2", "-"),
    "barrier": ("b", "#E69F00", "--"),
    "fifo_packet": ("p", "#009E73", ":"),
    "fifo_tensor": ("t", "#D55E00", "-."),
}
_LABELS: dict[network.Policy, str] = {"fifo_tensor": "fifo_tensor (WFBP)"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("model", metavar="model.json", help="a model trace, as ft.trace_model writes it")
    rates = parser.add_mutually_exclusive_group()
    rates.add_argument(
        "--bandwidth", nargs="+", metavar="B", help="rows of the table (100mbit/s to 100gbit/s)"
    )
    rates.add_argument("--sweep", nargs=2, metavar=("LO", "HI"), help="a table between two bandwidths")
    parser.add_argument("--ranks", type=int, metavar="N", help="number of ranks, with a server next to each")
    parser.add_argument("--servers", type=int, metavar="K", help="number of dedicated servers (0)")
    add_compat(
        parser,
        "to the letter, all pulls of fifo_tensor share one downlink for free, and framing costs nothing",
    )
    parser.add_argument(
        "--efficiency",
        type=float,
        metavar="E",
        help="share of the link that framing leaves (0.955; paper: 1)",
    )
    parser.add_argument("--slack", type=float, metavar="S", help="share of the speed to reach (0.99)")
    _plot_option.add_to(parser, "draw the curves; .svg, .png or .pdf")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from foresee import network
    from foresee.network import trace

    if faults := _plot_option.check("--plot", options.plot):
        raise ConfigError(faults)
    model = trace.read(options.model)
    link = _link(options)
    efficiency = link["framing"] * link["of_link"]
    table, shown = _bandwidths(options)
    goal = 0.99 if options.slack is None else options.slack
    step = model.step()
    rows = network.sweep(step, table, efficiency=efficiency, compat=options.compat)
    minimum: dict[str, float | None] = {}
    for policy in network.POLICIES:
        need = network.minimum_bandwidth(
            step, policy, goal=goal, efficiency=efficiency, compat=options.compat
        )
        minimum[policy] = None if isinstance(need, network.Infeasible) else need
    facts = {
        **_facts(model, step, link, rows, efficiency),
        "compat": options.compat,
        "slack": goal,
        "minimum_bandwidth": minimum,
        "plot": options.plot,
    }
    curves = network.sweep(step, shown, efficiency=efficiency, compat=options.compat)
    _plot_option.write(options.plot, lambda: _figure(model, facts, curves))
    print(json.dumps(facts) if options.json else _report(facts, curves))
    reached = float(rows.of("mercury")[rows.bandwidths.argmax()])
    return 1 if options.slack is not None and reached < goal else 0


def _link(options: argparse.Namespace) -> dict[str, Any]:
    """Return the share of a link that framing leaves to gradients, the share of a link, and the ranks and servers."""
    from foresee import network

    if options.ranks is None and options.servers is not None:
        raise ConfigError(f"--servers {options.servers} without --ranks: add --ranks N")
    framing = options.efficiency
    if framing is None:
        framing = 1.0 if options.compat == "paper" else network.goodput()
    if not 0 < framing <= 1:
        raise ConfigError(f"--efficiency {framing}: above 0 and at most 1 expected")
    servers = options.servers or 0
    of_link = 1.0 if options.ranks is None else network.shares(options.ranks, servers).of_link
    return {"framing": framing, "ranks": options.ranks, "servers": servers, "of_link": of_link}


def _bandwidths(options: argparse.Namespace) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the rows of the table and the points of the curves."""
    import numpy as np

    if options.sweep is not None:
        low, high = (_rate("--sweep", word) for word in options.sweep)
        if low >= high:
            raise ConfigError(f"--sweep {' '.join(options.sweep)}: the lower one first expected")
        return np.geomspace(low, high, _SWEPT), np.geomspace(low, high, _PLOTTED)
    if options.bandwidth is not None:
        table = np.array([_rate("--bandwidth", word) for word in options.bandwidth])
        return table, np.geomspace(table.min() / _AROUND, table.max() * _AROUND, _PLOTTED)
    table = np.array(_DEFAULT_TABLE)
    return table, np.geomspace(table[0], table[-1], _PLOTTED)


def _rate(option: str, word: str) -> float:
    """Parse bytes per second.

    >>> _rate("--bandwidth", "1gbit/s"), _rate("--bandwidth", "125MB/s"), _rate("--bandwidth", "1KiB/s")
    (125000000.0, 125000000.0, 1024.0)
    """
    rate = 0.0
    if match := _BITS.fullmatch(word):
        rate = float(match[1]) * _UNITS[match[2].lower()] / 8
    elif match := _BYTES.fullmatch(word):
        unit = 1024.0 ** " KMGT".index(match[3]) if match[3] else _UNITS[(match[2] or "").lower()]
        rate = float(match[1]) * unit
    if not 0 < rate < 1e30:
        raise ConfigError(
            f"{option} {word!r}: write a bandwidth above 0 with its unit, such as 1gbit/s, 250Mbit/s or 125MB/s"
        )
    return rate


def _facts(
    model: trace.ModelTrace,
    step: network.Step,
    link: dict[str, Any],
    rows: network.Sweep,
    efficiency: float,
) -> dict[str, Any]:
    """Return the JSON object: seconds, bytes, and bytes per second of one direction."""
    from foresee import network

    scaled = None
    if model.batch is not None:
        scaled = network.linear_scaling(step, ranks=link["ranks"] or 1, batch=model.batch)
    times = dict(zip(rows.policies, rows.t_iter.tolist(), strict=True))
    speeds = dict(zip(rows.policies, rows.speed.tolist(), strict=True))
    return {
        "model": model.model,
        "tensors": len(step),
        "bytes": step.total_bytes,
        "oracle_seconds": step.oracle,
        "batch": model.batch,
        "linear_scaling_samples_per_second": scaled,
        **link,
        "table": [
            {
                "bandwidth": bandwidth,
                "t_iter": {policy: times[policy][i] for policy in rows.policies},
                "speed": {policy: speeds[policy][i] for policy in rows.policies},
                "gain_over_fifo_tensor": times["fifo_tensor"][i] / times["mercury"][i],
                "exact_clipping_seconds": network.barrier_cost(step, bandwidth, efficiency=efficiency),
            }
            for i, bandwidth in enumerate(rows.bandwidths.tolist())
        ],
    }


def _report(facts: dict[str, Any], curves: network.Sweep) -> str:
    policies = tuple(_STYLES)
    heads = "".join(f"{policy:>19}" for policy in policies)
    lines = [*_head(facts), "", f"{'bandwidth':>13}{heads}{'gain over WFBP':>17}{'exact clipping':>16}"]
    for row in facts["table"]:
        cells = (
            f"{_time(row['t_iter'][policy]):>11} {100 * row['speed'][policy]:>5.1f} %" for policy in policies
        )
        gain, clipping = f"{row['gain_over_fifo_tensor']:.2f} x", f"+{_time(row['exact_clipping_seconds'])}"
        lines.append(
            f"{_terminal_plot.bit_rate(row['bandwidth']):>13}{''.join(cells)}{gain:>17}{clipping:>16}"
        )
    needs = facts["minimum_bandwidth"]
    lines += ["", f"needed for {100 * facts['slack']:.4g} % of the speed without a network"]
    for policy in policies:
        need, wfbp = needs[policy], needs["fifo_tensor"]
        rate = "out of reach" if need is None else _terminal_plot.bit_rate(need)
        is_compared = policy != "fifo_tensor" and need is not None and wfbp
        less = f"   {100 * (1 - need / wfbp):.0f} % less than WFBP" if is_compared else ""
        lines.append(f"{policy:>13}{rate:>19}{less}")
    curves_ = [
        _terminal_plot.Curve(
            _LABELS.get(policy, policy), mark, curves.bandwidths.tolist(), curves.of(policy).tolist()
        )
        for policy, (mark, _, _) in _STYLES.items()
    ]
    lines += ["", "speed against bandwidth", _terminal_plot.text(curves_)]
    return "\n".join(lines)


def _head(facts: dict[str, Any]) -> list[str]:
    """Describe the model and the link."""
    count = "1 tensor" if facts["tensors"] == 1 else f"{facts['tensors']:,} tensors"
    size = f"{count}, {facts['bytes'] / 1e6:,.1f} MB of gradients"
    first = f"{facts['model']}: {size}, {_time(facts['oracle_seconds'])} per step without a network"
    if facts["linear_scaling_samples_per_second"] is not None:
        ranks = "one rank" if facts["ranks"] is None else f"{facts['ranks']} ranks"
        first += f" (Linear-Scaling: {facts['linear_scaling_samples_per_second']:,.1f} samples/s on {ranks})"
    second = f"gradients get {facts['framing']:.3f} of a link (framing)"
    if facts["ranks"] is not None:
        second += f" x {facts['of_link']:.3f} ({facts['ranks']} ranks, {facts['servers']} dedicated servers)"
    reading = "queue for one downlink" if facts["compat"] == "physical" else "pass at once (equation 7)"
    return [first, f"{second}; compat {facts['compat']}: pulls of fifo_tensor {reading}"]


def _figure(model: trace.ModelTrace, facts: dict[str, Any], curves: network.Sweep) -> Figure:
    from foresee.cli import _figures

    needs = facts["minimum_bandwidth"]
    bars = [_figures.Bar(policy, colour, needs[policy]) for policy, (_, colour, _) in _STYLES.items()]
    first, second = _head(facts)
    rates = curves.bandwidths.tolist()
    panel = _figures.Panel(
        "",
        _figures.Axis("bandwidth of one direction", rates[0], rates[-1]),
        _figures.Axis("share of the speed without a network", 0.0, 1.0),
        [
            _figures.Line(_LABELS.get(policy, policy), colour, rates, curves.of(policy).tolist(), dash)
            for policy, (_, colour, dash) in _STYLES.items()
        ],
    )
    return _figures.bandwidths(
        f"Speed of {model.model} by bandwidth",
        [first.removeprefix(f"{model.model}: "), second],
        panel,
        {rate: _terminal_plot.bit_rate(rate) for rate in _terminal_plot.ticks(rates[0], rates[-1])},
        {f"needed for {100 * facts['slack']:.4g} % of the speed": bars},
        _terminal_plot.bit_rate,
    )


def _time(seconds: float) -> str:
    if seconds >= 100:
        return f"{seconds:,.0f} s"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.2f} ms"
