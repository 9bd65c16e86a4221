# SPDX-License-Identifier: Apache-2.0
"""The sizes of PROTOCOL.md, for the full and the quick run."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass

from common.samples import ID_BYTES, Shape

#: Pixels of a picture of MNIST and of CIFAR-10, after the number of the sample.
MNIST_BYTES, CIFAR_BYTES = ID_BYTES + 28 * 28, ID_BYTES + 32 * 32 * 3
#: Share of the native client's GET rate that all ranks together need.
NEEDED_SHARE = 0.6
#: Compute of the paper's models per sample, in times of one read from its bucket: 14.7 s and 147.2 s per epoch of 14,000 and
#: 11,667 samples, whose direct reads take 55.2 ms each.
COMPUTE_PER_READ = {"figures_mnist": 0.0190, "figures_cifar": 0.2286}
#: Seconds of compute per step in part `recipe`.
RECIPE_STEP_S = 1.0
#: Memory of a cache that holds all data, over the data.
ROOM = 1.25


@dataclass(frozen=True)
class Size:
    """Data and rates of one part at one latency."""

    #: `deli_mnist`, `deli_cifar`, `recipe`, `hit`, `peers`, `figures_mnist` or `figures_cifar`.
    theme: str
    latency_ms: float
    ranks: int
    #: Samples of all ranks; a multiple of the ranks.
    samples: int
    sample_bytes: int
    batch: int
    epochs: int
    #: Samples that the cache of a rank holds; 0: all.
    cache_samples: int = 0
    #: Samples of each epoch that `direct` and `threads` read; 0: all.
    direct_samples: int = 0
    #: Samples that the native client reads, or that `reads` does.
    native_samples: int = 0

    @property
    def part(self) -> str:
        """Name of the part in lines and tables: with the latency, if the theme has several."""
        return f"{self.theme}_{self.latency_ms:g}ms" if self.has_latencies else self.theme

    @property
    def has_latencies(self) -> bool:
        """Whether the theme is measured at several latencies."""
        return self.is_deli or self.theme == "recipe"

    @property
    def is_deli(self) -> bool:
        """Whether three hosts read as in the paper."""
        return self.theme.startswith("deli")

    @property
    def is_figures(self) -> bool:
        """Whether the theme has the sweeps of the paper's figures."""
        return self.theme in COMPUTE_PER_READ

    @property
    def hosts(self) -> int:
        """Ranks that run. The order is always that of all ranks."""
        return 1 if self.is_figures else self.ranks

    @property
    def partition(self) -> int:
        """Samples of an epoch of a rank."""
        return self.samples // self.ranks

    @property
    def data_bytes(self) -> int:
        """Bytes of all samples."""
        return self.samples * self.sample_bytes

    @property
    def cache_bytes(self) -> int:
        """Memory of a rank's cache."""
        return self.cache_samples * self.sample_bytes or int(ROOM * self.data_bytes)

    @property
    def window(self) -> int:
        """``fetch_size`` and ``threshold``: half of the cache each; 0: the defaults."""
        return self.cache_samples // 2

    def shape(self, seed: int) -> Shape:
        """Return the shape of the data."""
        return Shape(self.samples, self.sample_bytes, self.sample_bytes, seed)

    def compute_s(self, gets_per_s: float) -> float:
        """Return the seconds of compute per sample of a rank.

        Args:
            gets_per_s: rate that a native client reaches; for the figures, that of one read after the other.
        """
        if self.is_figures:
            return COMPUTE_PER_READ[self.theme] / gets_per_s
        if self.is_deli:
            return self.ranks / (NEEDED_SHARE * gets_per_s)
        return RECIPE_STEP_S / self.batch if self.theme == "recipe" else 0.0

    def read_of_epoch(self, arm: str) -> int:
        """Return how many samples of an epoch a rank reads in an arm."""
        whole = self.partition
        limit = self.direct_samples if arm in ("direct", "direct_obstore", "threads") else 0
        # Whole batches are read.
        return min(whole, -(-limit // self.batch) * self.batch) if limit else whole


def _both(size: Size) -> list[Size]:
    return [size, dataclasses.replace(size, latency_ms=57.0)]


FULL = [
    *_both(Size("deli_mnist", 20.0, 3, 42_000, MNIST_BYTES, 512, 2, 2048, 512, 8192)),
    *_both(Size("deli_cifar", 20.0, 3, 35_001, CIFAR_BYTES, 512, 2, 2048, 512, 8192)),
    *_both(Size("recipe", 20.0, 1, 1_280, 110_000, 64, 2)),
    Size("hit", 0.0, 1, 1_024, 1_000, 256, 1),
    Size("peers", 20.0, 1, 14_000, 1_000, 64, 2),
    # A sixteenth of the paper's samples, cache, fetch size and batch.
    Size("figures_mnist", 20.0, 3, 2_625, MNIST_BYTES, 32, 2, 128, 256, 128),
    Size("figures_cifar", 20.0, 3, 2_187, CIFAR_BYTES, 32, 2, 128, 256, 128),
]

#: Fewer samples and one latency, so that the quick run takes less than 3 minutes.
QUICK = [
    Size("deli_mnist", 20.0, 3, 1_536, MNIST_BYTES, 64, 2, 128, 128, 1536),
    Size("deli_cifar", 20.0, 3, 1_536, CIFAR_BYTES, 64, 2, 128, 128, 1536),
    Size("recipe", 20.0, 1, 512, 110_000, 64, 1),
    Size("hit", 0.0, 1, 1_024, 1_000, 256, 1),
    Size("peers", 20.0, 1, 512, 1_000, 64, 2),
]

#: The quick run has these parts only by name: they show that the sweeps work, with a few points each.
QUICK_FIGURES = [
    Size("figures_mnist", 5.0, 3, 192, MNIST_BYTES, 8, 2, 32, 16, 24),
    Size("figures_cifar", 5.0, 3, 192, CIFAR_BYTES, 8, 2, 32, 16, 24),
]

#: All parts, in the order of a run.
THEMES = list(dict.fromkeys(size.theme for size in FULL))


def sizes_of(themes: Collection[str] | None, *, quick: bool) -> list[Size]:
    """Return the sizes of these themes; None: of all, of which the quick run leaves out the figures."""
    sizes = [*QUICK, *(QUICK_FIGURES if themes else ())] if quick else FULL
    return [size for size in sizes if themes is None or size.theme in themes]


Settings = dict[str, int]

#: The arms of each theme, in the order of a repeat.
ARMS: dict[str, tuple[str, ...]] = {
    "deli_mnist": ("direct", "threads", "ours", "ours_obstore", "disk"),
    "deli_cifar": ("direct", "threads", "ours", "ours_obstore", "disk"),
    "recipe": ("plain", "ours_boto3"),
    "hit": ("hit",),
    "peers": ("ours", "ours_obstore", "boto3", "boto3_threads", "s3torchconnector", "litdata_raw"),
    **dict.fromkeys(COMPUTE_PER_READ, ("direct_obstore", "disk", "cache", "window")),
}

#: Arms whose packages are in the environment of the peers.
PEERS = ("s3torchconnector", "litdata_raw")

_PREFETCH = {"prefetch_factor": 4}


def grid(theme: str, arm: str, *, quick: bool) -> list[Settings]:
    """Return the settings of an arm by PROTOCOL.md: all that are tried, or the one of the quick run."""
    if theme == "recipe":
        return [{"workers": 2, "threads": 4} if arm == "ours_boto3" else {"workers": 2}]
    if theme == "hit":
        return [{"workers": 1}]
    workers = (4,) if quick else (4, 8)
    grids: dict[str, list[Settings]] = {
        "ours": [{"threads": 64}],
        "ours_obstore": [{"threads": 64}],
        "threads": [{"threads": count} for count in ((16,) if quick else (8, 16, 32))],
        "boto3": [{"workers": count, **_PREFETCH} for count in workers],
        "boto3_threads": [{"workers": count, "threads": 16, **_PREFETCH} for count in workers],
        "s3torchconnector": [{"workers": count, **_PREFETCH} for count in workers],
        "litdata_raw": [
            {"workers": count, "cache_files": caches, **(_PREFETCH if count else {})}
            for count in (workers if quick else (0, *workers))
            for caches in ((1,) if quick else (0, 1))
        ],
    }
    return grids.get(arm, [{}])
