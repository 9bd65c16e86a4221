# SPDX-License-Identifier: Apache-2.0
"""A sample that arrived but cannot be used: ``on_error``, or the error for the user.

Apart from ``_faults``, which knows samples that did not arrive; shared by threads and worker processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foresee._batch import Batch
    from foresee._session import Session
    from foresee.torch._assemble import SampleError


def mend(session: Session, batch: Batch, error: SampleError) -> Batch:
    """``batch`` without the sample that could not be decoded, as ``on_error`` says; or the error for the
    user.
    """
    cause = error.__cause__
    said = f"{type(cause).__name__}: {cause}"
    decode = error.kind == "decode"
    text = f"cannot be decoded ({said})" if decode else f"the transform raised {said}"
    fault = session.faults.error(int(batch.ids[error.place]), error.kind, text, permanent=decode)
    fault.__cause__ = cause
    return session.faults.mend(batch, {error.place: fault})
