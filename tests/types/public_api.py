# SPDX-License-Identifier: Apache-2.0
"""Uses of the public API that type checkers must accept or refuse. mypy checks this file; it is never run.

``mypy --strict`` reports an unused ``type: ignore``, so every line with one must remain an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import assert_type

import foresee
import foresee.torch as ft
from foresee.network.trace import ModelTrace


def numpy_api(path: Path) -> None:
    cache = foresee.Cache(ram="16GB", disk=path, disk_size="300GB")
    loader = foresee.Loader("s3://bucket/train", batch_size=64, shuffle=True, seed=0, cache=cache)
    foresee.Loader(path, batch_size=64, on_error=lambda error: error.sample + 1)
    foresee.Loader(foresee.Index.open(path), batch_size=64, on_error="skip")
    for batch in loader:
        assert_type(batch, foresee.Batch)
        assert_type(batch.data, NDArray[np.uint8])
        assert_type(batch.ids, NDArray[np.int64])
        assert_type(len(batch), int)
    assert_type(loader.state_dict(), dict[str, Any])
    loader.load_state_dict(state=loader.state_dict(), strict=False)
    with loader as same:
        assert_type(same, foresee.Loader)
    foresee.Loader(path)  # type: ignore[call-arg] # a batch size is needed
    foresee.Loader(path, 64)  # type: ignore[call-arg] # and by name
    foresee.Loader(path, batch_size=64, on_error="ignore")  # type: ignore[arg-type]
    foresee.Loader(path, batch_size=64, order="random")  # type: ignore[arg-type]
    foresee.Cache("16GB")  # type: ignore[call-arg]
    cache.ram = 3  # type: ignore[misc] # frozen


def torch_api(path: Path) -> None:
    dataset = ft.FolderDataset(path, transform=len, decode="pil")
    ft.FolderDataset("s3://bucket/train", decode=bytes, extensions=[".bin"], storage_options={"region": "x"})
    ft.ArrayDataset(path, dtype="float32", shape=(3, 4))
    table = ft.FileDataset(
        [path, "s3://bucket/a"], [0, 1], extra={"mask": [path, path]}, decode={"mask": bytes}
    )
    assert_type(ft.FileDataset.from_csv(path, uri="image", target=None, root=path), ft.FileDataset)
    assert_type(table.classes, list[str])
    tokens = ft.TokenDataset([path], 1024, dtype=torch.uint16, cast=None)
    assert_type(tokens.stride, int)
    ft.TokenDataset(path)  # type: ignore[call-arg] # a window is needed
    ft.FileDataset(3)  # type: ignore[arg-type]
    loader = ft.DataLoader(dataset, 64, True, num_workers=4, generator=torch.Generator())
    ft.DataLoader(dataset, sampler=[1, 2, 3])
    ft.DataLoader(dataset, batch_sampler=[[1, 2], [3]])
    ft.DataLoader(dataset, cache=ft.Cache(ram=10**9))
    assert_type(len(loader), int)
    assert_type(dataset.classes, list[str])
    assert_type(dataset.targets, list[int])
    assert_type(loader.state_dict(), dict[str, Any])
    loader.load_state_dict(state_dict=loader.state_dict(), strict=False)
    with loader as same:
        assert_type(same, ft.DataLoader)
    ft.DataLoader([1, 2, 3], batch_size=None)
    ft.DataLoader(dataset, seed="0")  # type: ignore[arg-type]
    ft.FolderDataset(path, decode="jpeg")  # type: ignore[arg-type]


def errors(error: foresee.SampleFault) -> None:
    assert_type(error.sample, int)
    assert_type(error.permanent, bool)
    as_builtin: OSError = foresee.OriginMissing("x")
    as_root: foresee.ForeseeError = as_builtin  # type: ignore[assignment]
    del as_root


def gradients_api(model: torch.nn.Linear, path: Path) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    same, stepped = ft.synchronize(model, optimizer, servers="colocated,host:1", clip="exact", max_norm=1.0)
    assert_type(same, torch.nn.Linear)
    assert_type(stepped, torch.optim.AdamW)
    ft.synchronize(
        model, optimizer, servers=["host:1"], overlap="backward", comm_dtype="bf16", timeline="step.json"
    )
    ft.synchronize(model, optimizer)  # type: ignore[call-overload]
    ft.synchronize(model, optimizer, servers="host:1", comm_dtype="f8")  # type: ignore[call-overload]
    ft.synchronize(model.parameters(), optimizer, servers="host:1")  # type: ignore[call-overload]
    _, several = ft.synchronize(model, [optimizer, torch.optim.SGD(model.parameters())], servers="host:1")
    assert_type(several, list[torch.optim.Optimizer])
    trace = ft.trace_model(model, torch.ones(4, 8), optimizer=optimizer, path=path)
    assert_type(trace, ModelTrace)
    assert_type(trace.batch, int | None)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    ddp.register_comm_hook(ft.DdpState(servers="host:1"), ft.ddp_hook)
    ft.DdpState("host:1")  # type: ignore[call-arg] # by name
