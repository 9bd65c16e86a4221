# SPDX-License-Identifier: Apache-2.0
"""The workloads of PROTOCOL.md: compute times and gradient sizes for a given link."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from foresee import _native, network
from foresee.network import trace

TRACES = Path(__file__).resolve().parents[3] / "testdata" / "network"
#: Gradients are 32-bit floats.
ELEMENT = 4
#: Number of priority classes.
CLASSES = 256
MODELS = ("vgg16", "resnet50", "bert_base", "gpt2_small")
#: Rate of links that are not shaped; packets have the size for 10 Gbit/s.
UNSHAPED = "unshaped"
#: Models of real training on the CPU.
TRAINED = ("cnn", "transformer")
#: Models of part `ranks`; the small one has a third of the parameters and the same ratio of wire to compute time.
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
        """Bytes of all gradients of a step."""
        return ELEMENT * sum(self.elements)

    @property
    def classes(self) -> list[int]:
        """Priority class of each layer, by order of first use; neighbours share one if there are too many layers."""
        count = len(self.elements)
        return [place if count <= CLASSES else place * CLASSES // count for place in range(count)]

    def step(self) -> network.Step:
        """Return the step as an input of the network model."""
        return network.Step(
            [ELEMENT * count for count in self.elements],
            backward=self.backward,
            forward=self.forward,
            update=self.update,
            names=self.names,
        )


def sleeps(name: str, *, compute_s: float, wire_s: float, bytes_per_s: float) -> Sleeps:
    """Scale a traced model to ``compute_s`` of compute, and ``wire_s`` on a link of ``bytes_per_s``.

    Times and sizes have one factor each for all layers. A tensor has at least one element.
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
    """Return tensors of equal size without compute."""
    each = math.ceil(total_bytes / tensors / ELEMENT)
    none = [0.0] * tensors
    return Sleeps("bulk", [f"bulk.{at}" for at in range(tensors)], [each] * tensors, none, none, none)


def bytes_per_s(rate: str) -> float:
    """Convert a rate in the notation of ``tc``, such as ``200mbit``."""
    rate = rate.replace(UNSHAPED, "10gbit")
    for unit, factor in (("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3)):
        if rate.endswith(unit):
            return float(rate.removesuffix(unit)) * factor / 8
    raise ValueError(f"{rate!r} is not a rate; an example is 200mbit")


def packet_bytes(rate: str) -> int:
    """Return the packet size for a link of this rate, by the rule of the product."""
    return _native.gradient_packet_bytes(int(bytes_per_s(rate)))
