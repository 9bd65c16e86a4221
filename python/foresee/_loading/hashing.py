# SPDX-License-Identifier: Apache-2.0
"""The hash behind substitutes and seeds, which are the same on every rank and after every resume.

splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014): its finaliser is a
bijection of 64 bits. Frozen: another hash would give resumed runs other substitutes and other augmentations.
"""

from __future__ import annotations

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def splitmix64(value: int) -> int:
    """Return the output of splitmix64 in state ``value``, taken modulo 2**64.

    >>> hex(splitmix64(0))
    '0xe220a8397b1dcdaf'
    """
    z = (value + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def hash64(*parts: int) -> int:
    """Hash ``parts`` in their order to 64 bits: ``h = splitmix64(h ^ part)``, from ``h = 0``."""
    h = 0
    for part in parts:
        h = splitmix64(h ^ (part & _MASK))
    return h


def substitute(seed: int, epoch: int, sample: int, attempt: int, samples: int) -> int:
    """Return the substitute of ``sample``; ``attempt``: 0, then 1, 2, ... while the substitute is unreadable too."""
    return hash64(seed, epoch, sample, attempt) % samples


def seed_of(seed: int, epoch: int, position: int) -> int:
    """Return the seed of random transforms of the sample at the global ``position`` of ``epoch``."""
    return hash64(seed, epoch, position)
