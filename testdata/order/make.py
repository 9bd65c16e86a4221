# SPDX-License-Identifier: Apache-2.0
"""Writes the golden orders beside this file, as the installed torch (and Accelerate) gives them.

    python testdata/order/make.py            # torch.txt
    python testdata/order/make.py --shard    # shard.txt, needs accelerate

Only to be run when a case is added: a golden that changes is a torch that changed its order, or a defect of ours.
Neither file needs torch to be read. A line is a case: its kind, its arguments, `=`, what came out. Lists are folded
into 64 bits each (`fold`), so that thousands of cases stay readable in a review; short ones are spelled out.
"""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler

if TYPE_CHECKING:
    from collections.abc import Iterable

HERE = Path(__file__).parent
HEAD = "# SPDX-License-Identifier: Apache-2.0\n# Written by make.py with {}; see there for the meaning of a line.\n"


def fold(words: Iterable[int]) -> str:
    """FNV-1a over 64-bit words instead of bytes: order, values and length all count."""
    value = 0xCBF29CE484222325
    for word in words:
        value = ((value ^ word) * 0x100000001B3) % 2**64
    return f"{value:016x}"


def seeded(seed: int) -> torch.Generator:
    generator = torch.Generator()
    generator.manual_seed(seed)
    return generator


def generators() -> Iterable[str]:
    """Kind `draws`: seed = 3 of random_() and 3 of randint(high) for each high, the words' fold, the state's fold."""
    for seed in (0, 1, 42, -1, -7, 2**32, 2**32 + 5, 2**63 + 9, 2**64 - 1):
        generator = seeded(seed)
        drawn = [int(torch.empty((), dtype=torch.int64).random_(generator=generator)) for _ in range(3)]
        for high in (1, 7, 2**28 - 1, 2**28, 2**28 + 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**40, 2**62):
            drawn += torch.randint(high, (3,), generator=generator).tolist()
        state = bytes(generator.get_state().tolist())
        yield f"draws {seed % 2**64} = {fold(drawn)} {fold(state)}"


def permutations() -> Iterable[str]:
    """Kind `randperm`: n seed = the ids up to n = 12, else their fold."""
    for n in (*range(26), 100, 623, 624, 625, 626, 1000, 1247, 1248, 1249, 5000, 65_536, 100_000):
        for seed in (0, 1, 7, 42, 2**31, 2**32, 2**32 + 1, 2**64 - 1):
            ids = torch.randperm(n, generator=seeded(seed)).tolist()
            yield f"randperm {n} {seed} = {' '.join(map(str, ids)) if n <= 12 else fold(ids)}"


def distributed() -> Iterable[str]:
    """Kind `distributed`: n ranks shuffle drop_last = one fold for each of 3 seeds x 3 epochs.

    Folded are, rank after rank, how many indices it gets and which.
    """
    sizes = (0, 1, 2, 3, 4, 5, 7, 8, 10, 15, 16, 17, 31, 33, 64, 97, 100, 128, 255, 257)
    for n in sizes:
        for ranks in (1, 2, 3, 4, 5, 7, 8, 16, 33):
            for shuffle in (True, False):
                for drop_last in (False, True):
                    folds = []
                    for seed in (0, 42, 2**32 - 2):
                        for epoch in (0, 1, 90):
                            words: list[int] = []
                            for rank in range(ranks):
                                sampler: DistributedSampler[int] = DistributedSampler(
                                    range(n),  # type: ignore[arg-type]
                                    ranks,
                                    rank,
                                    shuffle=shuffle,
                                    seed=seed,
                                    drop_last=drop_last,
                                )
                                sampler.set_epoch(epoch)
                                indices = list(sampler)
                                words += [len(indices), *indices]
                            folds.append(fold(words))
                    yield f"distributed {n} {ranks} {shuffle:d} {drop_last:d} = {' '.join(folds)}"


def random() -> Iterable[str]:
    """Kind `random`: n num_samples replacement seed taken = the ids' fold, the fold of the generator's state after it.

    `taken` is how many samples were asked for, or `end`; the generator is given, and has drawn one word before.
    """
    pairs = "1/1 2/5 7/7 10/10 10/4 10/30 10/33 50/64 700/700 40/100"
    for n, num_samples in (map(int, pair.split("/")) for pair in pairs.split()):
        for replacement in (False, True):
            for taken in sorted({0, 1, n - 1, n, 32, 33, num_samples - 1, num_samples}):
                if 0 <= taken <= num_samples:
                    yield random_case(n, num_samples, replacement, taken)
            yield random_case(n, num_samples, replacement, None)


def random_case(n: int, num_samples: int, replacement: bool, taken: int | None) -> str:
    seed = n + num_samples
    generator = seeded(seed)
    torch.randint(9, (), generator=generator)
    sampler = RandomSampler(range(n), replacement=replacement, num_samples=num_samples, generator=generator)
    ids = list(sampler) if taken is None else list(islice(iter(sampler), taken))
    state = bytes(generator.get_state().tolist())
    asked = "end" if taken is None else str(taken)
    return f"random {n} {num_samples} {replacement:d} {seed} {asked} = {fold(ids)} {fold(state)}"


def shards() -> Iterable[str]:
    """Kind `shard`: n ranks batch drop_last even_batches = one fold for each of 2 seeds x 2 epochs, as `distributed`."""
    from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler  # noqa: PLC0415, only for --shard

    for n in (1, 2, 3, 5, 8, 10, 16, 17, 24, 31, 48, 100):
        for ranks in (1, 2, 3, 5):
            for batch in (1, 2, 4, 7):
                for drop_last, even in ((False, True), (False, False), (True, True)):
                    folds = []
                    for seed in (0, 42):
                        for epoch in (0, 3):
                            words: list[int] = []
                            for rank in range(ranks):
                                own = torch.Generator()
                                inner = SeedableRandomSampler(range(n), data_seed=seed, generator=own)
                                inner.set_epoch(epoch)
                                batches = BatchSampler(inner, batch, drop_last)
                                shard = BatchSamplerShard(batches, ranks, rank, even_batches=even)
                                indices = [index for group in shard for index in group]
                                words += [len(indices), *indices]
                            folds.append(fold(words))
                    yield f"shard {n} {ranks} {batch} {drop_last:d} {even:d} = {' '.join(folds)}"


def main() -> None:
    if "--shard" in sys.argv[1:]:
        import accelerate  # noqa: PLC0415, only for --shard

        name, lines = "shard.txt", [*shards()]
        versions = f"torch {torch.__version__}, accelerate {accelerate.__version__}"
    else:
        name, lines = "torch.txt", [*generators(), *permutations(), *distributed(), *random()]
        versions = f"torch {torch.__version__}"
    (HERE / name).write_text(HEAD.format(versions) + "\n".join(lines) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
