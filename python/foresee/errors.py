# SPDX-License-Identifier: Apache-2.0
"""Every error that Foresee raises, under one root.

Each class is also the builtin that a caller would expect (``OriginMissing`` is a ``FileNotFoundError``),
so ``except OSError`` keeps working in scripts that know nothing of Foresee. The Rust core raises these very
classes; that is why they stand apart from all code and import nothing.

A message says what failed, where, and what to do. ``KeyError`` is no base here: it prints its message in
quotes.
"""

from __future__ import annotations

__all__ = [
    "CacheError",
    "CatalogBusy",
    "CatalogInvalid",
    "Closed",
    "ConfigError",
    "ForeseeError",
    "IndexInvalid",
    "JobFailed",
    "NoSamples",
    "NotMeasured",
    "OriginChanged",
    "OriginDenied",
    "OriginError",
    "OriginMissing",
    "PackageMissing",
    "PageCacheKept",
    "RankLost",
    "SampleFault",
    "ServerLost",
    "SlurmUnreachable",
    "StallTimeout",
    "StateMismatch",
    "Unsupported",
    "WorkerDied",
]


class ForeseeError(Exception):
    """Root of the tree: ``except ForeseeError`` catches whatever Foresee itself reports."""


class OriginError(ForeseeError, OSError):
    """The origin (bucket or directory) cannot be reached, listed or read."""


class OriginMissing(OriginError, FileNotFoundError):
    """The origin no longer has an object that the index lists."""


class OriginChanged(OriginError):
    """An object differs from what the index lists; ``foresee index --update`` lists it anew."""


class OriginDenied(OriginError, PermissionError):
    """The origin refuses the credentials."""


class IndexInvalid(ForeseeError, ValueError):
    """A file is not a usable index, or a listing cannot become one."""


class NoSamples(IndexInvalid):
    """A listing has no sample of the layout that was asked for; another layout may fit."""


class CacheError(ForeseeError, OSError):
    """The cache directory cannot be used. A cache that fails later costs time, never an error."""


class CatalogInvalid(ForeseeError, ValueError):
    """A file is not a usable catalog of jobs: of another version, damaged, or something else altogether."""


class CatalogBusy(ForeseeError, TimeoutError):
    """Another program has a catalog locked, and did not let go in time."""


class JobFailed(ForeseeError, RuntimeError):
    """A job that was started ended too early, or takes no steps; the message has the end of its log."""


class PageCacheKept(ForeseeError, OSError):
    """The data's files cannot be driven out of memory here, so no figure of a cold cache can be measured."""


class SlurmUnreachable(ForeseeError, OSError):
    """Slurm is not installed here, or its controller does not answer."""


class StallTimeout(ForeseeError, TimeoutError, RuntimeError):
    """A batch did not come within ``timeout``; it is still on its way, so asking again is right."""


class Closed(ForeseeError, RuntimeError):
    """The loader was closed, or this iterator was replaced by a newer one."""


class WorkerDied(ForeseeError, RuntimeError):
    """A worker process ended before its work did; the message names it and how it ended."""


class Unsupported(ForeseeError, ValueError):
    """A policy has no answer for a job; others may.

    Attributes:
        policy: which.
        reason: why.
    """

    def __init__(self, policy: str, reason: str) -> None:
        self.policy, self.reason = policy, reason
        super().__init__(f"{policy} has no answer for this job: {reason}")

    def __reduce__(self) -> tuple[type[Unsupported], tuple[str, str]]:
        """Rebuild from the facts, so that the error crosses process borders whole."""
        return type(self), (self.policy, self.reason)


class RankLost(ForeseeError, RuntimeError):
    """Another rank of the job is gone, so gradients cannot be averaged; the message says what was still wanted.

    Attributes:
        rank: which one.
    """

    def __init__(self, message: str, rank: int) -> None:
        self.rank = rank
        super().__init__(message)

    def __reduce__(self) -> tuple[type[RankLost], tuple[str, int]]:
        """Rebuild from the facts, so that the error crosses process borders whole."""
        return type(self), (str(self), self.rank)


class ServerLost(ForeseeError, ConnectionError):
    """A server of gradients cannot be reached, refuses this rank, or is gone.

    Attributes:
        address: ``ip:port`` of the server.
    """

    def __init__(self, message: str, address: str) -> None:
        self.address = address
        super().__init__(message)

    def __reduce__(self) -> tuple[type[ServerLost], tuple[str, str]]:
        """Rebuild from the facts, so that the error crosses process borders whole."""
        return type(self), (str(self), self.address)


class StateMismatch(ForeseeError, ValueError):
    """A saved state does not fit this loader; the message shows both values of everything that differs."""


class ConfigError(ForeseeError, ValueError):
    """Arguments or environment variables are wrong.

    Attributes:
        faults: every fault found, each with its remedy, so that one run shows them all.
    """

    def __init__(self, faults: str | list[str]) -> None:
        self.faults = [faults] if isinstance(faults, str) else list(faults)
        text = self.faults[0] if len(self.faults) == 1 else "".join(f"\n- {fault}" for fault in self.faults)
        super().__init__(text)

    def __reduce__(self) -> tuple[type[ConfigError], tuple[list[str]]]:
        """Rebuild from the faults: the default would pass the joined text."""
        return type(self), (self.faults,)


class NotMeasured(ForeseeError, LookupError):
    """A figure that the question needs is not there. It is never taken for 0.

    Attributes:
        field: which one.
        remedy: what measures it, or where to write it.
    """

    def __init__(self, field: str, remedy: str) -> None:
        self.field = field
        self.remedy = remedy
        super().__init__(f"{field} is not known; {remedy}")

    def __reduce__(self) -> tuple[type[NotMeasured], tuple[str, str]]:
        """Rebuild from the facts."""
        return type(self), (self.field, self.remedy)


class PackageMissing(ForeseeError, ModuleNotFoundError):
    """A Python package that only some need is not installed; the message names the extra that has it."""


class SampleFault(ForeseeError, RuntimeError):
    """One sample could not be delivered. Raised at the batch it belongs to, not earlier.

    The error that caused it, where there is one, is its ``__cause__``.

    Attributes:
        sample: id of the sample.
        uri: where it lies.
        rank: rank that wanted it.
        kind: ``missing``, ``changed``, ``denied``, ``corrupt``, ``throttled``, ``timeout``, ``failed``, ``decode``,
            ``transform`` or ``dataset`` (a dataset of the user's raised an error).
        cause: what happened, in words.
        remedy: what to do about it.
        permanent: whether asking again is pointless; only such faults are for ``on_error``.
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

    def __reduce__(self) -> tuple[object, ...]:
        """Rebuild from the facts, so that the error crosses process borders whole."""
        facts = (self.sample, self.uri, self.rank, self.kind, self.cause, self.remedy)
        return _sample_fault, (*facts, self.permanent)


def _sample_fault(
    sample: int, uri: str, rank: int, kind: str, cause: str, remedy: str, permanent: bool
) -> SampleFault:
    return SampleFault(sample, uri, rank, kind, cause, remedy, permanent=permanent)
