# SPDX-License-Identifier: Apache-2.0
"""Optional Python packages, imported on use; the error of a missing one names the extra that installs it."""

from __future__ import annotations

import importlib
from typing import Any

from foresee.errors import PackageMissing


def pillow() -> Any:
    """Return ``PIL.Image``."""
    return _imported("PIL.Image", "images are decoded with Pillow; install pillow, or foresee[pictures]")


def pyarrow(module: str) -> Any:
    """Return the module ``pyarrow.<module>``, such as ``csv``."""
    return _imported(
        f"pyarrow.{module}", "tables are read with PyArrow; pip install pyarrow, or foresee[tables]"
    )


def botocore(module: str) -> Any:
    """Return the module ``botocore.<module>``, such as ``session``."""
    return _imported(
        f"botocore.{module}", "AWS profiles are read with botocore; install botocore, or foresee[aws]"
    )


def cloudpickle() -> Any:
    """Return the module ``cloudpickle``."""
    return _imported(
        "cloudpickle",
        "num_workers= sends transforms to processes with cloudpickle; install cloudpickle, or foresee[workers]",
    )


def _imported(module: str, remedy: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise PackageMissing(remedy) from error
