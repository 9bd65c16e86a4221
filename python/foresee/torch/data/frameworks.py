# SPDX-License-Identifier: Apache-2.0
"""Integration with training frameworks, and warnings where a framework would bypass the loader.

No framework is imported. Lightning and the Trainer of Transformers take any iterable with ``__len__``, ``state_dict``
and a sampler. Accelerate tracks the loaders in use, and Ray wraps loaders. ``docs/notes/037-frameworks.md`` has
the calls of each.
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


def warn_about_caller(depth: int = 2) -> None:
    """Warn if the caller's caller is a wrapper that requests batches ahead of the training loop."""
    caller: str = sys._getframe(depth).f_globals.get("__name__", "")  # noqa: SLF001 - CPython's own name for it
    if caller.startswith("ray.train."):
        _log.warning(
            "ray.train.torch.prepare_data_loader() requests one batch more than the training loop has received, so "
            "state_dict() counts a batch that was not trained on; iterate over the Foresee loader itself: it has its "
            "rank, and batches go to the device with .to(ray.train.torch.get_device())"
        )


def warn_about_resume(state: Mapping[str, Any], session: Session, depth: int = 2) -> None:
    """Warn if Lightning resumes with another batch size or world size.

    Lightning counts the batches of the epoch from their number in the checkpoint to ``len(loader)``.
    """
    caller: str = sys._getframe(depth).f_globals.get("__name__", "")  # noqa: SLF001 - as above
    before, now = (state["world_size"], state["batch_size"]), (session.world.size, session.batch_size)
    is_inside = state["position"] and not state["finished"]
    if caller.startswith(("lightning.", "pytorch_lightning.")) and is_inside and before != now:
        _log.warning(
            "this checkpoint was saved in the middle of an epoch on %s rank(s) with batch_size=%s, and is loaded on %s "
            "rank(s) with batch_size=%s: Lightning counts the earlier batches as if they had this size, and may "
            "end the epoch before its last sample; use the values of the saved run, or a checkpoint of an epoch's end",
            *before,
            *now,
        )


class PublicBatchSampler(BatchSampler):
    """``batch_sampler`` of a loader, with this rank's lists of indices. Only other loaders iterate over it."""

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
        """Set the sampler's epoch; the Trainer of Transformers calls it where it skips batches."""
        set_epoch = getattr(self.sampler, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)


class AccelerateLoader:
    """A loader in use, as Accelerate's ``GradientState`` tracks it.

    It makes ``accumulate()`` step at an epoch's end, and ``gather_for_metrics()`` drop the padding of the last batch.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the epoch's last batch was returned."""
        return self._session.progress.place.finished

    @property
    def remainder(self) -> int:
        """Samples of the last batch over all ranks without its padding, 0: all; -1: unknown.

        Accelerate takes the first of them in the order of the ranks. The padding is at the end of the last ranks'
        batches, so it is at the end of all only if it is one sample, or if the batches have one sample.
        """
        session = self._session
        if session.order is None or session.batch_size is None:
            return 0 if session.world.size == 1 else -1
        ranks, rest = session.world.size, session.order.n - session.start_place.position
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


def track_in_accelerate(batches: Iterator[Any], session: Session) -> Iterator[Any]:
    """Iterate over ``batches`` while an initialized Accelerate tracks the loader."""
    module = sys.modules.get("accelerate.state")
    state = None if module is None else module.GradientState
    if state is None or not state._shared_state:  # noqa: SLF001 - any other access would initialize it
        return batches
    return _tracked(batches, state(), AccelerateLoader(session))


def _tracked(batches: Iterator[Any], state: Any, iterated: AccelerateLoader) -> Iterator[Any]:
    state._add_dataloader(iterated)  # noqa: SLF001 - the documented call for other loaders
    try:
        yield from batches
    finally:
        state._remove_dataloader(iterated)  # noqa: SLF001 - as above
