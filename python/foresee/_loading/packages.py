# SPDX-License-Identifier: Apache-2.0
"""Python packages that only some users need, imported when they are needed.

A package that is missing is reported with the extra of ``foresee`` that installs it.
"""

from __future__ import annotations

import importlib
from typing import Any

from foresee.errors import PackageMissing

__all__ = ["cloudpickle", "pillow", "pyarrow"]


def pillow() -> Any:
    """``PIL.Image``.

    Raises:
        PackageMissing: Pillow is not installed.
    """
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise PackageMissing(
            "pictures are decoded with Pillow; install pillow, or foresee[pictures]"
        ) from error
    return Image


def pyarrow(module: str) -> Any:
    """The module ``pyarrow.`` and ``module``, such as ``csv``.

    Raises:
        PackageMissing: it is not installed.
    """
    try:
        return importlib.import_module(f"pyarrow.{module}")
    except ModuleNotFoundError as error:
        raise PackageMissing(
            "tables are read with PyArrow; pip install pyarrow, or foresee[tables]"
        ) from error


def cloudpickle() -> Any:
    """The module ``cloudpickle``.

    Raises:
        PackageMissing: it is not installed.
    """
    try:
        import cloudpickle as module
    except ModuleNotFoundError as error:
        raise PackageMissing(
            "num_workers= sends transforms to processes with cloudpickle; install cloudpickle, or foresee[workers]"
        ) from error
    return module
