# SPDX-License-Identifier: Apache-2.0
"""Duration of a training step whose gradients cross a network, by policy and bandwidth.

Backward computes gradients last layer first. Each is pushed to servers and pulled back as an average, and the next
forward pass uses each layer as soon as its average is received. Policies differ in what is sent first:

=============== =====================================================================================================
``oracle``      no network: the lower bound
``mercury``     packets of the tensor that is used first; a newly ready tensor preempts others
``barrier``     the forward pass waits for the last tensor: clipping by the global norm, a gradient scaler
``fifo_packet`` packets in the order in which tensors become ready
``fifo_tensor`` whole tensors in that order, each pulled after its push: WFBP, an unscheduled parameter server
=============== =====================================================================================================

In this order no policy is slower than the next. With ``compat="physical"``, the default, pulls share one downlink; with
``compat="paper"`` those of ``fifo_tensor`` do not, as in equation (7) of the paper.

Units are seconds, bytes, and bytes per second of one direction. Packets are infinitely small: :func:`packet_delay`
bounds the delay of real ones. Not modelled: round trips, skew between ranks, copies between devices, the servers' time.

Source: Duan et al., "Mercury: A Simple Transport Layer Scheduler to Accelerate Distributed DNN Training", TPDS 2023,
sections IV and V; closed forms, required bandwidth and the mix of servers are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foresee import _native
from foresee._schema.compat import Compat
from foresee._schema.values import shown
from foresee.errors import ConfigError

__all__ = [
    "POLICIES",
    "Compat",
    "Infeasible",
    "Policy",
    "Shares",
    "Step",
    "Sweep",
    "Timeline",
    "Transfers",
    "barrier_cost",
    "effective_bandwidth",
    "goodput",
    "linear_scaling",
    "minimum_bandwidth",
    "packet_delay",
    "shares",
    "speed",
    "sweep",
    "t_iter",
    "timeline",
]

Policy = Literal["oracle", "mercury", "barrier", "fifo_packet", "fifo_tensor"]

POLICIES: tuple[Policy, ...] = ("oracle", "mercury", "barrier", "fifo_packet", "fifo_tensor")
"""Every policy, none slower than the next."""


@dataclass(frozen=True, eq=False, init=False)
class Step:
    """One training step of one rank, layer by layer, in order of first use by the forward pass.

    A layer is a unit that becomes ready and is waited for as a whole, usually a parameter tensor. Arrays are copied,
    and read-only.

    Raises:
        ConfigError: shapes differ, there is no layer, a time is negative, NaN or infinite, the sum of all times is
            below a picosecond, bytes are no whole numbers of 0 or more, or their sum exceeds 2**52. All faults of
            shape and type at once; of values the first, with its layer.

    >>> step = Step([1, 4, 3], backward=[2, 2, 2], forward=[1, 1, 1])
    >>> t_iter(step, "mercury", 1.0), t_iter(step, "fifo_tensor", 1.0)
    (11.0, 17.0)
    """

    bytes: NDArray[np.uint64]
    """Bytes of each gradient on the wire, one way; shape (layers,)."""
    backward: NDArray[np.float64]
    """Seconds from the gradient of the layer used next until this one's is ready; shape (layers,)."""
    forward: NDArray[np.float64]
    """Seconds of each forward; shape (layers,)."""
    update: NDArray[np.float64]
    """Seconds of each optimizer update, between receipt and forward; shape (layers,). Default 0."""
    names: tuple[str, ...]
    """Names of the layers, for display; default ``"0"``, ``"1"`` and so on."""
    _core: _native.NetworkStep = field(repr=False)

    def __init__(
        self,
        bytes: ArrayLike,  # noqa: A002 - what it is
        *,
        backward: ArrayLike,
        forward: ArrayLike,
        update: ArrayLike | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        faults: list[str] = []
        sizes = _sizes(bytes, faults)
        times = {
            "backward": _seconds("backward", backward, faults),
            "forward": _seconds("forward", forward, faults),
            "update": np.zeros(sizes.shape) if update is None else _seconds("update", update, faults),
        }
        faults += [
            f"{name} has shape {array.shape}, bytes {sizes.shape}; one of each per layer"
            for name, array in times.items()
            if not faults and array.shape != sizes.shape
        ]
        named = tuple(str(at) for at in range(sizes.size)) if names is None else tuple(names)
        if not faults and len(named) != sizes.size:
            faults.append(f"{len(named)} names for {sizes.size} layers; one of each per layer")
        if faults:
            raise ConfigError(faults)
        for array in (sizes, *times.values()):
            array.setflags(write=False)
        object.__setattr__(self, "bytes", sizes)
        for name, array in times.items():
            object.__setattr__(self, name, array)
        object.__setattr__(self, "names", named)
        object.__setattr__(self, "_core", _native.NetworkStep(sizes, *times.values()))

    def __len__(self) -> int:
        return len(self._core)

    @property
    def oracle(self) -> float:
        """Seconds of the step without a network."""
        return self._core.oracle

    @property
    def total_bytes(self) -> int:
        """Bytes that a rank pushes in a step, and pulls."""
        return self._core.total_bytes


class Transfers(NamedTuple):
    """Transfers of one direction of the link, in order of time; shape (transfers,) each.

    A preempted tensor has several, one without bytes has none.
    """

    layer: NDArray[np.uint64]
    """The layer, counted from 0 in order of first use."""
    start: NDArray[np.float64]
    """Seconds since the backward pass began."""
    end: NDArray[np.float64]
    """Seconds since the backward pass began."""


@dataclass(frozen=True, eq=False)
class Timeline:
    """The times of one step, in seconds since the backward pass began; shape (layers,) unless noted."""

    t_iter: float
    """End of the last forward."""
    backward: NDArray[np.float64]
    """Time at which each gradient is ready."""
    push: NDArray[np.float64]
    """Time at which the servers have all of it."""
    pull: NDArray[np.float64]
    """Time at which its average is received."""
    forward: NDArray[np.float64]
    """End of its next forward, after its update."""
    uplink: Transfers
    """Transfers from the rank."""
    downlink: Transfers
    """Transfers to the rank; with ``compat="paper"`` several at the same time."""


@dataclass(frozen=True)
class Infeasible:
    """No bandwidth reaches the goal: a value of :func:`minimum_bandwidth`, not an error."""

    goal: float
    """The requested speed."""
    best: float = 1.0
    """The limit for growing bandwidth."""


class Shares(NamedTuple):
    """Shares of links and bytes among ranks and servers."""

    of_link: float
    """Share of its link that each rank gets, in each direction."""
    colocated: float
    """Share of all bytes that the server on each rank's node sums."""
    dedicated: float
    """Share of all bytes that each dedicated server sums."""


@dataclass(frozen=True, eq=False)
class Sweep:
    """Step times and speeds by policy and bandwidth."""

    policies: tuple[Policy, ...]
    """The rows."""
    bandwidths: NDArray[np.float64]
    """The columns, bytes per second as given; shape (bandwidths,)."""
    t_iter: NDArray[np.float64]
    """Seconds per step; shape (policies, bandwidths)."""
    speed: NDArray[np.float64]
    """Share of the speed without a network, in (0, 1]; shape (policies, bandwidths)."""

    def of(self, policy: Policy) -> NDArray[np.float64]:
        """The speeds of one policy; shape (bandwidths,)."""
        speeds: NDArray[np.float64] = self.speed[self.policies.index(policy)]
        return speeds


def t_iter(
    step: Step, policy: Policy, bandwidth: float, *, efficiency: float = 1.0, compat: Compat = "physical"
) -> float:
    """Seconds of one step: from the start of the backward pass to the end of the next forward pass.

    Computed by the policy's closed form, in one pass over the layers.

    Args:
        step: the computation and the gradients.
        policy: order of transmission.
        bandwidth: bytes per second of one direction, finite, > 0.
        efficiency: share of it that gradients get, in (0, 1]: :func:`goodput` times ``shares(...).of_link``.
        compat: see the module.

    Raises:
        ConfigError: an argument outside its range, or a link so slow that the time is not finite.

    >>> step = Step([1, 4, 3], backward=[2, 2, 2], forward=[1, 1, 1])
    >>> [t_iter(step, policy, 1.0) for policy in POLICIES]
    [9.0, 11.0, 13.0, 13.0, 17.0]
    >>> t_iter(step, "fifo_tensor", 1.0, compat="paper")
    15.0
    """
    one = np.array([bandwidth], np.float64)
    return float(step._core.times([policy], one, efficiency=efficiency, compat=compat)[0, 0])  # noqa: SLF001


def speed(
    step: Step, policy: Policy, bandwidth: float, *, efficiency: float = 1.0, compat: Compat = "physical"
) -> float:
    """Share of the speed without a network that remains, in (0, 1]: ``oracle / t_iter`` (equation 9).

    Arguments and errors are those of :func:`t_iter`.

    >>> step = Step([1, 4, 3], backward=[2, 2, 2], forward=[1, 1, 1])
    >>> round(speed(step, "mercury", 1.0), 4)
    0.8182
    """
    return step.oracle / t_iter(step, policy, bandwidth, efficiency=efficiency, compat=compat)


def timeline(
    step: Step, policy: Policy, bandwidth: float, *, efficiency: float = 1.0, compat: Compat = "physical"
) -> Timeline:
    """Simulate one step: when each tensor is ready, pushed, pulled and used, and the transfers of the link.

    Computed by the recursions (4) to (8) and Algorithm 1 of the paper; its ``t_iter`` is that of :func:`t_iter` up to
    rounding. Arguments and errors are those of :func:`t_iter`; the caller owns the arrays.

    >>> result = timeline(Step([1, 4, 3], backward=[2, 2, 2], forward=[1, 1, 1]), "mercury", 1.0)
    >>> result.pull.tolist(), result.forward.tolist()
    ([7.0, 9.0, 10.0], [8.0, 10.0, 11.0])
    >>> result.uplink.layer.tolist()  # the second layer preempts the last one, and the first the second
    [2, 1, 0, 1, 2]
    """
    times = step._core.timeline(policy, bandwidth, efficiency=efficiency, compat=compat)  # noqa: SLF001
    uplink, downlink = Transfers(*times.pop("uplink")), Transfers(*times.pop("downlink"))
    return Timeline(**times, uplink=uplink, downlink=downlink)


def minimum_bandwidth(
    step: Step, policy: Policy, *, goal: float = 0.99, efficiency: float = 1.0, compat: Compat = "physical"
) -> float | Infeasible:
    """Return the least bandwidth at which a step keeps the share ``goal`` of its speed without a network.

    In bytes per second of one direction, of which gradients get ``efficiency``; 0 if any bandwidth suffices. Exact: a
    step's time is the largest of chains ``x + y / B``, and the result is ``y / (oracle / goal - x)`` of one.

    Args:
        step: the computation and the gradients.
        policy: order of transmission.
        goal: finite, > 0; in the paper 0.99, and 0.9 for BERT. A goal of 1 is :class:`Infeasible` unless the
            tensors used first have no bytes, one above 1 always is.
        efficiency: as in :func:`t_iter`.
        compat: as in :func:`t_iter`.

    Raises:
        ConfigError: an argument outside its range.

    >>> step = Step([1, 4, 3], backward=[2, 2, 2], forward=[1, 1, 1])
    >>> round(minimum_bandwidth(step, "mercury", goal=0.9), 9)
    1.25
    >>> minimum_bandwidth(step, "mercury", goal=1.0)
    Infeasible(goal=1.0, best=1.0)
    """
    native = step._core  # noqa: SLF001
    need = native.required_bandwidth(policy, goal, efficiency=efficiency, compat=compat)
    return Infeasible(goal) if need is None else need


def sweep(
    step: Step,
    bandwidths: ArrayLike,
    *,
    policies: Sequence[Policy] = POLICIES,
    efficiency: float = 1.0,
    compat: Compat = "physical",
) -> Sweep:
    """Compute step times and speeds of policies at bandwidths: the paper's figure 11.

    Args:
        step: the computation and the gradients.
        bandwidths: shape (bandwidths,), bytes per second of one direction, finite, > 0. Copied.
        policies: the rows.
        efficiency: as in :func:`t_iter`.
        compat: as in :func:`t_iter`.

    Raises:
        ConfigError: as :func:`t_iter`, or ``bandwidths`` is not of one dimension.

    >>> step = Step([1, 4, 3], backward=[2, 2, 2], forward=[1, 1, 1])
    >>> sweep(step, [1.0, 2.0], policies=["mercury", "fifo_tensor"]).t_iter.tolist()
    [[11.0, 9.5], [17.0, 11.5]]
    """
    faults: list[str] = []
    rates = _seconds("bandwidths", bandwidths, faults)
    if faults:
        raise ConfigError(faults)
    rows = tuple(policies)
    times = step._core.times(list(rows), rates, efficiency=efficiency, compat=compat)  # noqa: SLF001
    return Sweep(policies=rows, bandwidths=rates, t_iter=times, speed=step.oracle / times)


def barrier_cost(step: Step, bandwidth: float, *, efficiency: float = 1.0) -> float:
    """Return the seconds per step by which ``barrier`` is slower than ``mercury``.

    This is the cost of exact clipping by the global norm, which needs the last gradient before the first update.
    Arguments and errors are those of :func:`t_iter`.

    >>> barrier_cost(Step([1, 4, 3], backward=[2, 2, 2], forward=[1, 1, 1]), 1.0)
    2.0
    """
    return step._core.barrier_cost(bandwidth, efficiency=efficiency)  # noqa: SLF001


def linear_scaling(step: Step, *, ranks: int, batch: int) -> float:
    """Return the samples per second of ``ranks`` ranks that never wait: the paper's Linear-Scaling.

    A policy reaches :func:`speed` times this.

    Args:
        step: of one rank.
        ranks: 1 or more, below 2**32.
        batch: samples per rank and step, 1 or more, below 2**32.

    Raises:
        ConfigError: a number outside its range.

    >>> linear_scaling(Step([1, 4, 3], backward=[2, 2, 2], forward=[1, 1, 1]), ranks=4, batch=9)
    4.0
    """
    return step._core.linear_scaling(_count("ranks", ranks, 1), _count("batch", batch, 1))  # noqa: SLF001


def shares(ranks: int, servers: int = 0, *, dedicated_only: bool = False) -> Shares:
    """Return the shares of links and bytes of ranks, a colocated server per rank, and dedicated servers.

    The shares make all links equally busy. With n ranks and k < n dedicated servers, D = n**2 + k (n - 2): a
    rank gets D / (2 n (n - 1)) of its link, a colocated server (n - k) / D of the bytes and a dedicated one
    2 (n - 1) / D; with k >= n there are dedicated servers only. With k = 0 the volume is that of an all-reduce.

    Args:
        ranks: 2 or more, below 2**32.
        servers: dedicated ones, on other nodes with links like the ranks'.
        dedicated_only: whether ranks' nodes have no server.

    Raises:
        ConfigError: fewer than 2 ranks, or no server at all.

    >>> [round(shares(4, servers).of_link, 3) for servers in range(5)]
    [0.667, 0.75, 0.833, 0.917, 1.0]
    >>> shares(4, 2, dedicated_only=True)
    Shares(of_link=0.5, colocated=0.0, dedicated=0.5)
    """
    counts = _count("ranks", ranks, 0), _count("servers", servers, 0)
    return Shares(*_native.network_servers(*counts, dedicated_only=dedicated_only))


def effective_bandwidth(
    bandwidth: float, ranks: int, servers: int = 0, *, dedicated_only: bool = False, efficiency: float = 1.0
) -> float:
    """Return the bytes of gradients per second and direction of a rank: ``bandwidth * efficiency * of_link``.

    Args:
        bandwidth: bytes per second of one direction of every node's link, finite, > 0.
        ranks: as in :func:`shares`.
        servers: as in :func:`shares`.
        dedicated_only: as in :func:`shares`.
        efficiency: share of the link that gradients get, in (0, 1]: :func:`goodput`.

    Raises:
        ConfigError: an argument outside its range.

    >>> effective_bandwidth(125e6, 4, 1)
    93750000.0
    """
    faults = []
    if not (np.isfinite(bandwidth) and bandwidth > 0):
        faults.append(f"bandwidth={bandwidth}; finite and above 0 bytes per second")
    if not 0 < efficiency <= 1:
        faults.append(f"efficiency={efficiency}; above 0 and at most 1")
    if faults:
        raise ConfigError(faults)
    return bandwidth * efficiency * shares(ranks, servers, dedicated_only=dedicated_only).of_link


def goodput(packet_bytes: int = 30_000) -> float:
    """Return the share of an Ethernet link that gradients get in packets of ``packet_bytes`` over TCP.

    A packet has a header of 32 bytes, a frame of 1514 bytes has 1448 of payload.

    Raises:
        ConfigError: not 1 to 2**52 bytes.

    >>> round(goodput(), 4)
    0.9554
    """
    return _native.network_goodput(_count("packet_bytes", packet_bytes, 0, 2**64))


def packet_delay(*, window_bytes: int, packet_bytes: int, bandwidth: float, efficiency: float = 1.0) -> float:
    """Bound the delay of a step under ``mercury`` beyond :func:`t_iter`, in seconds: ``(W + 2 P) / B``.

    Args:
        window_bytes: W, unacknowledged bytes before the next packet is chosen; 0 to 2**52.
        packet_bytes: P, 1 to 2**52.
        bandwidth: B, bytes per second of one direction.
        efficiency: share of it that gradients get, in (0, 1].

    Raises:
        ConfigError: an argument outside its range.

    >>> round(1e3 * packet_delay(window_bytes=30_000, packet_bytes=30_000, bandwidth=125e6), 9)
    0.72
    """
    window = _count("window_bytes", window_bytes, 0, 2**64)
    packet = _count("packet_bytes", packet_bytes, 0, 2**64)
    return _native.network_packet_delay(window, packet, bandwidth, efficiency=efficiency)


def _sizes(values: ArrayLike, faults: list[str]) -> NDArray[np.uint64]:
    array = np.array(values)
    if array.shape == (0,):
        return np.zeros(0, np.uint64)  # the core refuses no layers; the type of an empty list is float
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.min() < 0:
        faults.append(f"bytes={shown(values)}; whole numbers of 0 or more, shape (layers,)")
        return np.zeros(0, np.uint64)
    return array.astype(np.uint64)


def _seconds(name: str, values: ArrayLike, faults: list[str]) -> NDArray[np.float64]:
    array = np.array(values)
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        faults.append(f"{name}={shown(values)}; numbers of one dimension")
        return np.zeros(0)
    return np.ascontiguousarray(array, np.float64)


def _count(name: str, value: int, least: int, below: int = 2**32) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not least <= value < below:
        raise ConfigError(f"{name}={value!r}; a whole number of {least} or more, below {below}")
    return int(value)
