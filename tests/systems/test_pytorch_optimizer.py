# SPDX-License-Identifier: Apache-2.0
"""Every usable optimizer of `pytorch_optimizer` has stock bits when synchronized, or is refused by name."""

from __future__ import annotations

import pathlib

import pytest
from support import framework_runs as runs

pytestmark = [pytest.mark.systems, pytest.mark.timeout(300)]

PROGRAM = """
    import inspect, warnings
    import numpy as np
    import pytorch_optimizer
    import torch
    from torch import nn
    import foresee.torch as ft
    from foresee.errors import ForeseeError
    from support.exchanges import ThreadServer
    from support.tensors import noise

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)

    def train(cls, synchronized):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
        rate = {"lr": 0.01} if "lr" in inspect.signature(cls.__init__).parameters else {}
        optimizer = cls(model.parameters(), **rate)
        if synchronized:
            model, optimizer = ft.synchronize(model, optimizer, servers=ThreadServer(1).exchange(0))
        # Some draw random numbers from torch or NumPy.
        torch.manual_seed(1)
        np.random.seed(1)
        for step in range(25):
            optimizer.zero_grad()
            model(noise(3, 4, seed=step)).square().mean().backward()
            optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    classes = [one for one in vars(pytorch_optimizer).values() if inspect.isclass(one)]
    right, wrong = 0, []
    for cls in classes:
        if not issubclass(cls, torch.optim.Optimizer):
            continue
        try:
            stock = train(cls, False)
        except Exception:
            continue  # it needs a closure, arguments or another optimizer
        try:
            same = all(map(torch.equal, train(cls, True), stock))
        except ForeseeError:
            continue
        except Exception as error:
            wrong.append(f"{cls.__name__}: {error!r}")
            continue
        right += same
        wrong += [] if same else [cls.__name__]
    assert not wrong, wrong
    assert right > 100, right
"""


def test_every_optimizer_that_runs_on_its_own_has_stock_bits_or_is_refused(tmp_path: pathlib.Path) -> None:
    runs.run_text(PROGRAM, tmp_path)
