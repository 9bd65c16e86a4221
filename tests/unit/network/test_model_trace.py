# SPDX-License-Identifier: Apache-2.0
"""The model trace: reading and writing, faults, and the sizes of well-known models."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from support.house import ROOT

from foresee import network
from foresee.errors import ConfigError
from foresee.network import trace
from foresee.network.trace import ModelTrace, Tensor

FOLDER = ROOT / "testdata" / "network"


def golden() -> dict[str, object]:
    """Return the JSON content of the golden file."""
    content: dict[str, object] = json.loads((FOLDER / "trace.json").read_text())
    return content


def test_the_golden_trace_is_read_in_order_of_first_use() -> None:
    read = trace.read(FOLDER / "trace.json")
    assert read.model == "example"
    assert [tensor.name for tensor in read.tensors] == ["embed.weight", "block.weight", "head.weight"]
    assert read.tensors[1] == Tensor("block.weight", 4, 2.0, 1.0, 0.0)
    assert read.batch == 9
    assert read.facts == {"batch": 9, "device": "example A", "measured": False, "watts": 0.5}
    step = read.step()
    assert step.names == ("embed.weight", "block.weight", "head.weight")
    assert network.t_iter(step, "mercury", 1.0) == 11.0


def test_a_written_trace_is_read_back_bit_for_bit(tmp_path: Path) -> None:
    model = ModelTrace(
        "ünïcode ✓",
        (Tensor("a.b", 2**52 - 1, 0.1 + 0.2, 1e-300, 5e-324), Tensor('"quoted\\"', 0, 1, 0)),
        {"batch": 3, "note": "µs", "ratio": 1 / 3},
    )
    path = tmp_path / "model.json"
    trace.write(model, path)
    assert trace.read(path) == model
    assert trace.dumps(trace.read(path)) == path.read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == [path]


def test_the_example_in_the_documentation_is_a_trace() -> None:
    page = (ROOT / "docs" / "formats" / "model-trace.md").read_text()
    example = page.split("```json\n")[1].split("```")[0]
    read = trace.loads(example)
    assert trace.dumps(read) == example
    for key in (
        "format",
        "version",
        "model",
        "facts",
        "tensors",
        "name",
        "bytes",
        "order",
        "backward",
        "update",
    ):
        assert f"| `{key}` |" in page


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    model = trace.read(FOLDER / "trace.json")
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        trace.write(model, tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def change(path: tuple[object, ...], value: object) -> str:
    """Return the golden file with one value replaced; ``...`` removes it."""
    content = golden()
    place: object = content
    for key in path[:-1]:
        place = place[key]  # type: ignore[index]
    if value is ...:
        del place[path[-1]]  # type: ignore[attr-defined]
    else:
        place[path[-1]] = value  # type: ignore[index]
    return json.dumps(content)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        (b"\xff\xfe\x00\x01", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("9" * 5000, "no JSON"),
        ("[]", "a list instead of an object"),
        ("3", "a number instead of an object"),
        ("{}", "format is None"),
        (change(("format",), "fidx"), "format is 'fidx', not 'foresee-model-trace'"),
        (change(("version",), 2), "version is 2; this program reads version 1"),
        (change(("version",), True), "version is True"),
        (change(("version",), "1"), "version is '1'"),
        (change(("model",), ...), "the file: model is missing"),
        (change(("model",), ""), "model is ''"),
        (change(("model",), 3), "model is 3"),
        (change(("model",), "a\nb"), "printable"),
        (change(("author",), "me"), "the file: 'author' is no key of this format"),
        (change(("facts",), []), "facts is a list"),
        (change(("facts", "list"), [1]), "fact 'list' is a list"),
        (change(("facts", "none"), None), "fact 'none' is null"),
        (change(("facts", "lines"), "a\nb"), "fact 'lines' is"),
        (change(("tensors",), {}), "tensors is an object"),
        (change(("tensors",), []), "tensors is empty"),
        (change(("tensors", 1), 3), "tensor 1: a number; an object expected"),
        (change(("tensors", 0, "bytes"), ...), "tensor 'head.weight': bytes is missing"),
        (change(("tensors", 0, "dtype"), "f32"), "tensor 'head.weight': 'dtype' is no key of this format"),
        (change(("tensors", 0, "name"), ...), "tensor 0: name is missing"),
        (change(("tensors", 0, "name"), ""), "name is ''"),
        (change(("tensors", 0, "name"), "\ud800"), "printable"),
        (change(("tensors", 0, "name"), "block.weight"), "tensor 'block.weight': the name stands twice"),
        (change(("tensors", 0, "bytes"), -1), "tensor 'head.weight': bytes is -1"),
        (change(("tensors", 0, "bytes"), 1.0), "bytes is 1.0"),
        (change(("tensors", 0, "bytes"), True), "bytes is True"),
        (change(("tensors", 0, "bytes"), 2**52 + 1), "bytes is 4503599627370497"),
        (change(("tensors", 0, "order"), 3), "tensor 'head.weight': order is 3; a whole number from 0 to 2"),
        (change(("tensors", 0, "order"), 0), "order is 0, as of tensor"),
        (change(("tensors", 0, "backward"), -0.5), "tensor 'head.weight': backward is -0.5"),
        (change(("tensors", 0, "forward"), "1"), "forward is '1'; seconds expected"),
        (change(("tensors", 0, "update"), None), "update is None"),
        (change(("tensors", 0, "update"), 10**400), "update is 1000"),
        (change(("tensors", 0, "forward"), float("nan")), "NaN stands where a number is expected"),
        (change(("tensors", 0, "forward"), float("inf")), "Infinity stands where"),
        ('{"a": 1, "a": 2}', "'a' stands twice"),
        ('[{"name": "w", "bytes": 1, "bytes": 2}]', "tensor 'w': 'bytes' stands twice"),
    ],
)
def test_each_fault_is_named(text: str | bytes, expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        trace.loads(text)
    assert expected in str(raised.value)


def test_a_number_too_large_for_a_float_is_a_fault_like_any_other() -> None:
    text = change(("tensors", 0, "forward"), 1.5).replace("1.5", "1e999")
    with pytest.raises(ConfigError, match="forward is inf"):
        trace.loads(text)


def test_all_faults_are_reported_at_once_with_the_file_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(
        json.dumps(
            golden()
            | {
                "tensors": [
                    {"name": f"t{at}", "bytes": -1, "order": at, "backward": 0, "forward": 0, "update": 0}
                    for at in range(50)
                ]
            }
        )
    )
    with pytest.raises(ConfigError) as raised:
        trace.read(path)
    assert len(raised.value.faults) == 21
    assert (
        raised.value.faults[0] == f"{path}: tensor 't0': bytes is -1; a whole number from 0 to 2**52 expected"
    )
    assert raised.value.faults[-1] == f"{path}: and 30 more"


def test_a_trace_made_in_code_is_checked_too() -> None:
    with pytest.raises(ConfigError) as raised:
        ModelTrace("m", (Tensor("a", -1, 0.0, float("nan")), Tensor("a", 1, 0.0, 0.0)))
    assert len(raised.value.faults) == 3
    timeless = ModelTrace("m", (Tensor("a", 1, 0.0, 0.0),))
    with pytest.raises(ConfigError, match="time of all layers"):
        timeless.step()


@pytest.mark.parametrize(("batch", "expected"), [(8, 8), (0, None), (True, None), ("8", None), (2**32, None)])
def test_batch_is_a_number_of_samples_or_none(batch: trace.Fact, expected: int | None) -> None:
    assert ModelTrace("m", (Tensor("a", 1, 1.0, 1.0),), {"batch": batch}).batch == expected


def script() -> ModuleType:
    """Import `scripts/model_traces.py` as a module."""
    spec = importlib.util.spec_from_file_location("model_traces", ROOT / "scripts" / "model_traces.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Parameters as torchvision and transformers count them; multiply-adds as torchvision states them, in 1e9.
@pytest.mark.parametrize(
    ("name", "tensors", "parameters", "largest", "work"),
    [
        ("vgg16", 32, 138_357_544, "classifier.0.weight", 15.47),
        ("resnet50", 161, 25_557_032, "layer4.0.conv2.weight", 4.09),
        ("bert_base", 206, 110_106_428, "bert.embeddings.word_embeddings.weight", None),
        ("gpt2_small", 148, 124_439_808, "transformer.wte.weight", None),
    ],
)
def test_the_well_known_models_have_their_sizes(
    name: str, tensors: int, parameters: int, largest: str, work: float | None
) -> None:
    model = script().trace(name)
    read = trace.read(FOLDER / f"{name}.json")
    assert read == model, "run scripts/model_traces.py"
    assert len(read.tensors) == tensors
    assert sum(tensor.bytes for tensor in read.tensors) == 4 * parameters
    assert max(read.tensors, key=lambda tensor: tensor.bytes).name == largest
    assert all(tensor.backward == 2 * tensor.forward for tensor in read.tensors)
    if work is not None:
        multiply_adds = sum(tensor.forward for tensor in read.tensors) * 1e13 / read.batch
        assert multiply_adds == pytest.approx(work * 1e9, rel=0.01)


def test_large_last_tensors_are_hidden_and_large_first_ones_are_not() -> None:
    """As in the paper; small models gain little."""
    steps = {name: trace.read(FOLDER / f"{name}.json").step() for name in ("vgg16", "resnet50", "bert_base")}
    need = {
        name: network.minimum_bandwidth(step, "mercury", goal=0.99) / step.total_bytes * step.oracle
        for name, step in steps.items()
    }
    assert need["bert_base"] > 5 * need["vgg16"]
    at_1_gbit = {name: network.sweep(step, [125e6]).t_iter[:, 0] for name, step in steps.items()}
    for times in at_1_gbit.values():
        assert 1.0 < times[-1] / times[1] <= 2.3
