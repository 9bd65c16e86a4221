# SPDX-License-Identifier: Apache-2.0
"""Errors of Foresee, under one root.

Each class also derives from the matching builtin (``OriginMissing`` is a ``FileNotFoundError``), so ``except OSError``
works in scripts without Foresee's classes. ``KeyError`` is no base, because it prints its message in quotes. The Rust
core raises these classes, so this module imports nothing else of Foresee.
"""

from __future__ import annotations

from typing import Any


def _rebuild(kind: type[ForeseeError], arguments: tuple[Any, ...]) -> ForeseeError:
    error = kind.__new__(kind)
    error.args = arguments
    return error


class ForeseeError(Exception):
    """Base of all errors of Foresee."""


class _ErrorWithFields(ForeseeError):
    """An error whose constructor takes the values of its fields, not the message."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep message and fields, so that the error can be passed to another process."""
        return _rebuild, (type(self), self.args), self.__dict__


class OriginError(ForeseeError, OSError):
    """The origin (bucket or directory) cannot be reached, listed or read."""


class OriginMissing(OriginError, FileNotFoundError):
    """The origin no longer has an object that the index lists."""


class OriginChanged(OriginError):
    """An object differs from its entry in the index; ``foresee index --update`` lists it again."""


class OriginDenied(OriginError, PermissionError):
    """The origin refuses the credentials."""


class IndexInvalid(ForeseeError, ValueError):
    """A file is not a usable index, or a listing cannot become one."""


class NoSamples(IndexInvalid):
    """A listing has no sample of the requested layout; another layout may fit."""


class CacheError(ForeseeError, OSError):
    """The cache directory cannot be used. A later failure of the cache costs time and raises nothing."""


class CatalogInvalid(ForeseeError, ValueError):
    """A file is not a usable catalog of jobs: it has another version or format, or is damaged."""


class CatalogBusy(ForeseeError, TimeoutError):
    """Another program locked a catalog and did not release it in time."""


class JobFailed(ForeseeError, RuntimeError):
    """A started job ended too early, or takes no steps; the message has the end of its log."""


class PageCacheKept(ForeseeError, OSError):
    """The data's files cannot be evicted from the page cache, so a cold read cannot be measured."""


class SlurmUnreachable(ForeseeError, OSError):
    """Slurm is not installed, or its controller does not answer."""


class StallTimeout(ForeseeError, TimeoutError, RuntimeError):
    """A batch did not arrive within ``timeout``; it is still in flight, so the next call may return it."""


class Closed(ForeseeError, RuntimeError):
    """The loader was closed, or this iterator was replaced by a newer one."""


class WorkerDied(ForeseeError, RuntimeError):
    """A worker process ended early; the message has its number and exit status."""


class Unsupported(_ErrorWithFields, ValueError):
    """A policy cannot simulate a job; others may.

    Attributes:
        policy: name of the policy.
        reason: reason in words.
    """

    def __init__(self, policy: str, reason: str) -> None:
        self.policy, self.reason = policy, reason
        super().__init__(f"{policy} has no answer for this job: {reason}")


class RankLost(_ErrorWithFields, RuntimeError):
    """Another rank of the job is lost, so gradients cannot be averaged; the message has what was missing.

    Attributes:
        rank: the lost rank.
    """

    def __init__(self, message: str, rank: int) -> None:
        self.rank = rank
        super().__init__(message)


class ServerLost(_ErrorWithFields, ConnectionError):
    """A gradient server cannot be reached, refuses this rank, or is lost.

    Attributes:
        address: ``ip:port`` of the server.
    """

    def __init__(self, message: str, address: str) -> None:
        self.address = address
        super().__init__(message)


class StateMismatch(ForeseeError, ValueError):
    """A saved state does not fit this loader; the message has both values of each difference."""


class ConfigError(_ErrorWithFields, ValueError):
    """Arguments or environment variables are wrong.

    Attributes:
        faults: all faults, each with its remedy.
    """

    def __init__(self, faults: str | list[str]) -> None:
        self.faults = [faults] if isinstance(faults, str) else list(faults)
        text = self.faults[0] if len(self.faults) == 1 else "".join(f"\n- {fault}" for fault in self.faults)
        super().__init__(text)


class NotMeasured(_ErrorWithFields, LookupError):
    """A required value is unknown; 0 never stands for it.

    Attributes:
        field: name of the value.
        remedy: what measures it, or where to write it.
    """

    def __init__(self, field: str, remedy: str) -> None:
        self.field = field
        self.remedy = remedy
        super().__init__(f"{field} is not known; {remedy}")


class PackageMissing(ForeseeError, ModuleNotFoundError):
    """An optional Python package is not installed; the message names the extra that installs it."""


class SampleFault(_ErrorWithFields, RuntimeError):
    """One sample could not be delivered; raised at its batch, with the original error as ``__cause__``.

    Attributes:
        sample: id of the sample.
        uri: URI of the sample.
        rank: rank that requested it.
        kind: ``missing``, ``changed``, ``denied``, ``corrupt``, ``throttled``, ``timeout``, ``failed``, ``decode``,
            ``transform`` or ``dataset`` (a dataset of the user's raised an error).
        cause: cause in words.
        remedy: remedy in words.
        permanent: whether another attempt is useless; ``on_error`` handles only such faults.
    """

    def __init__(
        self, sample: int, uri: str, rank: int, kind: str, cause: str, remedy: str, *, permanent: bool
    ) -> None:
        self.sample = sample
        self.uri = uri
        self.rank = rank
        self.kind = kind
        self.cause = cause
        self.remedy = remedy
        self.permanent = permanent
        super().__init__(f"sample {sample} ({uri}) on rank {rank}: {cause}; {remedy}")
