# SPDX-License-Identifier: Apache-2.0
"""Optional Python packages, imported on use; the error of a missing one names the extra that installs it."""

from __future__ import annotations

import importlib
from typing import Any

from foresee.errors import PackageMissing


def pillow() -> Any:
    """Return ``PIL.Image``."""
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise PackageMissing(
            "images are decoded with Pillow; install pillow, or foresee[pictures]"
        ) from error
    return Image


def pyarrow(module: str) -> Any:
    """Return the module ``pyarrow.<module>``, such as ``csv``."""
    try:
        return importlib.import_module(f"pyarrow.{module}")
    except ModuleNotFoundError as error:
        raise PackageMissing(
            "tables are read with PyArrow; pip install pyarrow, or foresee[tables]"
        ) from error


def cloudpickle() -> Any:
    """Return the module ``cloudpickle``."""
    try:
        import cloudpickle as module
    except ModuleNotFoundError as error:
        raise PackageMissing(
            "num_workers= sends transforms to processes with cloudpickle; install cloudpickle, or foresee[workers]"
        ) from error
    return module
