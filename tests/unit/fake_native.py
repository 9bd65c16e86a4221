# SPDX-License-Identifier: Apache-2.0
"""A fake of ``foresee._native`` over local files: slow, synchronous, and good enough to test the faces against.

Used only where the real module is not built; see ``conftest.py``.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import threading

import numpy as np

from foresee.errors import Closed, IndexInvalid, OriginChanged, OriginError, OriginMissing

__version__ = "0.0.0+fake"
PICTURES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


class Index:
    def __init__(self, facts):
        self._facts = facts

    @staticmethod
    def open(path):
        data = pathlib.Path(path).read_bytes()
        try:
            return Index(json.loads(data))
        except ValueError as error:
            raise IndexInvalid(f"{path}: not an index") from error

    @staticmethod
    def build(uri, *, layout, extensions=None, row_bytes=None, keys=None, options=None, progress=None):
        root = pathlib.Path(uri.removeprefix("file://"))
        facts = {
            "uri": str(root),
            "layout": layout,
            "classes": [],
            "keys": [],
            "sizes": [],
            "labels": [],
            "offsets": [],
        }
        facts["row"] = None
        if not root.exists():
            raise OriginMissing(f"{uri}: no such file or directory")
        if layout == "folder":
            facts["classes"] = sorted(p.name for p in root.iterdir() if p.is_dir())
            for label, name in enumerate(facts["classes"]):
                for folder, _, files in sorted(os.walk(root / name)):
                    for file in sorted(files):
                        if file.lower().endswith(tuple(extensions or PICTURES)):
                            path = pathlib.Path(folder) / file
                            facts["keys"].append(str(path.relative_to(root)))
                            facts["sizes"].append(path.stat().st_size)
                            facts["labels"].append(label)
        elif layout == "flat":
            for path in sorted(p for p in root.rglob("*") if p.is_file()):
                facts["keys"].append(str(path.relative_to(root)))
                facts["sizes"].append(path.stat().st_size)
                facts["labels"].append(-1)
        else:
            offset = 0
            if layout == "npy":
                array = np.load(root, mmap_mode="r")
                facts["row"] = [array.dtype.str, list(array.shape[1:])]
                row_bytes, offset = array.dtype.itemsize * int(np.prod(array.shape[1:])), array.offset
            count = (root.stat().st_size - offset) // row_bytes
            facts["keys"] = [""] * count
            facts["sizes"] = [row_bytes] * count
            facts["labels"] = [-1] * count
            facts["offsets"] = [offset + i * row_bytes for i in range(count)]
        if not facts["keys"]:
            raise IndexInvalid(f"{uri}: no samples")
        if progress is not None:
            progress(len(facts["keys"]), sum(facts["sizes"]))
        return Index(facts)

    def save(self, path):
        pathlib.Path(path).write_text(json.dumps(self._facts))

    def update(self, other):
        mine = dict(zip(self._facts["keys"], self._facts["sizes"], strict=True))
        new = dict(zip(other._facts["keys"], other._facts["sizes"], strict=True))
        return {
            "added": len(new.keys() - mine.keys()),
            "removed": len(mine.keys() - new.keys()),
            "changed": sum(mine[k] != new[k] for k in mine.keys() & new.keys()),
            "kept": sum(mine[k] == new[k] for k in mine.keys() & new.keys()),
        }

    def __len__(self):
        return len(self._facts["keys"])

    uri = property(lambda self: self._facts["uri"])
    layout = property(lambda self: self._facts["layout"])
    classes = property(lambda self: self._facts["classes"])
    max_size = property(lambda self: max(self._facts["sizes"]))
    total_bytes = property(lambda self: sum(self._facts["sizes"]))

    @property
    def fingerprint(self):
        return hashlib.md5(json.dumps(self._facts).encode()).hexdigest()

    @property
    def uniform_size(self):
        sizes = set(self._facts["sizes"])
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def row_dtype(self):
        return self._facts["row"][0] if self._facts["row"] else None

    @property
    def row_shape(self):
        return tuple(self._facts["row"][1]) if self._facts["row"] else None

    def sample_uri(self, sample):
        key = self._facts["keys"][sample]
        return str(pathlib.Path(self.uri) / key) if key else self.uri

    def key(self, sample):
        return self._facts["keys"][sample].encode()

    def size(self, sample):
        return self._facts["sizes"][sample]

    def label(self, sample):
        label = self._facts["labels"][sample]
        return None if label < 0 else label

    def labels(self):
        return np.array(self._facts["labels"], dtype=np.int64)

    def describe(self, limit):
        return {
            "uri": self.uri,
            "layout": self.layout,
            "samples": len(self),
            "first": self._facts["keys"][:limit],
        }


class Cache:
    def __init__(self, *, ram_bytes, disk_dir, disk_bytes):
        if ram_bytes > 2**50:
            raise ValueError(f"ram={ram_bytes} is above the limit of {2**50}")


class Batch:
    def __init__(self, **facts):
        self.__dict__.update(facts)

    def __len__(self):
        return len(self.ids)


class Loader:
    def __init__(
        self,
        index,
        cache,
        *,
        uri,
        options,
        batch_size,
        drop_last,
        order,
        epochs,
        rank,
        world_size,
        local_rank,
        local_world_size,
        staging_bytes,
        threads,
        run_dir,
    ):
        self.index, self.uri, self.batch_size, self.drop_last = index, uri, batch_size, drop_last
        self.order, self.epochs, self.rank, self.world_size = order, epochs, rank, world_size
        self.closed, self.lock, self.course, self.announced = False, threading.Lock(), None, {}
        self.seeks, self.samples = [], 0

    def start(self):
        pass

    def announce(self, epoch, ids, lengths):
        assert ids.dtype == np.int64
        self.announced[epoch] = (ids, lengths)

    def seek(self, epoch, position):
        with self.lock:
            self.seeks.append((epoch, position))
            self._aim(epoch, position)

    def _ids(self, epoch, position):
        order, n = self.order, len(self.index)
        if order["name"] == "keyed-1":
            count = -(-(n - position) // self.world_size)
            where = (position + np.arange(count) * self.world_size + self.rank) % n
            return order_keyed(n, order["seed"], epoch, where).astype(np.int64)
        return order_distributed(
            n,
            self.world_size,
            self.rank,
            seed=order["seed"],
            epoch=epoch,
            shuffle=order["shuffle"],
            drop_last=order["drop_last"],
            start=position,
        ).astype(np.int64)

    def _aim(self, epoch, position):
        lengths = None
        if self.order is None:
            if epoch not in self.announced:
                self.course = None
                return
            ids, lengths = self.announced[epoch]
        else:
            ids = self._ids(epoch, position)
        if lengths is None:
            end = len(ids) // self.batch_size * self.batch_size if self.drop_last else len(ids)
            bounds = [*range(0, end, self.batch_size), end]
        else:
            bounds = [0, *np.cumsum(lengths).tolist()]
        self.course = [epoch, ids, bounds, 0]

    def next_batch(self, *, timeout_ms=None):
        with self.lock:
            if self.closed:
                raise Closed("closed")
            if self.course is None:
                self._aim(0, 0)
            epoch, ids, bounds, step = self.course
            if step >= len(bounds) - 1:
                if self.order is not None and (self.epochs is None or epoch + 1 < self.epochs):
                    self._aim(epoch + 1, 0)
                return None
            self.course[3] += 1
        ids = ids[bounds[step] : bounds[step + 1]].copy()
        parts, faults = [], []
        for place, sample in enumerate(ids.tolist()):
            try:
                parts.append(self.read(sample))
            except OriginMissing as error:
                parts.append(bytes(self.index.size(sample)))
                faults.append((place, "missing", str(error), True))
            except OriginChanged as error:
                parts.append(bytes(self.index.size(sample)))
                faults.append((place, "changed", str(error), True))
        self.samples += len(ids)
        return Batch(
            data=np.frombuffer(bytearray().join(parts), dtype=np.uint8),
            offsets=np.cumsum([0] + [len(p) for p in parts]).astype(np.int64),
            ids=ids,
            labels=self.index.labels()[ids],
            epoch=epoch,
            step=step,
            start=bounds[step],
            last=step + 1 == len(bounds) - 1,
            faults=faults,
        )

    def read(self, sample):
        facts = self.index._facts
        try:
            with open(self.index.sample_uri(sample), "rb") as file:
                if facts["offsets"]:
                    file.seek(facts["offsets"][sample])
                    return file.read(facts["sizes"][sample])
                data = file.read()
        except FileNotFoundError as error:
            raise OriginMissing(str(error)) from error
        except OSError as error:
            raise OriginError(str(error)) from error
        if len(data) != facts["sizes"][sample]:
            raise OriginChanged(f"{self.index.sample_uri(sample)} changed")
        return data

    def steps(self, position):
        count = len(self._ids(0, position))
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def stats(self):
        return {"samples": self.samples}

    def close(self):
        self.closed = True


def order_randperm(n, seed):
    import torch

    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).numpy().astype(np.uint32)


def order_distributed(n, world_size, rank, *, seed=0, epoch=0, shuffle=True, drop_last=False, start=0):
    whole = order_randperm(n, seed + epoch) if shuffle else np.arange(n, dtype=np.uint32)
    rest = whole[start:]
    if drop_last and len(rest) % world_size:
        rest = rest[: len(rest) // world_size * world_size]
    elif len(rest) % world_size:
        rest = np.concatenate([rest, np.resize(whole, -len(rest) % world_size)])
    return rest[rank::world_size].copy()


def order_keyed(n, seed, epoch, positions):
    return order_randperm(n, (seed ^ 12345) + epoch)[positions.astype(np.int64)].astype(np.uint64)


def order_audit_sum(seed, epoch, positions, ids):
    total = 0
    for position, sample in zip(positions.tolist(), ids.tolist(), strict=True):
        total += int.from_bytes(hashlib.md5(f"{seed} {epoch} {position} {sample}".encode()).digest(), "big")
    return total % 2**128
