# SPDX-License-Identifier: Apache-2.0
"""``on_error`` for a sample whose decoding, transform or dataset failed, on threads and in worker processes.

``foresee._loading.on_error`` handles samples that could not be read.
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
    """Replace or skip the failed sample of ``batch``, as ``on_error`` decides.

    Raises:
        SampleFault: ``on_error`` is ``raise``.
        Exception: the exception of a user's dataset if ``on_error`` is ``raise``, as from torch's loader.
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
