# SPDX-License-Identifier: Apache-2.0
"""The workloads of PROTOCOL.md: what is computed, and what it weighs on a given link."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from foresee import _native, network
from foresee.network import trace

TRACES = Path(__file__).resolve().parents[3] / "testdata" / "network"
#: Gradients are 32-bit floats.
ELEMENT = 4
#: Class 255 is the last one.
CLASSES = 256
MODELS = ("vgg16", "resnet50", "bert_base", "gpt2_small")
#: In place of a rate: links that nobody shapes, whose packets are cut as for 10 Gbit/s.
UNSHAPED = "unshaped"
#: Trained for real, on the CPU.
TRAINED = ("cnn", "transformer")
#: Trained with servers beside ranks; the small one has a third of the parameters, and the same ratio of wire to compute.
BLOCKS = ("blocks", "blocks_small")


@dataclass(frozen=True)
class Sleeps:
    """A model whose layers sleep, in order of first use."""

    name: str
    names: list[str]
    elements: list[int]
    backward: list[float]
    forward: list[float]
    update: list[float]

    @property
    def bytes(self) -> int:
        """Of all gradients of a step, one way."""
        return ELEMENT * sum(self.elements)

    @property
    def classes(self) -> list[int]:
        """Of each layer: its place in order of first use, neighbours together where there are more than classes."""
        count = len(self.elements)
        return [place if count <= CLASSES else place * CLASSES // count for place in range(count)]

    def step(self) -> network.Step:
        """As the model of the network has it."""
        return network.Step(
            [ELEMENT * count for count in self.elements],
            backward=self.backward,
            forward=self.forward,
            update=self.update,
            names=self.names,
        )


def sleeps(name: str, *, compute_s: float, wire_s: float, bytes_per_s: float) -> Sleeps:
    """The model's tensors and time shares, with ``compute_s`` of compute, and ``wire_s`` on a link of ``bytes_per_s``.

    Both are one factor for all layers. A tensor keeps one element at least.
    """
    model = trace.read(TRACES / f"{name}.json")
    step = model.step()
    in_time = compute_s / step.oracle
    in_size = wire_s * bytes_per_s / step.total_bytes
    return Sleeps(
        name,
        [tensor.name for tensor in model.tensors],
        [max(1, round(tensor.bytes * in_size / ELEMENT)) for tensor in model.tensors],
        [tensor.backward * in_time for tensor in model.tensors],
        [tensor.forward * in_time for tensor in model.tensors],
        [tensor.update * in_time for tensor in model.tensors],
    )


def bulk(total_bytes: int, tensors: int = 16) -> Sleeps:
    """Tensors of one size and no compute."""
    each = math.ceil(total_bytes / tensors / ELEMENT)
    none = [0.0] * tensors
    return Sleeps("bulk", [f"bulk.{at}" for at in range(tensors)], [each] * tensors, none, none, none)


def bytes_per_s(rate: str) -> float:
    """Of a rate as ``tc`` spells it, such as ``200mbit``."""
    rate = rate.replace(UNSHAPED, "10gbit")
    for unit, factor in (("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3)):
        if rate.endswith(unit):
            return float(rate.removesuffix(unit)) * factor / 8
    raise ValueError(f"{rate!r} is no rate; for instance 200mbit")


def packet_bytes(rate: str) -> int:
    """Of a link of this rate, by the rule of a run."""
    return _native.gradient_packet_bytes(int(bytes_per_s(rate)))
