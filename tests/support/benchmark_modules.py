# SPDX-License-Identifier: Apache-2.0
"""Modules of a benchmark for tests of its pure parts."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

from support.house import ROOT

BENCHMARKS = ROOT / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from common import proof  # noqa: E402 - needs the path above
from common.runs import Run, Runs  # noqa: E402
from common.samples import key  # noqa: E402

__all__ = ["Run", "Runs", "key", "module_of", "proof", "run"]


def module_of(benchmark: str, name: str) -> ModuleType:
    """Import a module of a benchmark's `support`, under a name apart from that of the tests' own `support`."""
    package = f"{benchmark}_support"
    if package not in sys.modules:
        folder = BENCHMARKS / benchmark / "support"
        spec = importlib.util.spec_from_file_location(
            package, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules[package] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[package])
    return importlib.import_module(f"{package}.{name}")


def run(part: str, arm: str, repeat: int = 0, **values: float) -> Run:
    """Return a valid run of one rank."""
    return Run(part, arm, repeat, 1, 1, values=values)
