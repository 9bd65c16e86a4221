# SPDX-License-Identifier: Apache-2.0
"""What training frameworks look for in a loader, and warnings where one of them would read the data in its own way.

No framework is imported. Lightning and the Trainer of Transformers need nothing of this: they take any iterable with
``__len__``, ``state_dict`` and a sampler. Accelerate keeps a list of the loaders that are being iterated, and Ray wraps
loaders. ``docs/notes/037-frameworks.md`` has the calls of each.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from torch.utils.data import BatchSampler

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from foresee._loading.session import Session

_log = logging.getLogger("foresee")


def warn_of_caller(depth: int = 2) -> None:
    """Warn if the function that called the caller belongs to a wrapper that reads ahead of the training loop."""
    caller: str = sys._getframe(depth).f_globals.get("__name__", "")  # noqa: SLF001 - CPython's own name for it
    if caller.startswith("ray.train."):
        _log.warning(
            "ray.train.torch.prepare_data_loader() requests one batch more than the training loop has received, so "
            "state_dict() counts a batch that was not trained on; iterate over the Foresee loader itself: it knows its "
            "rank, and batches go to the device with .to(ray.train.torch.get_device())"
        )


def warn_of_resume(state: Mapping[str, Any], session: Session, depth: int = 2) -> None:
    """Warn if Lightning goes on at a state whose batches are of another size or on other ranks.

    Lightning counts the batches of the epoch from the checkpoint's number of them to ``len(loader)``.
    """
    caller: str = sys._getframe(depth).f_globals.get("__name__", "")  # noqa: SLF001 - as above
    before, now = (state["world_size"], state["batch_size"]), (session.world.size, session.batch_size)
    is_inside = state["position"] and not state["finished"]
    if caller.startswith(("lightning.", "pytorch_lightning.")) and is_inside and before != now:
        _log.warning(
            "this checkpoint was saved in the middle of an epoch on %s rank(s) with batch_size=%s, and is loaded on %s "
            "rank(s) with batch_size=%s: Lightning counts the batches before as if they had been of this size, and may "
            "end the epoch before its last sample; use the values of the saved run, or a checkpoint of an epoch's end",
            *before,
            *now,
        )


class ShownBatches(BatchSampler):
    """``batch_sampler`` of a loader: this rank's lists of indices. Only other loaders iterate over it."""

    def __iter__(self) -> Iterator[list[int]]:
        caller: str = sys._getframe(1).f_globals.get("__name__", "")  # noqa: SLF001 - as above
        if caller.startswith("accelerate."):
            _log.warning(
                "accelerate.skip_first_batches() reads the rest of this epoch with a DataLoader of torch, without "
                "Foresee's cache and read-ahead; load the state of the Foresee loader instead, with "
                "load_state_dict(), and in a Trainer of Transformers set TrainingArguments.ignore_data_skip"
            )
        return super().__iter__()

    def set_epoch(self, epoch: int) -> None:
        """Name the sampler's epoch: the Trainer of Transformers does so where it skips batches."""
        name = getattr(self.sampler, "set_epoch", None)
        if callable(name):
            name(epoch)


class Iterated:
    """A loader of ours as Accelerate's ``GradientState`` knows those that are being iterated.

    Without it ``accumulate()`` would not step at an epoch's end, and ``gather_for_metrics()`` would count the samples
    that fill up the last batch twice.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the epoch's last batch was handed out."""
        return self._session.progress.place.finished

    @property
    def remainder(self) -> int:
        """Samples of the last batch over all ranks without those that fill it up, 0: all; -1: not known.

        Accelerate keeps the first of them in the order of the ranks. Repeated samples stand at the end of the last
        ranks' batches, so they are the last of all only if there is one, or if the batches have one sample.
        """
        session = self._session
        if session.order is None or session.batch_size is None:
            return 0 if session.world.size == 1 else -1
        ranks, rest = session.world.size, session.order.n - session.began.position
        repeated = -rest % ranks
        last = (rest + repeated) // ranks % session.batch_size
        if not repeated or session.order.drop_last or (last and session.drop_last):
            return 0
        last = last or session.batch_size
        if repeated == 1 or last == 1:
            return ranks * last - repeated
        _log.warning(
            "%d samples of the last batch are repeated so that all ranks have equally many, and Accelerate cannot tell "
            "which; drop them from what gather_for_metrics() returns, or evaluate on one rank",
            repeated,
        )
        return -1


def as_accelerate_follows(batches: Iterator[Any], session: Session) -> Iterator[Any]:
    """``batches``, during which an initialized Accelerate knows that a loader is being iterated."""
    module = sys.modules.get("accelerate.state")
    state = None if module is None else module.GradientState
    if state is None or not state._shared_state:  # noqa: SLF001 - asking it in another way would initialize it
        return batches
    return _followed(batches, state(), Iterated(session))


def _followed(batches: Iterator[Any], state: Any, iterated: Iterated) -> Iterator[Any]:
    state._add_dataloader(iterated)  # noqa: SLF001 - what loaders of other packages are to call, too
    try:
        yield from batches
    finally:
        state._remove_dataloader(iterated)  # noqa: SLF001 - as above
