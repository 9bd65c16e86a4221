# SPDX-License-Identifier: Apache-2.0
"""A sample that could not be made: ``on_error``, or the error for the user.

Threads and worker processes share it. Samples that could not be read are handled by ``foresee._loading.on_error``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foresee._loading.batch import Batch
    from foresee._loading.session import Session
    from foresee.torch.data.assemble import SampleError

_WHAT = {
    "decode": "cannot be decoded ({})",
    "transform": "the transform raised {}",
    "dataset": "the dataset raised {}",
}


def repair(session: Session, batch: Batch, error: SampleError) -> Batch:
    """Return ``batch`` with another sample in the place of the failed one, or without it, as ``on_error`` decides.

    Raises:
        SampleFault: ``on_error`` decides so.
        Exception: the exception of a dataset that is not Foresee's, as torch's loader raises it.
    """
    cause = error.__cause__
    assert cause is not None, "a SampleError has its cause"
    sample, place = int(batch.ids[error.place]), error.place
    if error.kind == "dataset" and session.faults.raises:
        if hasattr(cause, "add_note"):
            cause.add_note(
                f"for {session.source.sample_uri(sample)} at position {int(batch.positions[place])} of epoch "
                f"{batch.epoch}, rank {session.world.rank}"
            )
        raise cause
    text = _WHAT[error.kind].format(f"{type(cause).__name__}: {cause}")
    fault = session.faults.error(sample, error.kind, text, permanent=True)
    fault.__cause__ = cause
    return session.faults.repair(batch, {place: fault})
