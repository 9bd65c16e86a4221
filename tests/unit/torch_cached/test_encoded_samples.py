# SPDX-License-Identifier: Apache-2.0
"""Samples as bytes: equal after decoding, in value, type, dtype, shape, strides and whether they may be changed."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from foresee.errors import ConfigError
from foresee.torch.cached.encode import decode, encode


def again(value, **options):
    return decode(bytearray(encode(value, **options)))


def assert_equal(ours, theirs):
    assert type(ours) is type(theirs)
    if isinstance(theirs, torch.Tensor):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        flat = [one.contiguous().reshape(-1).view(torch.uint8) for one in (ours, theirs) if one.numel()]
        assert not flat or torch.equal(*flat)
    elif isinstance(theirs, np.ndarray):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.flags.writeable == theirs.flags.writeable
        assert ours.tobytes() == theirs.tobytes()
    elif isinstance(theirs, Image.Image):
        assert (ours.mode, ours.size, ours.info, ours.tobytes()) == (
            theirs.mode,
            theirs.size,
            theirs.info,
            theirs.tobytes(),
        )
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for key, value in theirs.items():
            assert_equal(ours[key], value)
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_equal(one, other)
    else:
        assert ours == theirs or (math.isnan(ours) and math.isnan(theirs))


VALUES = [
    None,
    True,
    False,
    0,
    -(2**63),
    2**63,
    10**40,
    1.5,
    -0.0,
    math.inf,
    math.nan,
    2 + 3j,
    "",
    "ü\ud800\0",
    b"",
    b"\0\xff",
    bytearray(b"abc"),
    (),
    [],
    {},
    ((), [None, (1,)], {"a": {"b": [1.0]}, 3: b"x", None: "y", (1, "z"): True}),
    np.float32(1.5),
    np.int8(-3),
    np.bool_(True),
    np.str_("text"),
    np.datetime64("2026-11-28"),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_plain_values_are_equal_with_equal_types(value):
    assert_equal(again(value), value)
    assert_equal(again((value, [value])), (value, [value]))


@pytest.mark.parametrize(
    "dtype",
    [
        "?",
        "<i1",
        "<u2",
        "<i4",
        "<u8",
        "<f2",
        "<f4",
        ">f8",
        "<c8",
        "<c16",
        "<U5",
        "S3",
        "<M8[ns]",
        "V4",
        "<f4,<i2",
    ],
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)])
def test_arrays_keep_dtype_shape_and_order(dtype, shape):
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    data = (
        bytes(1 for _ in range(size)) if dtype in ("?", "<U5", "S3") else bytes(i % 251 for i in range(size))
    )
    value = np.frombuffer(bytearray(data if dtype != "<U5" else np.full(shape, "ab", dtype).tobytes()), dtype)
    value = value.reshape(shape)
    assert_equal(again(value), value)
    turned = value.T
    assert_equal(again(turned), turned)
    assert again(turned).flags.f_contiguous == turned.flags.f_contiguous
    value = value.copy()
    value.flags.writeable = False
    assert_equal(again({"x": value}), {"x": value})


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool,
        torch.uint8,
        torch.int16,
        torch.int64,
        torch.uint32,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.float8_e4m3fn,
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3, 4, 5)])
def test_tensors_keep_dtype_shape_and_strides(dtype, shape):
    value = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape).to(dtype)
    assert_equal(again(value), value)
    if len(shape) == 4:
        last = value.contiguous(memory_format=torch.channels_last)
        assert_equal(again(last), last)
        assert again(last).stride() == last.stride()
        assert_equal(again(value[:, ::2]), value[:, ::2])
        assert_equal(again(value[0, 0].expand(3, 4, 5)), value[0, 0].expand(3, 4, 5))


def test_complex_views_are_stored_by_value():
    value = torch.tensor([1 + 2j, 3 - 4j])
    assert again(value.conj()).tolist() == value.conj().tolist()
    assert again(value.conj().imag).tolist() == [-2.0, 4.0]


@pytest.mark.parametrize("mode", ["1", "L", "RGB", "RGBA", "I", "F", "CMYK"])
def test_pictures_are_equal(mode):
    value = Image.new(mode, (5, 3), 1)
    value.info["dpi"] = (72, 72)
    assert_equal(again((value, 3)), (value, 3))


def test_changing_a_decoded_value_changes_no_other_one():
    value = (torch.zeros(3), np.zeros(3), torch.zeros(3, 2))
    data = encode(value)
    first = decode(bytearray(data))
    first[0].fill_(1)
    first[1][:] = 2
    assert first[2].sum() == 0
    assert_equal(decode(bytearray(data)), value)


class Custom:
    def __init__(self, value):
        self.value = value


class Pair(NamedTuple):
    a: int
    b: int


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (Custom(1), "the sample is of type "),
        ([1, {"meta": Custom(1)}], r"the sample's value \[1\]\['meta'\] is of type "),
        (Pair(1, 2), "Pair"),
        ({1.5: 1}, "dict"),
        (np.array([object()]), "numpy.ndarray"),
        (torch.eye(2).to_sparse(), "torch.Tensor"),
        (torch.nn.Parameter(torch.zeros(2)), "Parameter"),
        ({1, 2}, "set"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_types_are_refused_with_their_place_unless_pickle_is_allowed(value, place):
    with pytest.raises(ConfigError, match=place) as caught:
        encode(value)
    assert "allow_pickle=True" in str(caught.value)
    again(value, allow_pickle=True)


def test_pickled_values_are_equal():
    assert again([Pair(1, 2), {3}], allow_pickle=True) == [Pair(1, 2), {3}]
    assert again(Custom(7), allow_pickle=True).value == 7


def test_what_cannot_be_pickled_is_named():
    with pytest.raises(ConfigError, match=r"value \[1\] is of type function, which cannot be pickled"):
        encode((1, lambda: 1), allow_pickle=True)


def test_tensors_of_other_devices_and_with_gradients_are_refused():
    for allow_pickle in (False, True):
        with pytest.raises(ConfigError, match="tensor on meta"):
            encode([torch.empty(2, device="meta")], allow_pickle=allow_pickle)
    with pytest.raises(ConfigError, match="tensor on meta"):
        encode(Custom(torch.empty(2, device="meta")), allow_pickle=True)
    with pytest.raises(ConfigError, match=r"return tensor\.detach\(\)"):
        encode(torch.zeros(2, requires_grad=True))


def test_a_sample_that_contains_itself_is_refused():
    value: list[object] = []
    value.append(value)
    with pytest.raises(ConfigError, match="contains itself"):
        encode(value)
